"""Where requests come in: one desk per server, which owns the endpoint.

    async with await desk.open(ask) as writing:       # raises what is wrong before any byte is sent
        async for part in writing: ...

`open` checks the request, compiles its grammar and takes a place in the queue. Leaving the block, or closing
`writing`, cancels what is still being written within a step, and frees the place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from localreact.endpoints.base import Endpoint
from localreact.endpoints.llama import ENGINES, LlamaEndpoint
from localreact.endpoints.replicas import ReplicaEndpoint
from localreact.endpoints.server import ServerEndpoint
from localreact.serve import schemas
from localreact.serve.ask import Ask, ClientError
from localreact.serve.errors import BUSY_RETRY_S
from localreact.serve.metrics import Metrics
from localreact.serve.places import Places
from localreact.serve.replies import Prepared
from localreact.serve.settings import Settings
from localreact.serve.turns import Turns
from localreact.serve.writing import Writing

ANY_MODEL = ("default", "localreact")
T = TypeVar("T")


class Cancellable(Protocol):
    def cancel(self) -> None:
        """It ends within a step."""


class Desk:
    def __init__(self, endpoint: Endpoint, settings: Settings, metrics: Metrics | None = None) -> None:
        self.endpoint = endpoint
        self.settings = settings
        self.metrics = metrics or Metrics()
        self.places = Places(settings.parallel, settings.queue)
        self.metrics.watch(self.places)
        if isinstance(endpoint, LlamaEndpoint):
            endpoint.keep_histories(settings.parallel)
        # As many as there are places: those that wait for a server hold up nobody else.
        self._threads = ThreadPoolExecutor(settings.parallel + settings.queue, "localreact prepare")
        self._engines: dict[str, Endpoint] = {}
        self._turns = Turns(self.endpoint_for, settings.max_tokens)
        self.under_way: set[Cancellable] = set()
        """What is told to stop when the server is."""

    def endpoint_for(self, engine: str | None) -> Endpoint:
        """The endpoint with that engine (None: its own); all share one model.

        Raises:
            ClientError: no such engine here.
        """
        if engine is None or (engine == "free" and not self.endpoint.languages):
            return self.endpoint
        if engine not in self._engines:
            if isinstance(self.endpoint, LlamaEndpoint) and engine in ENGINES:
                self._engines[engine] = self.endpoint.with_engine(engine)
            elif isinstance(self.endpoint, ServerEndpoint) and engine == "free":
                self._engines[engine] = self.endpoint.without_grammars()
            else:
                raise ClientError(400, f"there is no engine {engine!r} for {self.endpoint.name}", "engine")
        return self._engines[engine]

    @property
    def engines(self) -> tuple[str, ...]:
        """What `endpoint_for` knows besides None."""
        if isinstance(self.endpoint, LlamaEndpoint):
            return ENGINES
        free = isinstance(self.endpoint, ServerEndpoint) or not self.endpoint.languages
        return ("free",) if free else ()

    def model_names(self) -> tuple[str, ...]:
        """What clients may call the model; the first is its name."""
        names = [self.endpoint.name, self.endpoint.name.rpartition("#")[2]]
        if isinstance(self.endpoint, ServerEndpoint):
            names.append(self.endpoint.model)
        if self.endpoint.card.general_name or self.endpoint.card.package:
            names.append(self.endpoint.card.name)
        return tuple(dict.fromkeys(filter(None, names)))

    def check_model(self, name: str) -> None:
        """
        Raises:
            ClientError: 404, another model than the one that is served.
        """
        if name and name not in (*self.model_names(), *ANY_MODEL):
            raise ClientError(
                404,
                f"there is no model {name!r} here; there is {self.model_names()[0]!r}",
                "model",
                "model_not_found",
            )

    async def open(self, ask: Ask) -> Writing:
        """
        Raises:
            ClientError: 400, the request can't be served so; 404, another model; 422, it goes beyond a cap;
                429, the queue is full.
            GrammarError, ContextOverflowError, UsageError: the client's fault too.
        """
        deadline = time.monotonic() + self.settings.request_seconds
        self.check_model(ask.model)
        schemas.check_counts(ask, self.settings.caps)
        places = self.places.take(ask.n)
        try:
            prepared = await self.in_time(lambda: self._prepare(ask), deadline)
        except BaseException:
            for place in places:
                place.leave()
            raise
        writing = Writing(self._turns, prepared, places, deadline, self.metrics, self.under_way.discard)
        self.under_way.add(writing)
        writing.begin()
        return writing

    async def count(self, ask: Ask) -> int:
        """The tokens of an ask's prompt.

        Raises: what `open` does, but for the queue.
        """
        deadline = time.monotonic() + self.settings.request_seconds
        self.check_model(ask.model)
        schemas.check_counts(ask, self.settings.caps)
        prepared = await self.in_time(lambda: self._prepare(ask), deadline)
        return await asyncio.to_thread(prepared.endpoint.count, prepared.prompt)

    def _prepare(self, ask: Ask) -> Prepared:
        schemas.check(ask, self.settings.caps)
        return self._turns.prepare(ask)

    async def in_time(self, prepare: Callable[[], T], deadline: float) -> T:
        """On a thread, since compiling a grammar takes time; one that takes too long is left to itself. A
        server compiles when it gets to it: then what takes long is no fault of the grammar's.

        Raises:
            ClientError: the time for it is up: 400, to compile it here; 503, for a server to compile it.
        """
        started = time.monotonic()
        elsewhere = isinstance(self.endpoint, ServerEndpoint | ReplicaEndpoint)
        patience = deadline - started if elsewhere else self.settings.compile_seconds
        work = asyncio.get_running_loop().run_in_executor(self._threads, prepare)
        try:
            return await asyncio.wait_for(asyncio.shield(work), patience)
        except asyncio.TimeoutError as error:
            work.add_done_callback(lambda done: done.cancelled() or done.exception())
            if elsewhere:
                said = (
                    f"{self.endpoint.name} is busy: in {patience:.0f} seconds it didn't look at the grammar"
                )
                raise ClientError(503, said, code="busy", retry_after=BUSY_RETRY_S) from error
            raise ClientError(
                400,
                f"the grammar isn't compiled after {self.settings.compile_seconds:g} seconds; simplify the "
                "schemas",
                "tools",
                "not_enforceable",
            ) from error
        finally:
            self.metrics.compiled(time.monotonic() - started)

    def cancel_all(self) -> None:
        """What is being written ends within a step."""
        for work in tuple(self.under_way):
            work.cancel()
