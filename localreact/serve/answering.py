"""From a Writing to an HTTP response: what every dialect does alike."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import Request
from starlette.responses import StreamingResponse

from localreact.serve.desk import Writing
from localreact.serve.parts import Ended


async def whole(request: Request, writing: Writing) -> list[Ended]:
    """All replies of a request that doesn't stream. A client that goes away cancels them; then this raises
    ClientError (499), for nobody to read."""
    raise NotImplementedError


def event_stream(
    writing: Writing, lines: AsyncIterator[str], media_type: str = "text/event-stream"
) -> StreamingResponse:
    """`lines` is what a dialect makes of the parts (`data: …\\n\\n`, or a line of JSON). Whatever ends the
    stream closes the writing; an exception of it has to be told by the dialect, as its last event
    (`errors.problem_of`)."""
    raise NotImplementedError
