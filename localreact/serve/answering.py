"""From a Writing to an HTTP response: what every dialect does alike."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Protocol

from fastapi import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from localreact.serve.ask import ClientError
from localreact.serve.parts import Ended

GONE = 499


class Replies(Protocol):
    """A `Writing`, or several as one."""

    async def whole(self) -> list[Ended]: ...

    async def aclose(self) -> None: ...


async def whole(request: Request, writing: Replies) -> list[Ended]:
    """All replies of a request that doesn't stream. A client that goes away cancels them; then this raises
    ClientError (499), for nobody to read."""
    work = asyncio.ensure_future(writing.whole())
    left = asyncio.ensure_future(gone(request))
    try:
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientError(GONE, "the client went away")
        return work.result()
    finally:
        work.cancel()
        left.cancel()
        await writing.aclose()


async def gone(request: Request) -> None:
    """Until the client goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def one_line(data: Any) -> str:
    """JSON on one line, for whoever splits at all that Unicode calls a line's end, as many clients do."""
    text = json.dumps(data, ensure_ascii=False)
    return text.replace("\x85", "\\u0085").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def data(event: Any) -> str:
    """A server-sent event without a name."""
    return f"data: {one_line(event)}\n\n"


class Closes(Protocol):
    async def aclose(self) -> None: ...


def event_stream(
    writing: Closes, lines: AsyncIterator[str], media_type: str = "text/event-stream"
) -> StreamingResponse:
    """`lines` is what a dialect makes of the parts (`data: …\\n\\n`, or a line of JSON). Whatever ends the
    stream closes the writing; an exception of it has to be told by the dialect, as its last event
    (`errors.problem_of`)."""
    return _Stream(writing, lines, media_type)


class _Stream(StreamingResponse):
    def __init__(self, writing: Closes, lines: AsyncIterator[str], media_type: str) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(lines, headers=headers, media_type=media_type)
        self._writing = writing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # also where the client went away between two lines
            await self._writing.aclose()
