"""Who may say no to a call: a person, and a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from localreact.errors import UsageError
from localreact.tools.decorator import Tool
from localreact.tools.execution import Call


@dataclass(frozen=True)
class Permission:
    """`approval` is asked before calls of tools that need it; `over_budget` before one that would bring
    the cost of a run above `max_cost`, with that cost. Both return whether the call may be made; one that
    raises an error has not said yes.

    Raises:
        UsageError: a budget below zero.
    """

    approval: Callable[[Call], bool] | None = None
    max_cost: float | None = None
    over_budget: Callable[[Call, float], bool] | None = None

    def __post_init__(self) -> None:
        if self.max_cost is not None and not self.max_cost >= 0:
            raise UsageError(f"max_cost must be a number from 0, not {self.max_cost}")

    def asks(self, tool: Tool) -> bool:
        """Whether a person has to allow a call of this tool."""
        if tool.approve is None:
            return tool.effects and self.approval is not None
        return tool.approve

    def refusal(self, call: Call, tool: Tool, spent: float) -> str:
        """Why a call may not be made after `spent`; empty where it may. May ask people, and wait."""
        if self.max_cost is not None and tool.cost and spent + tool.cost > self.max_cost:
            total = spent + tool.cost
            ask = self.over_budget
            if why := "nobody to ask" if ask is None else _no(lambda: ask(call, total)):
                return f"not executed: it would bring the cost to {total:g} of {self.max_cost:g} ({why})"
        if self.asks(tool):
            approval = self.approval
            why = "there is nobody to ask" if approval is None else _no(lambda: approval(call))
            if why:
                return f"not executed: it needs a person's approval ({why})"
        return ""


def _no(ask: Callable[[], bool]) -> str:
    try:
        return "" if ask() is True else "refused"
    except Exception as error:  # the user's code; not having said yes is no
        return f"asking failed: {type(error).__name__}: {error}"
