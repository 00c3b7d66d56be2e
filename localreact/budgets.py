"""What a run may use up."""

from __future__ import annotations

from dataclasses import dataclass

from localreact.errors import UsageError

LAST_TURN = 700
"""Tokens kept for the last turn: a thought of 400 characters and an answer of 2,000 fit."""

FINAL_TURNS = 2
"""Turns that a run gets once its tools are closed."""

SHORTEST_TURN = 48
"""Tokens below which a turn isn't begun: the forced text of a finish and a few words."""


REASONING_TAGS = 24
"""Tokens of context that the tags around a turn's reasoning may take."""


@dataclass(frozen=True)
class Budgets:
    """`max_tokens` counts generated tokens, forced ones too; `max_turn_tokens` those of one turn;
    `deadline_s` seconds from the start. `reasoning_tokens` are those before each turn; `max_tokens` doesn't
    count them. `max_context` bounds prompt and turn together, below what the endpoint holds;
    where they don't fit, the last `keep_steps` steps stay whole, and older ones are put in short.
    `max_tool_errors` calls in a row that failed close the tools. Of texts that are no turn the last but
    one allowed closes the tools, and the last, `max_protocol_errors`, ends the run.

    Raises:
        UsageError: a limit below its least value.
    """

    max_steps: int = 8
    max_tokens: int = 4096
    deadline_s: float | None = None
    reasoning_tokens: int = 0
    max_turn_tokens: int | None = None
    max_context: int | None = None
    keep_steps: int = 2
    max_tool_errors: int = 4
    max_protocol_errors: int = 3

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise UsageError(f"max_steps must be at least 1, not {self.max_steps}")
        if self.max_tokens < SHORTEST_TURN:
            raise UsageError(f"max_tokens must be at least {SHORTEST_TURN}, not {self.max_tokens}")
        if self.reasoning_tokens < 0:
            raise UsageError(f"reasoning_tokens must be 0 (none) or more, not {self.reasoning_tokens}")
        for name in ("max_turn_tokens", "max_context"):
            if (limit := getattr(self, name)) is not None and limit < SHORTEST_TURN:
                raise UsageError(f"{name} must be at least {SHORTEST_TURN}, not {limit}")
        if self.keep_steps < 0:
            raise UsageError(f"keep_steps must be 0 or more, not {self.keep_steps}")
        for name in ("max_tool_errors", "max_protocol_errors"):
            if (limit := getattr(self, name)) < 1:
                raise UsageError(f"{name} must be at least 1, not {limit}")
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise UsageError(f"the deadline must be a time above 0 seconds, not {self.deadline_s}")

    @property
    def kept_for_last_turn(self) -> int:
        return min(LAST_TURN, self.max_tokens // 2)
