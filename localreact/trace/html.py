"""A trace as one self-contained HTML page: no script, nothing from outside, hostile text stays text."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass
from typing import Any

from localreact.pages import environment_of
from localreact.trace.reading import Trace
from localreact.trace.steps import RecordedStep, Stats, stats_of, status_of, steps_of

# What a browser would obey or hide: control characters, and those that turn the direction of text.
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True)
class Bar:
    """A stretch of the timeline, in percent of the run."""

    kind: str
    left: float
    width: float
    title: str


def page(trace: Trace) -> str:
    """The page of a run, as far as it got."""
    environment = environment_of("localreact.trace")
    environment.filters["visible"] = visible
    environment.filters["pretty"] = lambda value: json.dumps(value, ensure_ascii=False)
    entries = trace.effective
    steps = steps_of(entries)
    stats = stats_of(trace)
    total = max(entries[-1].at - entries[0].at, 1e-9)
    return environment.get_template("run.html").render(
        started=trace.started,
        ended=trace.ended,
        status=status_of(trace),
        when=datetime.datetime.fromtimestamp(trace.entries[0].at, datetime.timezone.utc),
        steps=[(step, _bars(step, total)) for step in steps],
        stats=stats,
        parts=_parts(stats),
        cut=trace.cut,
        unknown=trace.unknown,
    )


def visible(text: Any) -> str:
    """Text with what can't be seen, or would move what can, spelled out."""
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", str(text))


def _parts(stats: Stats) -> list[tuple[str, str, float, float]]:
    """Where the time went: name, kind, seconds, percent."""
    timings = stats.timings
    grammar = min(timings.constraint_s, timings.generate_s)
    parts = [
        ("reading prompts", "read", timings.prompt_s),
        ("writing turns", "write", timings.generate_s - grammar),
        ("grammar", "grammar", grammar),
        ("tools", "tool", stats.tool_s),
        ("the rest", "rest", stats.other_s),
    ]
    total = sum(seconds for _, _, seconds in parts) or 1.0
    return [(name, kind, seconds, 100 * seconds / total) for name, kind, seconds in parts]


def _bars(step: RecordedStep, total: float) -> list[Bar]:
    bars = []

    def bar(kind: str, start: float, end: float) -> None:
        left = min(100.0, 100 * start / total)
        width = max(0.3, min(100 - left, 100 * (end - start) / total))
        bars.append(Bar(kind, round(left, 3), round(width, 3), f"{kind}: {end - start:.3f} s"))

    if step.completion and step.written_at is not None:
        read = min(step.completion.timings.prompt_s, step.written_at - step.began)
        bar("read", step.began, step.began + read)
        bar("write", step.began + read, step.written_at)
    if step.called_at is not None and step.ended_at is not None:
        bar("tool", step.called_at, step.ended_at)
    return bars
