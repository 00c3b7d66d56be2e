"""`/v1/runs`: the agent itself, with the server's own tools. A run's events come as Server-Sent Events, each
under the name that it has in traces; or the whole run, once it has ended.

Without tools (`localreact serve -T …`) there are no runs. Tools that change something aren't offered, unless
the server was started with `--allow-effects`; those that want a person's approval never are: nobody is there
to ask. Whoever may ask may see the runs that are recorded in the user's folder, too, if the server listens on
this machine only; otherwise its own.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.responses import StreamingResponse

from localreact.endpoints.server import ServerEndpoint
from localreact.errors import TraceError
from localreact.native import NATIVE
from localreact.protocols import PROTOCOLS
from localreact.serve.answering import GONE, event_stream, gone
from localreact.serve.ask import ClientError
from localreact.serve.book import KeptRun, RunBook
from localreact.serve.desk import Desk
from localreact.serve.runs_asked import RunRequest, chosen, objection, prepare
from localreact.serve.runs_told import Seen, listed, sse, told
from localreact.serve.settings import LOOPBACK
from localreact.serve.state import State
from localreact.trace import html, store
from localreact.trace.reading import Entry, Trace, load

RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")
SEALED = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def router(state: State) -> APIRouter:
    book = RunBook()
    settings = state.settings
    past = settings.host in LOOPBACK
    routes = APIRouter(prefix="/v1/runs", tags=["runs"])

    def desk() -> Desk:
        if not settings.tools:
            raise ClientError(
                404, "this server makes no runs; start it with tools: localreact serve -T …", code="runs_off"
            )
        return state.desk

    async def seen(run_id: str) -> Seen:
        desk()
        if (run := book.get(run_id)) is not None:
            return run.seen
        trace = await asyncio.to_thread(_recorded, run_id) if past and RUN_ID.fullmatch(run_id) else None
        if trace is not None:
            return Seen.recorded(run_id, trace)
        raise ClientError(404, "there is no such run", "run_id", "run_not_found")

    @routes.post("", response_model=None)
    async def begin(body: RunRequest, request: Request) -> Response | dict[str, Any]:
        """Work on a question."""
        at = desk()
        at.check_model(body.model)
        if not body.question.strip():
            raise ClientError(400, "the question is empty", "question")
        endpoint, tools = at.endpoint_for(body.engine), chosen(settings, body.tools)
        cancelled = threading.Event()
        (place,) = at.places.take(1)
        try:
            deadline = time.monotonic() + settings.request_seconds
            prepared = await at.in_time(lambda: prepare(settings, endpoint, tools, body, cancelled), deadline)
        except BaseException:
            place.leave()
            raise
        run = book.begin(at, place, body.question.strip(), prepared, cancelled)
        if body.stream:
            return event_stream(_Watched(run, body.background), sse(run.follow()))
        if body.background:
            return JSONResponse(told(run.seen), 202)
        await _over(run, request)
        return told(run.seen)

    @routes.get("")
    async def runs(limit: Annotated[int, Query(ge=1, le=200)] = 30) -> dict[str, Any]:
        """The latest runs, the newest first: this server's, and those recorded in the user's folder."""
        desk()
        found = {run.run_id: run.seen for run in book.runs[:limit]}
        for each in await asyncio.to_thread(store.listing, limit) if past else ():
            run_id = each.path.stem
            if each.trace is not None and RUN_ID.fullmatch(run_id) and run_id not in found:
                found[run_id] = Seen.recorded(run_id, each.trace)
        newest = sorted(found.values(), key=lambda run: run.created, reverse=True)
        return {"object": "list", "data": [listed(run) for run in newest[:limit]]}

    @routes.get("/choices")
    async def choices() -> dict[str, Any]:
        """What a run can be asked for here. `enforced` is the language of the grammars, if there are any, and
        `refused` says why a tool isn't offered."""
        at = desk()
        native = NATIVE if isinstance(at.endpoint, ServerEndpoint) else ()
        return {
            "model": at.endpoint.name,
            "level": at.endpoint.level,
            "enforced": next(iter(at.endpoint.languages), ""),
            "protocol": at.endpoint.card.protocol,
            "protocols": [*PROTOCOLS, *native],
            "engines": at.engines,
            "tools": [
                {
                    "name": tool.name,
                    "description": tool.spec.description,
                    "effects": tool.effects,
                    "refused": objection(settings, tool),
                }
                for tool in settings.tools
            ],
        }

    @routes.get("/{run_id}")
    async def one(run_id: str) -> dict[str, Any]:
        """A run, as far as it got."""
        return told(await seen(run_id))

    @routes.get("/{run_id}/events")
    async def events(
        run_id: str,
        after: Annotated[int, Query(ge=-1)] = -1,
        last_event_id: Annotated[int | None, Header(ge=-1)] = None,
    ) -> StreamingResponse:
        """A run's events from the beginning, or after the one of that number (`id`), to its end; of a run
        that goes on, as they come. The connection's end is not the run's."""
        after = after if last_event_id is None else last_event_id
        desk()
        if (run := book.get(run_id)) is not None:
            return event_stream(_Watched(run, True), sse(run.follow(after)))
        entries = (await seen(run_id)).entries

        async def recorded() -> AsyncIterator[tuple[int, Entry]]:
            for number, entry in enumerate(entries):
                if number > after:
                    yield number, entry

        return StreamingResponse(sse(recorded()), media_type="text/event-stream")

    @routes.get("/{run_id}/page")
    async def page(run_id: str) -> Response:
        """A run as one self-contained HTML page."""
        run = await seen(run_id)
        if run.started is None:
            raise ClientError(409, "the run hasn't begun", "run_id", "queued")
        text = await asyncio.to_thread(html.page, run.trace)
        return Response(text, headers=SEALED, media_type="text/html")

    @routes.post("/{run_id}/cancel")
    async def cancel(run_id: str) -> dict[str, Any]:
        """Stop a run within a step. One that has ended stays as it is."""
        if (run := book.get(run_id)) is not None:
            run.cancel()
        return told(await seen(run_id))

    return routes


def _recorded(run_id: str) -> Trace | None:
    path = store.of_run(run_id)
    try:
        return None if path is None else load(path)
    except TraceError:
        return None


async def _over(run: KeptRun, request: Request) -> None:
    """Until it has ended. A client that goes away cancels it."""
    over = asyncio.ensure_future(run.over.wait())
    left = asyncio.ensure_future(gone(request))
    try:
        await asyncio.wait((over, left), return_when=asyncio.FIRST_COMPLETED)
        if not over.done():
            run.cancel()
            raise ClientError(GONE, "the client went away")
    finally:
        over.cancel()
        left.cancel()


@dataclass(frozen=True)
class _Watched:
    """A run whose events somebody is sent."""

    run: KeptRun
    outlives: bool

    async def aclose(self) -> None:
        if not self.outlives:
            self.run.cancel()
