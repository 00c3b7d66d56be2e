"""The application: routes, and what stands before all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import APIRouter, FastAPI

from localreact._version import __version__
from localreact.serve.state import State

ROUTERS: Sequence[Callable[[State], APIRouter]] = (
    # One line a dialect: a module's `router`.
)


def create_app(state: State) -> FastAPI:
    app = FastAPI(title="localreact", version=__version__)
    for router in ROUTERS:
        app.include_router(router(state))
    return app
