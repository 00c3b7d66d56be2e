"""Iterating on a thread, for those who await."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def awaited(work: Callable[[threading.Event], T]) -> T:
    """What `work` returns, done on a thread; it is handed what is set when the task is cancelled."""
    cancel = threading.Event()
    try:
        return await asyncio.to_thread(work, cancel)
    except asyncio.CancelledError:
        cancel.set()
        raise


class _End:
    """Nothing more comes."""


async def in_thread(make: Callable[[], Iterable[T]]) -> AsyncIterator[T]:
    """What an iterable gives, made and iterated on a thread of its own. That thread goes on to the end even
    if nobody reads: the caller tells it to stop."""
    items: queue.SimpleQueue[T | BaseException | type[_End]] = queue.SimpleQueue()

    def work() -> None:
        try:
            for item in make():
                items.put(item)
            items.put(_End)
        except BaseException as error:
            items.put(error)

    threading.Thread(target=work, name="localreact run", daemon=True).start()
    while (item := await asyncio.to_thread(items.get)) is not _End:
        if isinstance(item, BaseException):
            raise item
        yield item  # type: ignore[misc]  # not the class that marks the end
