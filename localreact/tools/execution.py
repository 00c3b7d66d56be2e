"""Running a tool's function: never longer than it may take, whatever it does.

A function runs on a thread of its own, because a thread is all that Python can walk away from. What is
walked away from goes on until it ends by itself; its result, its exception and its late prints are
nobody's business any more. To stop early, a tool may look at `current_call().abandoned`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

from localreact.errors import UsageError
from localreact.tools.results import collected
from localreact.types import InnerRun

T = TypeVar("T")

PATIENCE = 0.05  # seconds between two looks at whether the run was cancelled

Gone = Literal["timeout", "deadline", "cancelled"]
"""Why nobody waits for a tool any longer."""


@dataclass(frozen=True, eq=False)
class Outer:
    """What a run that a tool makes has to know of the run that called the tool.

    How many tokens, until when (in `time.monotonic()` seconds) and at what cost it may go on; None is no
    limit. `traces` is the folder of that run's trace, `finishing` tells whether it was asked to come to its
    end. A run puts into `runs` what tells how far it got.
    """

    tokens: int | None = None
    deadline: float | None = None
    cost: float | None = None
    traces: Path | None = None
    finishing: Callable[[], bool] = bool
    runs: list[Callable[[], InnerRun]] = field(default_factory=list)

    @property
    def inner(self) -> tuple[InnerRun, ...]:
        """The runs that were made, as far as they got."""
        return tuple(run() for run in self.runs)


@dataclass(frozen=True, eq=False)
class Call:
    """A call under way. `intent` is the model's thought; `abandoned` is set when nobody waits for the
    result any longer; `outer` is for tools that are agents themselves."""

    tool: str
    arguments: Mapping[str, Any]
    run_id: str = ""
    step: int = 0
    intent: str = ""
    abandoned: threading.Event = field(default_factory=threading.Event)
    outer: Outer = field(default_factory=Outer)

    @property
    def key(self) -> str:
        """Names this call and no other, in a resumed run too: hand it to a service that makes requests
        of one key take effect once."""
        return f"{self.run_id}:{self.step}"


_current: contextvars.ContextVar[Call] = contextvars.ContextVar("localreact_call")


def current_call() -> Call:
    """The call that runs the tool this is called from.

    Raises:
        UsageError: no call is under way.
    """
    try:
        return _current.get()
    except LookupError:
        raise UsageError("no tool call is under way", "Ask from inside a tool that an agent runs.") from None


@dataclass(frozen=True)
class Waiting:
    """How long a result is waited for: `timeout` seconds, and never past the run's own end (`deadline`
    in `time.monotonic()` seconds, `cancel`)."""

    timeout: float
    deadline: float | None = None
    cancel: threading.Event | None = None


class Abandoned(Exception):  # noqa: N818  (no error: nobody waits any longer)
    """Nobody waits for the call any longer; it may still be going on."""

    def __init__(self, why: Gone) -> None:
        super().__init__(why)
        self.why: Gone = why


def run(function: Callable[[], Any], finish: Callable[[Any], T], call: Call, waiting: Waiting) -> T:
    """What `finish` makes of what the function returns, both on the tool's thread.

    An awaitable or an asynchronous generator is seen through to its end first, on an event loop of its
    own; it is cancelled when nobody waits any longer.

    Raises:
        Abandoned: it took too long, or the run is over.
        BaseException: whatever the function raises.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def job() -> None:
        _current.set(call)
        try:
            results.append(finish(_seen_through(function(), call)))
        except BaseException as error:
            errors.append(error)

    context = contextvars.copy_context()
    _submit(lambda: context.run(job), done)
    try:
        why = _wait(done, waiting)
    except BaseException:  # Ctrl-C
        call.abandoned.set()
        raise
    if why is not None:
        call.abandoned.set()
        raise Abandoned(why)
    if errors:
        raise errors[0]
    return results[0]


def _wait(done: threading.Event, waiting: Waiting) -> Gone | None:
    ends = time.monotonic() + waiting.timeout
    while True:
        now = time.monotonic()
        left = min(ends, ends if waiting.deadline is None else waiting.deadline) - now
        if done.wait(max(0.0, min(left, PATIENCE))):
            return None
        if waiting.cancel is not None and waiting.cancel.is_set():
            return "cancelled"
        if left <= PATIENCE and time.monotonic() >= now + left:
            return "timeout" if waiting.deadline is None or ends <= waiting.deadline else "deadline"


def _seen_through(value: Any, call: Call) -> Any:
    if isinstance(value, AsyncIterator):
        value = collected(value)
    if not inspect.isawaitable(value):
        return value
    return asyncio.run(_until_abandoned(value, call.abandoned))


async def _until_abandoned(awaitable: Awaitable[Any], abandoned: threading.Event) -> Any:
    task = asyncio.ensure_future(awaitable)
    while not task.done():
        await asyncio.wait({task}, timeout=PATIENCE)
        if abandoned.is_set():
            task.cancel()
    result = task.result()
    return await collected(result) if isinstance(result, AsyncIterator) else result


# --- threads

Job = tuple[Callable[[], None], threading.Event]

# The thread that was idle last is taken first, so that calls that don't overlap run on one thread: what
# a tool keeps from call to call may belong to it (a database connection, a browser).
_idle: list[SimpleQueue[Job]] = []
_lock = threading.Lock()


def _forget_threads() -> None:
    global _lock
    _lock = threading.Lock()
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)  # a child has none of its parent's threads


def _submit(job: Callable[[], None], done: threading.Event) -> None:
    with _lock:
        jobs = _idle.pop() if _idle else None
    if jobs is None:
        jobs = SimpleQueue()
        threading.Thread(target=_work, args=(jobs,), name="localreact tool", daemon=True).start()
    jobs.put((job, done))


def _work(jobs: SimpleQueue[Job]) -> None:
    while True:
        job, done = jobs.get()
        job()
        with _lock:
            _idle.append(jobs)
        done.set()
        del job, done  # what a call leaves behind is free while the thread waits
