"""Where requests come in: one desk per server, which owns the endpoint.

    async with await desk.open(ask) as writing:       # raises what is wrong before any byte is sent
        async for part in writing: ...

`open` checks the request, compiles its grammar and takes a place in the queue. Leaving the block, or closing
`writing`, cancels what is still being written within a step, and frees the place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol

from localreact.endpoints.base import Endpoint
from localreact.serve.ask import Ask
from localreact.serve.parts import Ended, Part


class Writing(Protocol):
    """The replies to one Ask, `n` of them at a time, as parts; the last part of each is its `Ended`.

    Raises, while it is read:
        EndpointError, ProtocolError: the endpoint failed, or (where nothing is enforced) wrote no turn.
        ClientError: 504, the request's time is up; 503, the server is being stopped.
    """

    def __aiter__(self) -> AsyncIterator[Part]: ...

    async def whole(self) -> list[Ended]:
        """All replies, once they are whole, in the order of their choice."""

    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Writing: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...


class Desk(Protocol):
    @property
    def endpoint(self) -> Endpoint: ...

    def endpoint_for(self, engine: str | None) -> Endpoint:
        """The endpoint with that engine (None: its own); all share one model.

        Raises:
            ClientError: no such engine here.
        """

    def model_names(self) -> tuple[str, ...]:
        """What clients may call the model; the first is its name."""

    def place(self, count: int = 1) -> AbstractAsyncContextManager[None]:
        """So many places in the queue, for work of one's own on the endpoint (a run).

        Raises:
            ClientError: 429, the queue is full.
        """

    async def open(self, ask: Ask) -> Writing:
        """
        Raises:
            ClientError: 400, the request can't be served so; 404, another model; 422, it goes beyond a cap;
                429, the queue is full.
            GrammarError, ContextOverflowError, UsageError: the client's fault too.
        """
