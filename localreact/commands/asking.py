"""Asks the person at the terminal whether a call may be made. Where nobody sits there, it may not."""

from __future__ import annotations

import json
import sys

from localreact.errors import UsageError
from localreact.terminal import printable
from localreact.tools import Call


def approval(call: Call) -> bool:
    """
    Raises:
        UsageError: standard input is no terminal.
    """
    return _yes(f"Run {_shown(call)}?")


def over_budget(call: Call, cost: float) -> bool:
    """
    Raises:
        UsageError: standard input is no terminal.
    """
    return _yes(f"Run {_shown(call)}? The cost comes to {cost:g}, which is beyond the limit.")


def _shown(call: Call) -> str:
    return f"{call.tool} {json.dumps(dict(call.arguments), ensure_ascii=False)}"


def _yes(question: str) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("standard input is no terminal, so nobody could say yes")
    print(f"\n{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
