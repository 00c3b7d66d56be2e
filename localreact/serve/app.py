"""The application: routes, and what stands before all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from localreact._version import __version__
from localreact.errors import LocalReactError
from localreact.serve import chat, completions, front, info, messages, ollama, reference, responses, runs
from localreact.serve.ask import ClientError
from localreact.serve.errors import body_of, problem_of
from localreact.serve.guard import Guard
from localreact.serve.state import State

ROUTERS: Sequence[Callable[[State], APIRouter]] = (
    # One line a dialect: a module's `router`.
    info.router,
    chat.router,
    completions.router,
    responses.router,
    messages.router,
    ollama.router,
    runs.router,
    front.router,
    reference.router,
)


def create_app(state: State, loading: Callable[[], None] | None = None) -> FastAPI:
    """`loading` is started (it isn't waited for) once the server listens; at the end the model is freed."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if loading is not None:
            loading()
        yield
        await state.stop()

    app = FastAPI(
        title="localreact",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere; ours is `reference`
        redoc_url=None,
        exception_handlers={
            LocalReactError: _told,
            RequestValidationError: _told,
            HTTPException: _told,
        },
    )
    for router in ROUTERS:
        app.include_router(router(state))
    app.add_middleware(Guard, settings=state.settings, metrics=state.metrics)
    if origins := state.settings.origins:  # outside of the guard, so that its refusals can be read too
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=("GET", "POST"), allow_headers=("*",)
        )
    return app


async def _told(request: Request, error: Exception) -> JSONResponse:
    """An error as the dialect's clients read it."""
    if isinstance(error, RequestValidationError):
        error = _first(error)
    elif isinstance(error, HTTPException):
        error = ClientError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    problem = problem_of(error)
    return JSONResponse(body_of(problem, request.url.path), problem.status, dict(problem.headers))


def _first(error: RequestValidationError) -> ClientError:
    """The first thing that is wrong with a body, without quoting it."""
    first = error.errors()[0]
    at = "/".join(str(each) for each in first["loc"] if each != "body")
    code = "unknown_field" if first["type"] == "extra_forbidden" else None
    said = "this field isn't supported here" if code else first["msg"]
    return ClientError(400, f"{at or 'the body'}: {said}", at or None, code)
