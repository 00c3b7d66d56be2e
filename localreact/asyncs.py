"""Runs on a thread, for those who await."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Protocol, TypeVar

from localreact.run import Run, Running
from localreact.trace.events import Event

T = TypeVar("T")


class Runs(Protocol):
    """What runs questions and blocks until they are answered."""

    def run(
        self, question: str, cancel: threading.Event | None = None, *, tool_choice: str, answer: Any
    ) -> Run: ...

    def stream(
        self, question: str, cancel: threading.Event | None = None, *, tool_choice: str, answer: Any
    ) -> Running: ...


class AsyncTwins:
    """`run` and `stream` for those who await."""

    async def arun(self: Runs, question: str, *, tool_choice: str = "auto", answer: Any = None) -> Run:
        """`run` without blocking the event loop. Cancelling the task cancels the run."""
        cancel = threading.Event()
        try:
            return await asyncio.to_thread(self.run, question, cancel, tool_choice=tool_choice, answer=answer)
        except asyncio.CancelledError:
            cancel.set()
            raise

    async def astream(
        self: Runs, question: str, *, tool_choice: str = "auto", answer: Any = None
    ) -> AsyncIterator[Event]:
        """`stream` without blocking the event loop. Closing the iterator cancels the run."""
        cancel = threading.Event()
        try:
            async for event in in_thread(
                lambda: self.stream(question, cancel, tool_choice=tool_choice, answer=answer)
            ):
                yield event
        finally:
            cancel.set()


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
