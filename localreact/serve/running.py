"""Running the server: the socket first, then the model in the background, until somebody stops it."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from localreact.endpoints.base import Endpoint
from localreact.errors import UsageError
from localreact.serve.app import create_app
from localreact.serve.settings import LOOPBACK, Settings
from localreact.serve.state import State

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s*]+")
_LOG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {
        "uvicorn.error": {"handlers": ["stderr"], "level": "WARNING"},
        "uvicorn.access": {"handlers": ["stderr"], "level": "INFO"},
        "localreact.serve": {"handlers": ["stderr"], "level": "INFO"},
    },
}


def run(
    settings: Settings,
    open_endpoint: Callable[[], Endpoint],
    tell: Callable[[str], None],
    quiet: bool = False,
) -> None:
    """Serve until a signal. Requests under way then have some seconds to end; a second signal ends them.

    Raises:
        UsageError: it can't listen there, or mustn't without a key; or an origin is none.
        LocalReactError: the model can't be loaded.
    """
    if settings.host not in LOOPBACK and not settings.api_key:
        raise UsageError(
            f"on {settings.host} others can reach this server, so it needs a key",
            "Set LOCALREACT_SERVE_KEY (or --api-key), or listen on this machine only: --host 127.0.0.1.",
        )
    for origin in settings.origins:
        if not _ORIGIN.fullmatch(origin):
            raise UsageError(
                f"{origin!r} is no origin of pages", "Give scheme, host and port: http://localhost:3000."
            )
    listening = _listen(settings.host, settings.port)
    state = State(settings)

    async def load() -> None:
        await state.load(open_endpoint)
        if state.failure is not None:
            server.should_exit = True
        elif state.loaded is not None:
            for notice in state.loaded.endpoint.notices:
                tell(notice)
            tell(f"{state.loaded.endpoint.name} is loaded; replies are {state.loaded.endpoint.level}")

    loads: list[asyncio.Task[None]] = []
    app = create_app(state, lambda: loads.append(asyncio.ensure_future(load())))
    config = uvicorn.Config(
        app,
        log_config=_LOG,
        access_log=not quiet,
        timeout_graceful_shutdown=round(settings.shutdown_seconds),
        server_header=False,
    )
    server = uvicorn.Server(config)
    host, port = listening.getsockname()[:2]
    tell(f"listening on http://{f'[{host}]' if ':' in host else host}:{port} (Ctrl-C stops)")
    with suppress(KeyboardInterrupt), listening:  # uvicorn raises the signal again once it has stopped
        server.run(sockets=[listening])
    logging.shutdown()
    if state.failure is not None:
        raise state.failure


def _listen(host: str, port: int) -> socket.socket:
    """
    Raises:
        UsageError: nobody can listen there, or somebody does.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
    except OSError as error:
        raise UsageError(
            f"can't listen on {host}: {error.strerror}", "Give an address of this machine."
        ) from error
    try:
        if sys.platform != "win32":  # there it would let two servers share a port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
        listening.set_inheritable(True)
    except OSError as error:
        listening.close()
        raise UsageError(
            f"can't listen on {host}:{port}: {error.strerror}", "Take another port: --port N (0: any)."
        ) from error
    return listening
