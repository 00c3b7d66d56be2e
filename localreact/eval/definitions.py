"""Tools that are only defined: for tasks that are judged by their calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from localreact.errors import UsageError
from localreact.tools import Tool
from localreact.types import ToolSpec


def defined_tools(path: Path) -> list[Tool]:
    """The tools of a JSON file, a list of objects with `name`, `description` and `parameters`. Calling one
    does nothing.

    Raises:
        UsageError: the file can't be read, or holds something else.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
        return [
            Tool(ToolSpec(each["name"], each["description"], each["parameters"]), _nothing)
            for each in document
        ]
    except OSError as error:
        raise UsageError(f"there is no file {path}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} holds no definitions of tools: {error!r}") from error


def _nothing(**arguments: Any) -> str:
    return "done"
