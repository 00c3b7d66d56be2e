"""Runs as clients of `/v1/runs` are told of them: in a list, whole, or event by event."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from localreact.trace.events import Event, RunEnded, RunStarted, ToolEnded
from localreact.trace.jsonl import PASSING, TRACE_VERSION, as_record
from localreact.trace.reading import Entry, Trace
from localreact.trace.steps import RecordedStep, steps_of
from localreact.types import Finish, ToolCall


@dataclass(frozen=True)
class Seen:
    """A run as far as it got. `going` says how it goes where its events don't say how it ended: `queued`,
    `running`, or `unfinished`, where nobody knows of it but its trace."""

    run_id: str
    question: str
    created: float
    entries: tuple[Entry, ...]
    going: str

    @classmethod
    def recorded(cls, run_id: str, trace: Trace) -> Seen:
        return cls(run_id, trace.started.question, trace.entries[0].at, trace.effective, "unfinished")

    @property
    def started(self) -> RunStarted | None:
        first = self.entries[0].event if self.entries else None
        return first if isinstance(first, RunStarted) else None

    @property
    def ended(self) -> RunEnded | None:
        last = self.entries[-1].event if self.entries else None
        return last if isinstance(last, RunEnded) else None

    @property
    def trace(self) -> Trace:
        """As if it had been read from a file."""
        kept = tuple(entry for entry in self.entries if not isinstance(entry.event, PASSING))
        return Trace(Path(self.run_id), TRACE_VERSION, kept, 0, 0)


def listed(run: Seen) -> dict[str, Any]:
    """One line of a list."""
    began, ended = run.started, run.ended
    return {
        "id": run.run_id,
        "object": "run",
        "created": int(run.created),
        "status": ended.status if ended else run.going,
        "question": run.question,
        "model": began.model if began else None,
        "protocol": began.protocol if began else None,
        "enforced": began.enforced if began else None,
        "answer": ended.answer if ended else None,
    }


def told(run: Seen) -> dict[str, Any]:
    """The whole run. `value` is the answer as its schema has it, where one was asked for."""
    began, ended, steps = run.started, run.ended, steps_of(run.entries)
    last = steps[-1].turn if steps else None
    found = {
        **listed(run),
        "value": last.value if ended and ended.answer is not None and isinstance(last, Finish) else None,
        "level": began.level if began else None,
        "tools": began.tools if began else None,
        "missing": ended.missing if ended else None,
        "reason": ended.reason if ended else "",
        "evidence": [asdict(each) for each in ended.evidence] if ended else [],
        "steps": [_step(each) for each in steps],
    }
    if ended:
        found |= {
            "usage": {**asdict(ended.usage), "generated": ended.usage.generated},
            "timings": asdict(ended.timings),
            "seconds": ended.seconds,
        }
    return found


def _step(step: RecordedStep) -> dict[str, Any]:
    found: dict[str, Any] = {"step": step.number, "thought": step.turn.thought if step.turn else None}
    if isinstance(step.turn, ToolCall):
        found |= {"tool": step.turn.tool, "arguments": step.turn.arguments}
    elif isinstance(step.turn, Finish):
        found |= {"answer": step.turn.answer, "missing": step.turn.missing}
    if step.refused:
        found["refused"] = step.refused
    if step.ended is not None:
        seen = step.ended.observation
        found["observation"] = {
            "content": step.shown,
            "ok": seen.ok,
            "executed": seen.executed,
            "unknown": seen.unknown,
            "seconds": step.ended.seconds,
        }
    return found


async def sse(entries: AsyncIterator[tuple[int, Entry] | None]) -> AsyncIterator[str]:
    """Server-Sent Events, a run's events under their numbers; None is a sign of life."""
    async for each in entries:
        if each is None:
            yield ": still here\n\n"
        elif isinstance(event := each[1].event, Event):
            data = json.dumps(as_record(_without_paths(event), each[1].at), default=str)
            yield f"id: {each[0]}\nevent: {type(event).__name__}\ndata: {data}\n\n"


def _without_paths(event: Event) -> Event:
    """Where traces lie is nothing to clients: they name runs by their ids."""
    if not isinstance(event, ToolEnded) or not event.observation.inner:
        return event
    inner = tuple(replace(run, trace="") for run in event.observation.inner)
    return replace(event, observation=replace(event.observation, inner=inner))
