"""One event loop on a thread of its own, for what waits on networks.

Callers are synchronous; a coroutine can be cancelled at any moment, a thread blocked in a read can't.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the background loop. Cancelling the future cancels it there."""
    return asyncio.run_coroutine_threadsafe(work, _loop(os.getpid()))


@functools.cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """The loop of this process: threads don't survive a fork, so a child gets its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="localreact network", daemon=True).start()
    return loop
