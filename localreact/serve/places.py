"""A bounded queue: so many are served at a time, so many more wait, in the order in which they came. On the
event loop's thread only."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from localreact.serve.ask import ClientError

LONGEST_RETRY = 60


class Place:
    """One in the queue; `since` when it is served. `leave` frees it, wherever it is."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self.begin: Callable[[], None] | None = None
        self.since: float | None = None

    def ready(self, begin: Callable[[], None]) -> None:
        """From now on `begin` may be called, at once where nobody is before it."""
        self.begin = begin
        self._places.fill()

    def leave(self) -> None:
        self._places.leave(self)


class Places:
    def __init__(self, parallel: int, queue: int) -> None:
        self.parallel = parallel
        self.queue = queue
        self._waiting: deque[Place] = deque()
        self._active: set[Place] = set()
        self._seconds = 1.0
        """How long one is served, on average of late."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def active(self) -> int:
        return len(self._active)

    def take(self, count: int) -> list[Place]:
        """Places at the end of the queue. Each has to leave.

        Raises:
            ClientError: 429, they don't fit; 422, they never will.
        """
        if count > self.parallel + self.queue:
            raise ClientError(422, f"at most {self.parallel + self.queue} replies at a time", "n", "too_many")
        if len(self._waiting) + len(self._active) + count > self.parallel + self.queue:
            wait = math.ceil(self._seconds * (len(self._waiting) + count) / self.parallel)
            raise ClientError(
                429,
                f"the queue is full: {len(self._active)} requests are being served and "
                f"{len(self._waiting)} wait",
                code="queue_full",
                retry_after=max(1, min(wait, LONGEST_RETRY)),
            )
        taken = [Place(self) for _ in range(count)]
        self._waiting.extend(taken)
        return taken

    def leave(self, place: Place) -> None:
        if place in self._active:
            self._active.remove(place)
            assert place.since is not None
            self._seconds += 0.2 * (time.monotonic() - place.since - self._seconds)
        elif place in self._waiting:
            self._waiting.remove(place)
        self.fill()

    def fill(self) -> None:
        """Begin with those that are ready; one that isn't yet holds up nobody behind it."""
        for place in [each for each in self._waiting if each.begin is not None]:
            if len(self._active) >= self.parallel:
                return
            self._waiting.remove(place)
            self._active.add(place)
            place.since = time.monotonic()
            assert place.begin is not None
            place.begin()
