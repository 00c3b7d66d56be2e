"""Traces: one JSON Lines file per run, an event a line, flushed as it happens.

Each line is an object with `event` (the event's class name), `at` (seconds since the epoch) and the
event's fields. A line that begins a sitting (RunStarted) also has `trace`, the version of this format:
a run that is resumed goes on in the same file.

A line is handed to the operating system before the next thing happens, so it outlives a killed
process; that a tool is about to run is on the disk before it does, so it outlives a power cut.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from localreact.errors import TraceError
from localreact.trace.events import Event, RunStarted, SpanWritten, TextDelta, ToolStarted

if sys.platform != "win32":
    import fcntl

TRACE_VERSION = 2
"""1: as far as localreact 0.1.0. 2: a file may hold several sittings; RunStarted has `setup`; floats in
arguments are exact."""


PASSING = (TextDelta, SpanWritten)
"""Events that are for those who watch, and in no trace."""


def as_record(event: Event, at: float) -> dict[str, Any]:
    """An event as a trace's line has it; `at` is when it happened, in seconds since the epoch."""
    version = {"trace": TRACE_VERSION} if isinstance(event, RunStarted) else {}
    return {**version, "event": type(event).__name__, "at": round(at, 6), **_plain(event)}


class TraceWriter:
    """Raises TraceError where the file can't be made or written; a run without its trace doesn't go on.

    With `after`, it goes on after that many bytes of a trace that is there, and after nothing else: what
    a crash cut short is dropped. Where the system has locks, a file has one writer at a time.
    """

    def __init__(self, path: Path, after: int | None = None) -> None:
        self.path = path
        try:
            if after is None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("ab" if after is None else "r+b")
        except OSError as error:
            raise TraceError(
                f"the trace {path} can't be written: {error.strerror}",
                "Give another path with --trace, or make room.",
            ) from error
        try:
            if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                self._lock()
                self._go_on(after) if after is not None else self._file.truncate(0)
        except BaseException:
            self._file.close()
            raise

    def write(self, event: Event) -> None:
        if isinstance(event, PASSING):
            return
        line = json.dumps(as_record(event, time.time()), ensure_ascii=False, default=str) + "\n"
        try:
            # A lone surrogate comes out as \udXXX, which is JSON's own spelling of it.
            self._file.write(line.encode("utf-8", "backslashreplace"))
            self._file.flush()
            if isinstance(event, ToolStarted):
                self._sync()
        except OSError as error:
            raise TraceError(
                f"the trace {self.path} can't be written: {error.strerror}",
                "The run was stopped so that nothing happens unrecorded; what came before is in the trace.",
            ) from error

    def _lock(self) -> None:
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TraceError(
                f"the trace {self.path} is being written by a run that still goes on",
                "Wait until it has ended, or give another path.",
            ) from error
        except OSError:
            pass  # a file system without locks

    def _go_on(self, after: int) -> None:
        if self._file.seek(0, os.SEEK_END) != after:
            raise TraceError(f"the trace {self.path} was written to meanwhile", "Try again.")
        self._file.seek(0)
        whole = self._file.read()
        end = whole.rfind(b"\n") + 1
        if end < len(whole) and _record(whole[end:]) is not None:  # only the newline is missing
            self._file.write(b"\n")
            return
        self._file.truncate(end)
        self._file.seek(end)

    def _sync(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            if error.errno not in (
                errno.EINVAL,
                errno.ENOTSUP,
                errno.EROFS,
            ):  # a pipe or a device has no disk
                raise

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


@dataclass(frozen=True, slots=True)
class Lines:
    """A trace's records, each with its line number; `cut` is how many bytes a last, broken line has, and
    `size` how many the file has."""

    records: tuple[tuple[int, dict[str, Any]], ...]
    cut: int
    size: int


def read_lines(path: Path) -> Lines:
    """The lines of a trace. A last line cut short (by a crash) is left out and counted.

    Raises:
        TraceError: no such file, or a line in the middle that is no event.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(f"the trace {path} can't be read: {error.strerror}") from error
    lines = content.split(b"\n")
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if (record := _record(line)) is not None:
            records.append((number, record))
        elif number == len(lines):
            return Lines(tuple(records), len(line), len(content))
        else:
            raise TraceError(
                f"{path}, line {number} is no event", "This is no trace, or something else wrote to it."
            )
    return Lines(tuple(records), 0, len(content))


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a trace as plain records; `reading.load` has them as events.

    Raises:
        TraceError: no such file, or a line in the middle that is no event.
    """
    return [record for _, record in read_lines(path).records]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("event"), str) else None


def _plain(value: Any) -> Any:
    """Dataclasses as objects; fields that are empty by default and empty here are left out.

    Measured times are rounded; what a model or a tool said is not.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: round(current, 6)
            if each.name.endswith(("_s", "seconds")) and current
            else _plain(current)
            for each in fields(value)
            if (current := getattr(value, each.name)) != () or each.default != ()
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    return value


def path_for(given: Path | None, run_id: str) -> Path | None:
    """Where a run's trace goes: the file that was given, or one of its own in a folder."""
    if given is None:
        return None
    is_folder = given.is_dir() or not (given.exists() or given.suffix)
    return given / f"{run_id}.jsonl" if is_folder else given
