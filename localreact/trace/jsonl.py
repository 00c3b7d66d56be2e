"""Traces: one JSON Lines file per run, an event a line, flushed as it happens.

Each line is an object with `event` (the event's class name), `at` (seconds since the epoch) and the
event's fields. The first line also has `trace`, the version of this format.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from localreact.errors import TraceError
from localreact.trace.events import Event, TextDelta

TRACE_VERSION = 1


class TraceWriter:
    """Raises TraceError where the file can't be made or written; a run without its trace doesn't go on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._first = True
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8", errors="replace")
        except OSError as error:
            raise TraceError(
                f"the trace {path} can't be written: {error.strerror}",
                "Give another path with --trace, or make room.",
            ) from error

    def write(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            return
        record: dict[str, Any] = {"trace": TRACE_VERSION} if self._first else {}
        record |= {"event": type(event).__name__, "at": round(time.time(), 6), **_plain(event)}
        self._first = False
        try:
            self._file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
            self._file.flush()
        except OSError as error:
            raise TraceError(
                f"the trace {self.path} can't be written: {error.strerror}",
                "The run was stopped so that nothing happens unrecorded; what came before is in the trace.",
            ) from error

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise TraceError(f"the trace {self.path} can't be closed: {error.strerror}") from error

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a trace. A last line cut short (by a crash) is left out.

    Raises:
        TraceError: no such file, or a line in the middle that is no event.
    """
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"the trace {path} can't be read: {error}") from error
    records = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise TraceError(f"{path}, line {number} is no event: {error}") from error
        if not isinstance(record, dict) or "event" not in record:
            raise TraceError(f"{path}, line {number} is no event")
        records.append(record)
    return records


def _plain(value: Any) -> Any:
    """Dataclasses as objects; fields that are empty by default and empty here are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: _plain(current)
            for each in fields(value)
            if (current := getattr(value, each.name)) != () or each.default != ()
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return round(value, 6) if value == value and abs(value) != float("inf") else str(value)
    return value
