"""Files that are named on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from localreact.errors import UsageError


def read_json(path: Path) -> Any:
    """
    Raises:
        UsageError: the file can't be read, or isn't JSON.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
