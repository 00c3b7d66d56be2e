"""What stands before all routes: who may ask, from where, and how much; and that no failure tells more than
that it is one.

A request whose Host isn't one of ours, or whose Origin isn't the very host and port that it goes to, comes
through a page that somebody else wrote (DNS rebinding, cross-site requests, another server of this machine's)
and is refused, unless the page's origin was admitted (`--allow-origin`). A body is read whole, within its
limits, before any route.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import time
import traceback
from ipaddress import ip_address
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localreact.serve import front
from localreact.serve.ask import ClientError
from localreact.serve.errors import body_of, problem_of
from localreact.serve.metrics import Metrics
from localreact.serve.settings import LOOPBACK, Settings

PUBLIC = ("/health", "/docs", "/openapi.json", *front.PATHS)
"""Paths that tell nothing of this server's, and so need no key: the page asks for it."""

BODY_SECONDS = 30.0
MAX_DEPTH = 96

log = logging.getLogger("localreact.serve")


class Guard:
    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            try:
                self._admit(scope)
                receive = await self._body(scope, receive)
            except ClientError as error:
                await _refuse(error, scope, receive, sending)
            else:
                await self._app(scope, receive, sending)
        except Exception as error:
            # Not its message, which may hold what a client wrote.
            where = "".join(traceback.format_tb(error.__traceback__))
            log.error("%s in %s\n%s", type(error).__name__, scope["path"], where)
            if status:
                raise ConnectionAbortedError from None  # half an answer mustn't look like a whole one
            await _refuse(error, scope, receive, sending)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.answered(route, status, time.monotonic() - started)
            if status >= 400:
                self._metrics.failed("server" if status >= 500 else "client")

    def _admit(self, scope: Scope) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size > self._settings.caps.header_bytes:
            raise ClientError(431, f"the headers have more than {self._settings.caps.header_bytes} bytes")
        host = headers.get(b"host", "")
        if not self._is_ours(host):
            raise ClientError(
                403,
                "the Host header names no host of this server; start it with --allow-host NAME to admit one",
                code="host_not_allowed",
            )
        origin = headers.get(b"origin")
        own = (f"http://{host}".lower(), f"https://{host}".lower(), *self._settings.origins)
        if origin is not None and origin.lower() not in own:
            raise ClientError(
                403,
                "other sites' pages aren't served; start the server with --allow-origin ORIGIN to admit one",
                code="origin_not_allowed",
            )
        key = self._settings.api_key
        if key and scope["path"] not in PUBLIC:
            scheme, _, given = headers.get(b"authorization", "").partition(" ")
            if scheme.lower() != "bearer":
                given = headers.get(b"x-api-key", "")
            if not hmac.compare_digest(given.strip().encode("latin-1"), key.encode()):
                raise ClientError(
                    401, "a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key"
                )

    def _is_ours(self, host: str) -> bool:
        name = _without_port(host).lower()
        settings = self._settings
        if name in (*LOOPBACK, settings.host.lower(), *(each.lower() for each in settings.hosts)):
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return settings.host not in LOOPBACK  # a bare address can't be rebound

    async def _body(self, scope: Scope, receive: Receive) -> Receive:
        """The body, whole and checked, for the routes to read; then what comes after it."""
        caps, data, more = self._settings.caps, b"", True
        while more:
            try:
                message = await asyncio.wait_for(receive(), BODY_SECONDS)
            except asyncio.TimeoutError as error:
                raise ClientError(408, "the body didn't come") from error
            if message["type"] == "http.disconnect":
                raise ClientError(499, "the client went away")
            data += message.get("body", b"")
            more = message.get("more_body", False)
            if len(data) > caps.body_bytes:
                raise ClientError(
                    413, f"the body has more than {caps.body_bytes} bytes", code="body_too_large"
                )
        if data:
            _check_json(data)
            headers = [each for each in scope["headers"] if each[0] != b"content-type"]
            scope["headers"] = [*headers, (b"content-type", b"application/json")]  # curl -d says otherwise
        whole: Message | None = {"type": "http.request", "body": data, "more_body": False}

        async def replay() -> Message:
            nonlocal whole
            if whole is not None:
                message, whole = whole, None
                return message
            return await receive()

        return replay


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _check_json(data: bytes) -> None:
    """
    Raises:
        ClientError: 400, what no route could make sense of, or would stumble over.
    """
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # half a surrogate is no text
    except UnicodeError:
        raise ClientError(400, "the body holds text that isn't UTF-8", code="invalid_json") from None
    except (ValueError, RecursionError) as error:
        said = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise ClientError(400, f"the body isn't JSON: {said}", code="invalid_json") from None
    if _deeper(value, MAX_DEPTH):
        raise ClientError(400, f"the body is nested deeper than {MAX_DEPTH} levels", code="invalid_json")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no value")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:20]} is out of range")
    return value


def _deeper(value: Any, most: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    if not most:
        return True
    return any(_deeper(each, most - 1) for each in (value.values() if isinstance(value, dict) else value))


async def _refuse(error: BaseException, scope: Scope, receive: Receive, send: Send) -> None:
    problem = problem_of(error)
    response = JSONResponse(body_of(problem, scope["path"]), problem.status, dict(problem.headers))
    await response(scope, receive, send)
