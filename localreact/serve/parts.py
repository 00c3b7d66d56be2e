"""What a reply is made of, as it comes. `choice` says which of an Ask's `n` replies a part belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from localreact.serve.ask import Called
from localreact.types import Evidence, Timings, TokenScore, Usage

FinishReason = Literal["stop", "tool_calls", "length"]


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's reasoning, or of the thought of its turn."""

    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Scored:
    """A token that begins within the content, and where (in characters)."""

    score: TokenScore
    at: int


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer. None comes beside a call."""

    text: str
    choice: int = 0
    scored: tuple[Scored, ...] = ()
    """Its tokens, where log-probabilities were asked for."""


@dataclass(frozen=True, slots=True)
class CallStarted:
    """Said once a call, before its arguments."""

    id: str
    name: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of the JSON text of the call's arguments."""

    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The last part of a reply, and all of it: the deltas before add up to exactly this.

    With `length` there is no `call`, even if the deltas had begun one: half a call is none.
    """

    finish_reason: FinishReason
    content: str = ""
    reasoning: str = ""
    call: Called | None = None
    evidence: tuple[Evidence, ...] = ()
    """Quotes, where citing was asked for; a step is the number of a tool result in the history, from 1."""

    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    stopped_at: str | None = None
    """The stop string that ended the content."""

    scored: tuple[Scored, ...] = ()
    choice: int = 0


Part = ReasoningDelta | ContentDelta | CallStarted | ArgumentsDelta | Ended
