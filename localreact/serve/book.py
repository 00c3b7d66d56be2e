"""The runs that a server makes: each on a thread of its own, its events kept for whoever watches, now or
later. A bounded number of those that have ended stays in memory; their traces are in the user's folder."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from bisect import bisect
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from localreact.errors import LocalReactError
from localreact.run import Running
from localreact.serve.desk import Desk
from localreact.serve.places import Place
from localreact.serve.runs_told import Seen
from localreact.trace.events import Event, RunEnded
from localreact.trace.jsonl import PASSING
from localreact.trace.reading import Entry
from localreact.types import Timings, Usage

KEPT = 100
STILL_HERE = 10.0
"""Seconds of silence after which a watcher is told that the run is still there."""

log = logging.getLogger("localreact.serve")


class KeptRun:
    """A run that waits, goes on, or has ended. On the event loop's thread only, but for `cancelled`."""

    def __init__(self, run_id: str, question: str, cancelled: threading.Event, place: Place) -> None:
        self.run_id = run_id
        self.question = question
        self.created = time.time()
        self.cancelled = cancelled
        self.ended: RunEnded | None = None
        self.over = asyncio.Event()
        self.place = place
        self._start: Callable[[], None] | None = None
        self._entries: list[Entry] = []
        self._numbers: list[int] = []
        self._count = 0
        self._changed = asyncio.Event()

    @property
    def seen(self) -> Seen:
        going = "running" if self._start is None else "queued"
        return Seen(self.run_id, self.question, self.created, tuple(self._entries), going)

    def begin(self, start: Callable[[], None]) -> None:
        """Start when its turn in the queue comes."""
        self._start = start
        self.place.ready(self._go)

    def cancel(self) -> None:
        """Within a step. One that still waits ends at once."""
        self.cancelled.set()
        if self._start is not None:
            self.place.leave()
            self._go()

    def _go(self) -> None:
        start, self._start = self._start, None
        if start is not None:
            start()

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._numbers.append(self._count)
        self._count += 1
        if isinstance(entry.event, RunEnded):
            self.ended = entry.event
        self._wake()

    def close(self) -> None:
        """Nothing more comes. What was for those who watched goes: the whole turns are there."""
        kept = [
            (number, entry)
            for number, entry in zip(self._numbers, self._entries, strict=True)
            if not isinstance(entry.event, PASSING)
        ]
        self._numbers = [number for number, _ in kept]
        self._entries = [entry for _, entry in kept]
        self.over.set()
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self, after: int = -1) -> AsyncIterator[tuple[int, Entry] | None]:
        """The events with a number above `after`, as they come, to the last; None now and then in between."""
        numbers, entries = self._numbers, self._entries  # `close` leaves them whole for who has them
        while True:
            changed = self._changed
            start = bisect(numbers, after)
            for number, entry in zip(numbers[start:], entries[start:], strict=True):
                yield number, entry
                after = number
            if changed is not self._changed:
                continue
            if self.over.is_set():
                return
            try:
                await asyncio.wait_for(changed.wait(), STILL_HERE)
            except asyncio.TimeoutError:
                yield None


class RunBook:
    """All runs of a server."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, KeptRun] = OrderedDict()

    @property
    def runs(self) -> list[KeptRun]:
        """The latest first."""
        return list(reversed(self._runs.values()))

    def get(self, run_id: str) -> KeptRun | None:
        return self._runs.get(run_id)

    def begin(
        self, desk: Desk, place: Place, question: str, prepared: Running, cancelled: threading.Event
    ) -> KeptRun:
        """Begin with a run as soon as its place allows it. Leaves the place when the run has ended."""
        run = KeptRun(prepared.run_id, question, cancelled, place)
        self._runs[run.run_id] = run
        self._forget()
        desk.under_way.add(run)
        loop = asyncio.get_running_loop()

        def tell(what: Callable[..., None], *given: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(what, *given)

        def close() -> None:
            place.leave()
            desk.under_way.discard(run)
            if run.ended is not None:
                desk.metrics.run_ended(run.ended)
            run.close()
            self._forget()

        def work() -> None:
            try:
                for event in prepared:
                    tell(run.add, Entry(time.time(), event))
            except BaseException as error:
                tell(run.add, Entry(time.time(), _failed(error)))
            finally:
                tell(close)

        run.begin(threading.Thread(target=work, name="localreact run", daemon=True).start)
        return run

    def _forget(self) -> None:
        over = [run.run_id for run in self._runs.values() if run.over.is_set()]
        for run_id in over[: max(0, len(over) - KEPT)]:
            del self._runs[run_id]


def _failed(error: BaseException) -> Event:
    """How a run ends that was thrown out of its loop. Of a fault of ours nothing is told, not even in the log
    what may hold the question."""
    if isinstance(error, LocalReactError):
        reason = error.message
    else:
        reason = "the server failed; its log says why"
        log.error("%s in a run\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
    return RunEnded(
        status="endpoint_error",
        answer=None,
        missing=None,
        reason=reason,
        steps=0,
        usage=Usage(),
        timings=Timings(),
        seconds=0.0,
    )
