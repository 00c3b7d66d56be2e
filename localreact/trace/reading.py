"""Reads traces back into events, those of older versions too.

What a newer version added is passed over: a field unknown here is left out, an event unknown here
comes as `Unknown`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from localreact.errors import TraceError
from localreact.trace.events import (
    Event,
    RunEnded,
    RunStarted,
    StepStarted,
    TurnCompleted,
)
from localreact.trace.jsonl import TRACE_VERSION, read_lines
from localreact.types import Timings, Usage

KINDS = {kind.__name__: kind for kind in get_args(Event)}


@dataclass(frozen=True, slots=True)
class Unknown:
    """An event of a newer version."""

    name: str


@dataclass(frozen=True, slots=True)
class Entry:
    """An event, and when it happened in seconds since the epoch."""

    at: float
    event: Event | Unknown


@dataclass(frozen=True, slots=True)
class Trace:
    """A run as it was recorded.

    `cut` is how many bytes a crash left of a last line, `size` how many the file has.
    """

    path: Path
    version: int
    entries: tuple[Entry, ...]
    cut: int
    size: int

    @property
    def events(self) -> list[Event]:
        """All events that are known here."""
        return [entry.event for entry in self.entries if not isinstance(entry.event, Unknown)]

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of events that aren't known here."""
        return tuple(entry.event.name for entry in self.entries if isinstance(entry.event, Unknown))

    @property
    def started(self) -> RunStarted:
        """How the run first began."""
        return next(event for event in self.events if isinstance(event, RunStarted))

    @property
    def ended(self) -> RunEnded | None:
        """How it ended; None where it still goes on, or was killed."""
        last = self.entries[-1].event
        return last if isinstance(last, RunEnded) else None

    @property
    def seconds(self) -> float:
        """How long it worked, all sittings together."""
        total, begun = 0.0, self.entries[0].at
        for before, entry in zip(self.entries, self.entries[1:], strict=False):
            if isinstance(entry.event, RunStarted):
                total, begun = total + before.at - begun, entry.at
        return total + self.entries[-1].at - begun

    @property
    def effective(self) -> tuple[Entry, ...]:
        """The run as if it had been made in one sitting: without what a resumed run did again."""
        kept: list[Entry] = []
        for entry in self.entries:
            if isinstance(entry.event, RunStarted) and kept:
                del kept[_resumable(kept) :]
            elif not isinstance(entry.event, Unknown):
                kept.append(entry)
        return tuple(kept)

    @property
    def resumable(self) -> tuple[tuple[Event, ...], Usage, Timings]:
        """The events that a resumed run can build on, and what turns took that came to nothing."""
        entries = list(self.effective)
        end = _resumable(entries)
        kept = tuple(entry.event for entry in entries[:end] if not isinstance(entry.event, Unknown))
        known = {id(event) for event in kept}
        turns = (event for event in self.events if isinstance(event, TurnCompleted))
        lost = [event.completion for event in turns if id(event) not in known]
        usage = functools.reduce(lambda sum_, each: sum_ + each.usage, lost, Usage())
        timings = functools.reduce(lambda sum_, each: sum_ + each.timings, lost, Timings())
        return kept, usage, timings


def _resumable(entries: list[Entry]) -> int:
    """How many of the entries led to something: a turn that was broken off is made anew."""
    end = len(entries)
    if end and isinstance(entries[end - 1].event, RunEnded):
        end -= 1
    if end and isinstance(last := entries[end - 1].event, TurnCompleted):
        end -= last.completion.stop in ("deadline", "cancelled")
    if end and isinstance(entries[end - 1].event, StepStarted):
        end -= 1
    return end


def load(path: Path) -> Trace:
    """
    Raises:
        TraceError: the file can't be read or holds no run; the message names the line.
    """
    lines = read_lines(path)
    if not lines.records or lines.records[0][1]["event"] != "RunStarted":
        raise TraceError(f"{path} holds no run", "A trace begins with RunStarted.")
    if not isinstance(lines.records[0][1].get("trace"), int):
        raise TraceError(f"{path}, line 1 has no version", 'A trace begins with {"trace": …, "event": …}.')
    versions = (record.get("trace") for _, record in lines.records)
    version = max(each for each in versions if isinstance(each, int))
    entries = tuple(_entry(path, number, record, version) for number, record in lines.records)
    if isinstance(entries[0].event, Unknown):
        raise TraceError(f"{path} is of a newer version ({version}) that can't be read", "Update localreact.")
    return Trace(path, version, entries, lines.cut, lines.size)


def _entry(path: Path, number: int, record: dict[str, Any], version: int) -> Entry:
    name, at = record["event"], record.get("at")
    if not isinstance(at, int | float):
        raise TraceError(f"{path}, line {number}: {name} has no time (`at`)")
    if name not in KINDS:
        return Entry(float(at), Unknown(name))
    try:
        return Entry(float(at), _adapter(name).validate_python(record))
    except ValidationError as error:
        if version > TRACE_VERSION:
            return Entry(float(at), Unknown(name))
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"{path}, line {number}: {name}.{where}: {first['msg']}") from error


@functools.cache
def _adapter(name: str) -> TypeAdapter[Event]:
    return TypeAdapter(KINDS[name])


def retokenized(event: Event) -> Event:
    """The event without token ids, for a model that has others."""
    if not isinstance(event, TurnCompleted):
        return event
    spans = tuple(replace(span, tokens=()) for span in event.completion.spans)
    return replace(event, completion=replace(event.completion, tokens=(), spans=spans))
