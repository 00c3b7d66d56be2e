"""What a run has done so far, and what comes out of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from localreact.errors import UsageError
from localreact.grammar import quotes
from localreact.grammar.schema import Relaxation
from localreact.trace.events import Event, RunEnded, ToolEnded
from localreact.types import Closing, Completion, Evidence, Observation, Source, Status, Timings, Turn, Usage

Problem = Literal["refused", "length"]

T = TypeVar("T")
Events = Generator[Event, None, T]
"""Yields events as they happen, then returns a result."""


@dataclass(frozen=True, slots=True)
class Step:
    """One turn. `turn` is None where the text was no turn or not a whole one (`problem` says which),
    `observation` where the turn asked for nothing. `shown` is the observation's text as the model was
    shown it, where that is shorter. `reasoning` is what the model said before the turn."""

    number: int
    turn: Turn | None
    observation: Observation | None
    usage: Usage
    timings: Timings
    problem: Problem | None = None
    shown: str | None = None
    reasoning: str = ""
    closing: Closing | None = None
    """The limit that had closed the tools before this turn, if one had."""

    unmet: bool = False
    """This answer went back to the model because it didn't meet a check."""


@dataclass(frozen=True, slots=True)
class Ending:
    status: Status
    reason: str = ""
    answer: str | None = None
    missing: str | None = None
    value: Any = None
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """The outcome. `answer` is None unless the model gave one in a whole, legal turn; `value` is the
    answer as the type that was asked for, or the same text where none was; `evidence` is what it cites,
    each quote a verbatim stretch of what a tool said."""

    run_id: str
    question: str
    status: Status
    answer: str | None
    missing: str | None
    reason: str
    steps: tuple[Step, ...]
    usage: Usage
    timings: Timings
    seconds: float
    value: Any = None
    evidence: tuple[Evidence, ...] = ()
    round_trips: int = 0
    inner: Usage = field(default_factory=Usage)
    """What runs of other agents used that this run called as tools."""


@dataclass(frozen=True, slots=True)
class Digest:
    """What the prompt says of older steps where it doesn't hold them whole any more: those up to `told`
    are in short, a line each, those up to `left_out` not even that, but those up to `summed_up` are in
    the model's own `summary`. `shown` is what of their results still stands there, by step: only that
    can be cited. `plan` is what was to be done, where that was said in one of them."""

    left_out: int = 0
    told: int = 0
    lines: tuple[str, ...] = ()
    shown: Mapping[int, str] = field(default_factory=dict)
    summary: str = ""
    summed_up: int = 0
    plan: str = ""


@dataclass
class RunState:
    """Grows while the loop runs; the policy reads it."""

    question: str
    run_id: str = field(default_factory=lambda: f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}")
    started: float = field(default_factory=time.monotonic)
    steps: list[Step] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    value: Any = None
    recalled: tuple[str, ...] = ()
    """Lines of earlier runs that stand before the question."""

    parent: str = ""
    """The call that this run works for, if it is another agent's."""

    trace: Path | None = None
    """Where it is recorded, if it is."""

    interrupted: bool = False
    """Somebody asked the run to finish: no more calls, an answer from what there is."""
    round_trips: int = 0
    forgiven: int = 0
    """Refused texts of a protocol that the run has left."""

    late: bool = False
    """What is left of the deadline is for the answer."""

    untold: ToolEnded | None = None
    """What a call gave whose run was closed before it could say so."""

    digest: Digest = field(default_factory=Digest)
    recorded: tuple[int, int, Completion | None] | None = None
    """Where a run is gone through once more: how far its digest went then (left out, told), and the
    turn that summed it up."""

    @property
    def observations(self) -> list[Observation]:
        return [step.observation for step in self.steps if step.observation is not None]

    @property
    def has_evidence(self) -> bool:
        """Whether a call succeeded; one that succeeded and found nothing counts."""
        return any(each.ok for each in self.observations)

    @property
    def sources(self) -> tuple[Source, ...]:
        """What an answer can cite: the results of calls that succeeded, as the model is shown them now."""
        found = []
        for step in self.steps:
            if (seen := step.observation) is not None and seen.ok:
                view = None if seen.excerpt is None else seen.excerpt.view
                shown = seen.content if step.shown is None else step.shown
                content = seen.content if view is None else view
                if step.number <= self.digest.told:
                    shown = self.digest.shown.get(step.number, "")
                found.append(quotes.source(step.number, content, shown))
        return tuple(each for each in found if each is not None)

    @property
    def refused_turns(self) -> int:
        """Texts that were no turn, of the protocol that the run is in."""
        return sum(step.problem == "refused" for step in self.steps) - self.forgiven

    @property
    def failed_calls(self) -> int:
        """Calls in a row, up to now, that failed."""
        made = [each for each in self.observations if each.executed]
        return next((n for n, each in enumerate(reversed(made)) if each.ok), len(made))

    @property
    def inner(self) -> Usage:
        """What runs of other agents used that were called as tools."""
        return sum((run.usage for each in self.observations for run in each.inner), Usage())

    @property
    def generated(self) -> int:
        """Tokens that count against the budget, so far."""
        return self.usage.generated + self.inner.generated

    @property
    def closing(self) -> Closing | None:
        """The limit that closed the tools; once closed, they stay so."""
        return next((step.closing for step in self.steps if step.closing), None)

    def add(
        self,
        completion: Completion,
        turn: Turn | None = None,
        observation: Observation | None = None,
        problem: Problem | None = None,
        shown: str | None = None,
        closing: Closing | None = None,
        unmet: bool = False,
        same_reply: bool = False,
    ) -> None:
        """`same_reply`: one reply of the model may hold several calls, each a step."""
        self.round_trips += not same_reply
        number = len(self.steps) + 1
        usage, timings = completion.usage, completion.timings
        self.steps.append(
            Step(
                number,
                turn,
                observation,
                usage,
                timings,
                problem,
                shown,
                completion.reasoning,
                closing,
                unmet,
            )
        )
        self.usage += completion.usage
        self.timings += completion.timings

    def ended(self, ending: Ending) -> RunEnded:
        self.value = ending.value
        return RunEnded(
            status=ending.status,
            answer=ending.answer,
            missing=ending.missing,
            reason=ending.reason,
            steps=len(self.steps),
            usage=self.usage,
            timings=self.timings,
            seconds=time.monotonic() - self.started,
            evidence=ending.evidence,
            round_trips=self.round_trips,
            inner=self.inner,
        )

    def outcome(self, ended: RunEnded) -> Run:
        return Run(
            run_id=self.run_id,
            question=self.question,
            status=ended.status,
            answer=ended.answer,
            missing=ended.missing,
            reason=ended.reason,
            steps=tuple(self.steps),
            usage=ended.usage,
            timings=ended.timings,
            seconds=ended.seconds,
            value=self.value,
            evidence=ended.evidence,
            round_trips=ended.round_trips,
            inner=ended.inner,
        )


class Running(Iterator[Event]):
    """A run under way: iterate for its events; then `outcome` has the result.

    `trace` is the file that the run is recorded in, if it is. `relaxations` are what of the answer's type no
    grammar holds.
    """

    def __init__(
        self,
        state: RunState,
        events: Generator[Event, None, None],
        trace: Path | None,
        relaxations: Sequence[Relaxation] = (),
    ) -> None:
        self.run_id = state.run_id
        self.trace = trace
        self.relaxations = relaxations
        self._state = state
        self._events = events
        self._ended: RunEnded | None = None

    def __next__(self) -> Event:
        event = next(self._events)
        if isinstance(event, RunEnded):
            self._ended = event
        return event

    @property
    def outcome(self) -> Run:
        """
        Raises:
            UsageError: the run hasn't ended.
        """
        if self._ended is None:
            raise UsageError("the run hasn't ended", "Iterate over its events first.")
        return self._state.outcome(self._ended)

    def finish(self) -> None:
        """Ask the run to come to an end: no further call is made, and a last turn answers from what there
        is. Returns at once; may be called from another thread or a signal handler."""
        self._state.interrupted = True

    def close(self) -> None:
        """Stop the run, unless it has ended; its trace says so."""
        self._events.close()
