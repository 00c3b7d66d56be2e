"""A trace as its steps, and what it took: for those who show runs or count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from localreact.trace.events import (
    Compacted,
    Planned,
    RunEnded,
    RunStarted,
    StepStarted,
    ToolEnded,
    ToolStarted,
    TurnCompleted,
    TurnRead,
    TurnRefused,
)
from localreact.trace.reading import Entry, Trace
from localreact.types import Completion, Segment, Timings, Turn, Usage


@dataclass
class RecordedStep:
    """One turn, as far as it got. Times are in seconds since the run's first event."""

    number: int
    began: float
    started: StepStarted | None = None
    completion: Completion | None = None
    written_at: float | None = None
    turn: Turn | None = None
    refused: str = ""
    called: ToolStarted | None = None
    called_at: float | None = None
    ended: ToolEnded | None = None
    ended_at: float | None = None
    planned: tuple[str, ...] | None = None

    @property
    def prompt(self) -> tuple[Segment, ...]:
        return self.started.prompt if self.started else ()

    @property
    def shown(self) -> str | None:
        """The observation as the model was shown it."""
        if self.ended is None:
            return None
        return self.ended.observation.content if self.ended.shown is None else self.ended.shown


def steps_of(entries: Iterable[Entry]) -> list[RecordedStep]:
    """The steps of a run, from `Trace.effective`."""
    steps: list[RecordedStep] = []
    first: float | None = None
    for entry in entries:
        first = entry.at if first is None else first
        at, event = entry.at - first, entry.event
        if isinstance(event, StepStarted):
            steps.append(RecordedStep(event.step, at, event))
        if not steps:
            continue
        step = steps[-1]
        match event:
            case TurnCompleted(completion=completion):
                step.completion, step.written_at = completion, at
            case TurnRead(turn=turn):
                step.turn = turn
            case TurnRefused(problem=problem):
                step.refused = problem
            case Planned():
                step.planned = event.steps
            case ToolStarted():
                step.called, step.called_at = event, at
            case ToolEnded():
                step.ended, step.ended_at = event, at
    return steps


@dataclass
class ToolUse:
    calls: int = 0
    failed: int = 0
    refused: int = 0
    seconds: float = 0.0


@dataclass
class Stats:
    """What a run took, counted from its events: also where it never came to its end.

    `usage` counts every turn, those too that were made again after a crash, and summaries; `inner` what
    runs of other agents used that were called as tools. `tool_s` and `other_s` are the seconds in tools,
    and in neither tools nor the model.
    """

    run_id: str
    status: str
    steps: int
    sittings: int
    refused: int
    usage: Usage = field(default_factory=Usage)
    inner: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    tool_s: float = 0.0
    seconds: float = 0.0
    tools: dict[str, ToolUse] = field(default_factory=dict)
    stops: Counter[str] = field(default_factory=Counter)

    @property
    def other_s(self) -> float:
        model = self.timings.prompt_s + self.timings.generate_s
        return max(0.0, self.seconds - self.tool_s - model)


def status_of(trace: Trace) -> str:
    """How it ended; `unfinished` where the trace doesn't say."""
    return trace.ended.status if trace.ended else "unfinished"


def stats_of(trace: Trace) -> Stats:
    events = trace.events
    stats = Stats(
        trace.started.run_id,
        status_of(trace),
        steps=len(steps_of(trace.effective)),
        sittings=sum(isinstance(event, RunStarted) for event in events),
        refused=sum(isinstance(event, TurnRefused) for event in events),
        seconds=trace.seconds,
    )
    for event in events:
        if isinstance(event, TurnCompleted):
            stats.usage += event.completion.usage
            stats.timings += event.completion.timings
            stats.stops[event.completion.stop] += 1
        elif isinstance(event, Compacted) and event.summary is not None:
            stats.usage += event.summary.usage
            stats.timings += event.summary.timings
        elif isinstance(event, ToolEnded):
            stats.inner = sum((run.usage for run in event.observation.inner), stats.inner)
            use = stats.tools.setdefault(event.observation.tool, ToolUse())
            executed = event.observation.executed
            use.calls += executed
            use.refused += not executed
            use.failed += executed and not event.observation.ok
            use.seconds += event.seconds if executed else 0
            stats.tool_s += event.seconds if executed else 0
    return stats


@dataclass(frozen=True)
class Difference:
    """One thing that two runs don't have in common. `step` is 0 for what isn't of a step."""

    step: int
    what: str
    a: str | None
    b: str | None


def diff(a: Trace, b: Trace) -> list[Difference]:
    """Where two runs differ, in the order of their steps."""
    found = []

    def compare(step: int, one: dict[str, str | None], other: dict[str, str | None]) -> None:
        for what in one | other:
            if one.get(what) != other.get(what):
                found.append(Difference(step, what, one.get(what), other.get(what)))

    compare(0, _head(a), _head(b))
    steps_a, steps_b = steps_of(a.effective), steps_of(b.effective)
    for number in range(max(len(steps_a), len(steps_b))):
        made = [number < len(steps) for steps in (steps_a, steps_b)]
        if all(made):
            compare(number + 1, _step(steps_a[number]), _step(steps_b[number]))
        else:
            found.append(Difference(number + 1, "step", *("made" if each else None for each in made)))
    compare(0, _end(a.ended), _end(b.ended))
    return found


def _head(trace: Trace) -> dict[str, str | None]:
    started = trace.started
    head: dict[str, str | None] = {
        "question": started.question,
        "model": f"{started.model} ({started.fingerprint})",
        "protocol": started.protocol,
        "grammar": started.enforced or "none",
        "tools": ", ".join(started.tools),
    }
    return head | {f"setting {key}": str(value) for key, value in started.settings.items()}


def _step(step: RecordedStep) -> dict[str, str | None]:
    found: dict[str, str | None] = {"prompt": "".join(segment.text for segment in step.prompt)}
    if step.completion:
        found["turn"] = step.completion.text
    found["refused"] = step.refused or None
    found["observation"] = step.shown
    return found


def _end(ended: RunEnded | None) -> dict[str, str | None]:
    if ended is None:
        return {"status": "unfinished"}
    return {"status": ended.status, "answer": ended.answer, "missing": ended.missing, "reason": ended.reason}
