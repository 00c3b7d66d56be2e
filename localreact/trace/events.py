"""The events of a run. The trace, the terminal and every other consumer read this one stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from localreact.types import Completion, Evidence, Observation, Segment, Span, Status, Timings, Turn, Usage


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run, or another sitting of it, begins.

    `enforced` is the grammar language that holds every turn, or empty: turns are only checked; `level` says
    the same in words, and who enforces it. `setup` is what the agent was made of (tools, delimiters, …),
    enough to replay the run without it. `resumed` is how many steps the sittings before had made, None in
    the first one. `recalled` are lines of earlier runs that stand before the question. `parent` is the
    call (of another run) that this one works for, if there is one.
    """

    run_id: str
    question: str
    protocol: str
    model: str
    fingerprint: str
    enforced: str
    chat_format: str
    tools: tuple[str, ...]
    settings: Mapping[str, Any]
    version: str
    setup: Mapping[str, Any] = field(default_factory=dict)
    resumed: int | None = None
    level: str = ""
    recalled: tuple[str, ...] = ()
    parent: str = ""


@dataclass(frozen=True, slots=True)
class StepStarted:
    """`prompt` holds what is new since the previous step; `tools`, `answer` and `insufficient` say
    what the grammar of this turn admits; `closing` why tools are closed, if they are; `sources` the
    steps that an answer can cite, where it has to; `reasoning` for how many tokens the model may reason
    before the turn."""

    step: int
    prompt: tuple[Segment, ...]
    tools: tuple[str, ...]
    answer: bool
    insufficient: bool
    max_tokens: int
    closing: str = ""
    sources: tuple[int, ...] = ()
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A stretch of a field, as it is decoded; of `reasoning` as the model writes it, with its closing tag.
    Not kept in traces: `TurnCompleted` has it all."""

    step: int
    field: Literal["reasoning", "thought", "tool", "arguments", "answer", "missing"]
    text: str


@dataclass(frozen=True, slots=True)
class SpanWritten:
    """A stretch as the endpoint made it (in process: one sampled token, or forced ones together), and the
    seconds since the one before, or since the turn began; the first that was sampled has the prompt's in it.
    Not kept in traces: `TurnCompleted` has it all."""

    step: int
    span: Span
    seconds: float


@dataclass(frozen=True, slots=True)
class TurnCompleted:
    """`pace` says how the text of the completion's spans came: for each stretch (see `SpanWritten`) its
    characters, its tokens, and its seconds. What was cut off afterwards is in it, too."""

    step: int
    completion: Completion
    pace: tuple[tuple[int, int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TurnRead:
    step: int
    turn: Turn


@dataclass(frozen=True, slots=True)
class TurnRefused:
    """A text that was no turn, or not a whole one. It goes into no later prompt."""

    step: int
    problem: str


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """Written before the tool runs. `call_id` is the key under which the call happens at most once,
    `intent` the thought that led to it, `effects` whether it may change anything outside the run; a
    call with effects that has no ToolEnded may have taken effect. `approved`: a person said yes."""

    step: int
    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    intent: str = ""
    effects: bool = False
    approved: bool = False


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """`shown` is the observation as the model is shown it, where that is another text."""

    step: int
    call_id: str
    observation: Observation
    seconds: float
    shown: str | None = None


@dataclass(frozen=True, slots=True)
class ProtocolChanged:
    """The model's own tool calling failed; the run goes on in another protocol, with all that was done."""

    protocol: str
    enforced: str
    level: str
    reason: str


@dataclass(frozen=True, slots=True)
class GuardActed:
    """The runtime stepped in. `guard` says which rule did (`repeat`, `rephrase`, `cycle`, `check`, `turn` for
    a turn that isn't legal now, or the limit that closed the tools), `action` what it did, after the
    turn `step` (before it, where the tools were `closed`)."""

    step: int
    guard: str
    action: Literal["noted", "excluded", "refused", "closed"]
    detail: str


@dataclass(frozen=True, slots=True)
class Planned:
    """What is left to do, as the model says in this step; from now on the first of `steps` is worked on."""

    step: int
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compacted:
    """Older steps were put in short. Of the segments of the prompt so far the first `kept` stay; the
    next step's prompt goes on from there. Steps up to `told` are in short, those up to `left_out` not
    even that. `before` and `after` are the prompt's tokens. `summary` is the turn in which the model
    summed them up, where it was asked to."""

    step: int
    kept: int
    told: int
    left_out: int
    before: int
    after: int
    summary: Completion | None = None


@dataclass(frozen=True, slots=True)
class RunEnded:
    status: Status
    answer: str | None
    missing: str | None
    reason: str
    steps: int
    usage: Usage
    timings: Timings
    seconds: float
    evidence: tuple[Evidence, ...] = ()
    round_trips: int = 0
    """Replies of the model; fewer than steps where one reply held several calls (`native`)."""

    inner: Usage = field(default_factory=Usage)
    """What runs of other agents used that this run called as tools; not in `usage`."""


Event = (
    RunStarted
    | StepStarted
    | TextDelta
    | SpanWritten
    | TurnCompleted
    | TurnRead
    | TurnRefused
    | ToolStarted
    | ToolEnded
    | ProtocolChanged
    | GuardActed
    | Planned
    | Compacted
    | RunEnded
)
