"""A run's recorded events in the place of the model and of the tools.

To resume a run, the loop goes through what was recorded once more: the model's turns and the tools'
results come from the trace, so that state, transcript and budgets become what they were, without a
token being generated or a tool being called; then the real ones take over. Replaying is the same
without the second part.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast, get_args

from localreact import policy
from localreact.endpoints.base import Endpoint
from localreact.errors import UsageError
from localreact.loop import Loop
from localreact.run import Run, RunState
from localreact.tools import Call, Tool, Toolbox
from localreact.tools.permission import Permission
from localreact.trace.compare import difference
from localreact.trace.events import (
    Compacted,
    Event,
    GuardActed,
    RunEnded,
    RunStarted,
    SpanWritten,
    StepStarted,
    TextDelta,
    ToolEnded,
    ToolStarted,
    TurnCompleted,
)
from localreact.trace.jsonl import TRACE_VERSION
from localreact.trace.reading import Trace, Unknown, retokenized
from localreact.types import Completion, Observation, Span, Status, ToolCall

UNKNOWN = (
    "the outcome is unknown: the run was stopped while this call was under way. It may have taken effect; "
    "it was not repeated"
)


DERIVED = TextDelta | SpanWritten | GuardActed
"""Events that say nothing which the others don't."""

OUTSIDE = ("deadline", "cancelled", "endpoint_error")
"""Endings that come from outside a run, and don't come again when it is replayed."""


class Recording:
    """What a run can be resumed from; or, to replay it, the `whole` of it. `same_model` says whether token
    ids and prompts can be taken over."""

    def __init__(self, trace: Trace, same_model: bool = True, whole: bool = False) -> None:
        events, self._lost_usage, self._lost_timings = trace.resumable
        if whole:
            events = tuple(e.event for e in trace.effective if not isinstance(e.event, Unknown))
            if isinstance(last := events[-1], RunEnded) and last.status in OUTSIDE:
                events = events[:-1]
        self._whole = whole
        self._verdicts = _verdicts(events)
        self._seconds = trace.seconds
        self.size = trace.size
        self.same_model = same_model
        self.steps = sum(isinstance(event, StepStarted) for event in events)
        self._pending = deque(
            event if same_model else retokenized(event)
            for event in events
            if not isinstance(event, RunStarted | DERIVED)
        )
        self._completions = _completions(self._pending)
        self._observations = _observations(self._pending)
        self._refusals = _refusals(self._pending)

    def loop(self, loop: Loop, execute: bool = False) -> Loop:
        """The loop with the recording before its model, its checks and, unless calls are to be executed,
        its tools. Where the whole is gone through again, no check is made."""
        endpoint = cast(Endpoint, _Endpoint(loop.endpoint, self._completions))
        toolbox = loop.toolbox if execute else cast(Toolbox, _Toolbox(loop.toolbox, self._observations))
        permission = cast(Permission, _Permission(loop.permission, self._refusals))
        checks = (self._verdict, *(() if self._whole else loop.policy.checks))
        policy = replace(loop.policy, checks=checks)
        return replace(loop, endpoint=endpoint, toolbox=toolbox, permission=permission, policy=policy)

    def _verdict(self, run: Run) -> str:
        """What the checks said then of the answer that this run ends with."""
        return self._verdicts.get(len(run.steps) + 1, "")

    def pairs(self, events: Iterator[Event], state: RunState) -> Iterator[tuple[Event, Event]]:
        """Each recorded event, and what comes now. Nothing that was recorded is done for the next pair
        before it is asked for."""
        while self._pending:
            state.interrupted = _was_interrupted(self._pending[0])
            state.late = state.late or _was_late(self._pending[0])
            state.recorded = _digest_of(self._pending[0])
            now = next(event for event in events if not isinstance(event, DERIVED))
            yield self._pending.popleft(), now

    def follow(self, events: Iterator[Event], state: RunState) -> Iterator[Event]:
        """What comes after the recorded events.

        Raises:
            UsageError: the run would have gone another way; nothing was called by then.
        """
        for recorded, now in self.pairs(events, state):
            if problem := difference(recorded, now, prompts=self.same_model, limits=False):
                raise UsageError(
                    f"the run can't be resumed: step {getattr(now, 'step', 0)} isn't as recorded. {problem}",
                    "Resume with the tools, the options and the context size that the run began with.",
                )
        self._hand_over(state)
        yield from events

    def _hand_over(self, state: RunState) -> None:
        """From here on it's real: the clock shows what was used up, and so do the counters."""
        state.started = time.monotonic() - self._seconds
        state.usage += self._lost_usage
        state.timings += self._lost_timings
        state.interrupted = False
        state.recorded = None


def _completions(events: Iterable[Event]) -> dict[int, Completion]:
    return {event.step: event.completion for event in events if isinstance(event, TurnCompleted)}


def _observations(events: Iterable[Event]) -> deque[Observation]:
    """What the calls gave, in their order; a last one without an end has an unknown outcome."""
    found: deque[Observation] = deque()
    called: ToolStarted | None = None
    for event in events:
        if isinstance(event, ToolStarted):
            called = event
        elif isinstance(event, ToolEnded) and called:
            found.append(event.observation)
            called = None
    if called:
        found.append(Observation(called.tool, UNKNOWN, ok=False, unknown=called.effects))
    return found


def _refusals(events: Iterable[Event]) -> dict[int, str]:
    """What became of each step's request to call a tool: empty where it was called."""
    found: dict[int, str] = {}
    for event in events:
        if isinstance(event, ToolStarted):
            found[event.step] = ""
        elif isinstance(event, ToolEnded):
            found.setdefault(event.step, event.observation.content)
    return found


def _verdicts(events: Sequence[Event]) -> dict[int, str]:
    """What the checks said against answers, by the step."""
    found = {e.step: e.detail for e in events if isinstance(e, GuardActed) and e.guard == "check"}
    match events[-1]:
        case RunEnded(status="partial", reason=reason, steps=step) if reason not in get_args(Status):
            found[step] = reason
        case ToolEnded(step=step, observation=Observation(tool="finish", content=said)):
            found[step] = said  # the run was killed before it could say that a check did
    return found


def _was_interrupted(coming: Event) -> bool:
    """Whether somebody had asked the run to finish before this event came about."""
    match coming:
        case StepStarted(closing=closing):
            return closing == "interrupted"
        case ToolEnded(observation=observation):
            return observation.content == policy.INTERRUPTED
    return False


def _was_late(coming: Event) -> bool:
    return isinstance(coming, StepStarted) and coming.closing == "deadline"


def _digest_of(coming: Event) -> tuple[int, int, Completion | None]:
    if isinstance(coming, Compacted):
        return coming.left_out, coming.told, coming.summary
    return 0, 0, None


def settings(loop: Loop) -> dict[str, Any]:
    """What holds for a run, by the names of the agent's options where it has them; for `RunStarted`."""
    rules = loop.policy
    return {
        **asdict(loop.budgets),
        **asdict(loop.sampling),
        "evidence_gate": rules.evidence_gate,
        "tool_timeout": loop.toolbox.timeout,
        "max_cost": loop.permission.max_cost,
        "tool_choice": rules.tool_choice,
        "answer_schema": rules.answer_schema,
        "cite": rules.cite,
        "guards": asdict(rules.guards),
        "checks": [getattr(each, "__name__", str(each)) for each in rules.checks],
        "strategy": rules.strategy,
        "summaries": loop.summaries,
    }


def setup(loop: Loop, spelling: Mapping[str, Any], examples: int) -> dict[str, Any]:
    """What an agent was made of, beside its settings; for `RunStarted`."""
    endpoint, kind = loop.endpoint, loop.policy.answer_type
    return {
        "tools": [asdict(spec) for spec in loop.toolbox.specs],
        "spelling": dict(spelling),
        "examples": examples,
        "chat": asdict(endpoint.chat),
        "n_ctx": endpoint.n_ctx,
        "reasoning": None if endpoint.reasoning is None else asdict(endpoint.reasoning),
        "answer": None if kind is None else kind.schema,
    }


def check(trace: Trace, now: RunStarted, other_model: bool = False) -> None:
    """
    Raises:
        UsageError: the run has its answer, or the agent isn't the one that made it.
    """
    before, ended = trace.started, trace.ended
    if ended is not None and (ended.answer is not None or ended.missing is not None):
        raise UsageError(f"the run {before.run_id} has ended ({ended.status}): there is nothing to resume")
    if trace.unknown or trace.version > TRACE_VERSION:
        raise UsageError(f"{trace.path} was written by a newer version of localreact", "Update localreact.")
    if not before.protocol.startswith("react-"):
        raise UsageError(f"a run of the protocol {before.protocol} can't be resumed", "Ask anew.")
    compared = {
        "protocol": [before.protocol, now.protocol],
        "tools": [", ".join(before.tools), ", ".join(now.tools)],
        "grammar": [before.enforced or "none", now.enforced or "none"],
        "strategy": [str(each.settings.get("strategy", "react")) for each in (before, now)],
    }
    for part, name in (("tools", "the tools' parameters"), ("answer", "the answer's type")):
        if part in before.setup:
            compared[name] = [json.dumps(each.setup[part], sort_keys=True) for each in (before, now)]
    if not other_model:
        compared["model"] = [f"{each.model} ({each.fingerprint})" for each in (before, now)]
        compared["chat format"] = [before.chat_format, now.chat_format]
    differing = {what: pair for what, pair in compared.items() if pair[0] != pair[1]}
    if differing:
        parts = [f"{what}: recorded {old}; now {new}" for what, (old, new) in differing.items()]
        hint = "Give the tools and options that it began with."
        if "model" in differing:
            hint += " To go on with another model: --other-model, or other_model=True."
        raise UsageError("the run can't be resumed by this agent.\n" + "\n".join(parts), hint)


class _Endpoint:
    def __init__(self, live: Endpoint, completions: dict[int, Completion]) -> None:
        self._live = live
        self._completions = completions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._live, name)

    def complete(self, *given: Any, **named: Any) -> Generator[Span, None, Completion]:
        recorded = self._completions.pop(named["turn"], None)
        if recorded is None:
            return (yield from self._live.complete(*given, **named))
        yield from recorded.spans
        return recorded


class _Toolbox:
    def __init__(self, live: Toolbox, observations: deque[Observation]) -> None:
        self._live = live
        self._observations = observations

    def __getattr__(self, name: str) -> Any:
        return getattr(self._live, name)

    def __contains__(self, name: str) -> bool:
        return name in self._live

    def __getitem__(self, name: str) -> Tool:
        return self._live[name]

    def execute(self, call: ToolCall, *given: Any, **named: Any) -> Observation:
        if self._observations:
            return self._observations.popleft()
        return self._live.execute(call, *given, **named)


class _Permission:
    """Nobody is asked again about what was decided."""

    def __init__(self, live: Permission, refusals: dict[int, str]) -> None:
        self._live = live
        self._refusals = refusals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._live, name)

    def refusal(self, call: Call, tool: Tool, spent: float) -> str:
        decided = self._refusals.get(call.step)
        return self._live.refusal(call, tool, spent) if decided is None else decided
