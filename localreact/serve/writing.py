"""The replies to one Ask, each written on a thread of its own, read on the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from types import TracebackType

from localreact.serve.ask import ClientError
from localreact.serve.metrics import Metrics
from localreact.serve.parts import Ended, Part
from localreact.serve.places import Place
from localreact.serve.replies import Prepared
from localreact.serve.turns import Turns

GRACE_S = 1.0
"""An endpoint keeps the deadline itself; so much later it is given up."""


class Writing:
    """`n` replies at a time, as parts; the last part of each is its `Ended`. To be read once.

    Raises, while it is read:
        EndpointError, ProtocolError: the endpoint failed, or (where nothing is enforced) wrote no turn.
        ClientError: 504, the request's time is up; 503, the server is being stopped.
    """

    def __init__(
        self,
        turns: Turns,
        prepared: Prepared,
        places: Sequence[Place],
        deadline: float,
        metrics: Metrics,
        closed: Callable[[Writing], None],
    ) -> None:
        self._turns = turns
        self._prepared = prepared
        self._places = places
        self._deadline = deadline
        self._metrics = metrics
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Part | BaseException] = asyncio.Queue()
        # One for each reply: a stop string ends one of them.
        self._cancels = [threading.Event() for _ in places]
        self._running = len(places)
        self._is_closed = False

    @property
    def notices(self) -> tuple[str, ...]:
        """What the grammar doesn't hold of the client's schemas."""
        return self._prepared.notices

    @property
    def model(self) -> str:
        return self._prepared.endpoint.name

    async def count_prompt(self) -> int:
        """Its tokens, which `Usage` tells only at the end."""
        return await asyncio.to_thread(self._prepared.endpoint.count, self._prepared.prompt)

    def begin(self) -> None:
        for choice, place in enumerate(self._places):
            thread = threading.Thread(
                target=self._write, args=(choice,), name="localreact reply", daemon=True
            )
            place.ready(thread.start)

    async def __aiter__(self) -> AsyncIterator[Part]:
        left = len(self._places)
        while left:
            item = await self._next()
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, Ended):
                left -= 1
                self._metrics.ended(item)
            yield item

    async def _next(self) -> Part | BaseException:
        """
        Raises:
            ClientError: 504, the time is up.
        """
        patience = self._deadline + GRACE_S - time.monotonic()
        try:
            if patience > 0:
                return await asyncio.wait_for(self._items.get(), patience)
        except asyncio.TimeoutError:
            pass
        raise ClientError(504, "the time for the request is up", code="timeout")

    async def whole(self) -> list[Ended]:
        """All replies, once they are whole, in the order of their choice."""
        ended = [part async for part in self if isinstance(part, Ended)]
        return sorted(ended, key=lambda each: each.choice)

    def cancel(self) -> None:
        for cancel in self._cancels:
            cancel.set()

    async def aclose(self) -> None:
        """Doesn't wait: the places are free as soon as the threads have come to their end."""
        self.cancel()
        for place in self._places:
            if place.since is None and not self._is_closed:  # its thread never started
                self._left(place)
        self._is_closed = True

    async def __aenter__(self) -> Writing:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- on the threads

    def _write(self, choice: int) -> None:
        try:
            for part in self._turns.write(self._prepared, choice, self._deadline, self._cancels[choice]):
                self._tell(self._items.put_nowait, part)
        except BaseException as error:
            self._tell(self._items.put_nowait, error)
        finally:
            self._tell(self._left, self._places[choice])

    def _tell(self, what: Callable[..., None], item: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(what, item)

    def _left(self, place: Place) -> None:
        place.leave()
        self._running -= 1
        if not self._running:
            self._closed(self)
