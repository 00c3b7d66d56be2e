"""What a run may use up."""

from __future__ import annotations

from dataclasses import dataclass

from localreact.errors import UsageError

LAST_TURN = 700
"""Tokens kept for the last turn: a thought of 400 characters and an answer of 2,000 fit."""

SHORTEST_TURN = 48
"""Tokens below which a turn isn't begun: the forced text of a finish and a few words."""


REASONING_TAGS = 24
"""Tokens of context that the tags around a turn's reasoning may take."""


@dataclass(frozen=True)
class Budgets:
    """`max_tokens` counts generated tokens, forced ones too; `deadline_s` seconds from the start.
    `reasoning_tokens` are those before each turn; `max_tokens` doesn't count them.

    Raises:
        UsageError: a limit below its least value.
    """

    max_steps: int = 8
    max_tokens: int = 4096
    deadline_s: float | None = None
    reasoning_tokens: int = 0

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise UsageError(f"max_steps must be at least 1, not {self.max_steps}")
        if self.max_tokens < SHORTEST_TURN:
            raise UsageError(f"max_tokens must be at least {SHORTEST_TURN}, not {self.max_tokens}")
        if self.reasoning_tokens < 0:
            raise UsageError(f"reasoning_tokens must be 0 (none) or more, not {self.reasoning_tokens}")
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise UsageError(f"the deadline must be a time above 0 seconds, not {self.deadline_s}")

    @property
    def kept_for_last_turn(self) -> int:
        return min(LAST_TURN, self.max_tokens // 2)
