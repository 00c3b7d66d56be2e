"""JSON over HTTP, as all servers here speak it: one answer, or a stream of events.

Requests are repeated a bounded number of times, and only until the first byte of an answer: a
completion has no side effects, but half of one must never be glued to another. Deadlines and
cancels end a request at once, whatever it waits for.
"""

from __future__ import annotations

import asyncio
import copy
import json
import queue
import random
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Mapping
from concurrent.futures import Future, wait
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import httpx2

from localreact._version import __version__
from localreact.endpoints import background
from localreact.endpoints.answers import MAX_BYTES, OVER, check_type, event_of, message_of, parse, refused
from localreact.errors import EndpointError, ServerError
from localreact.types import Limits

T = TypeVar("T")
Stopped = Literal["deadline", "cancelled"]

PASSING = (429, 502, 503, 504)
"""Statuses that say: later, perhaps."""

TIMEOUT_TRIES = 2  # more of the same work doesn't help a server that can't keep up

TRYING = 0.05  # seconds between two looks at deadline and cancel
CONNECTIONS = 64  # open at once to one server


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds, and how often to try. Waits between tries double; a server's
    `Retry-After` counts, unless it is longer than `longest_wait`: that is an error at once."""

    tries: int = 6
    first_wait: float = 0.5
    longest_wait: float = 30.0
    connect: float = 5.0
    idle: float = 120.0
    """Without a byte: the time to evaluate a long prompt on a slow machine."""


QUICK = Patience(tries=2, first_wait=0.2, longest_wait=2, connect=3, idle=15)
"""For what a server answers without a model: its properties, token ids."""


class Transport:
    """One server. `key` goes into requests and nowhere else."""

    def __init__(self, address: str, key: str | None = None, patience: Patience | None = None) -> None:
        self.address = address.rstrip("/")
        self.patience = patience or Patience()
        self._key = key
        headers = {"user-agent": f"localreact/{__version__}"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        self._client = httpx2.AsyncClient(
            headers=headers,
            limits=httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
        )
        self.close = weakref.finalize(self, _close, self._client)
        self.close.atexit = False

    def at(self, address: str) -> Transport:
        """The same server under another address, over the same connections."""
        other = copy.copy(self)
        other.address = address.rstrip("/")
        return other

    def get(self, path: str, limits: Limits | None = None, patience: Patience | None = None) -> Any:
        """The JSON that a GET gives.

        Raises:
            ServerError: the server refused, or answered something else.
            EndpointError: it can't be reached, or a limit stopped the waiting.
        """
        return self._wait(self._whole("GET", path, None, patience or self.patience), limits)

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        limits: Limits | None = None,
        patience: Patience | None = None,
    ) -> Any:
        """The JSON that a POST gives. Raises as `get` does."""
        return self._wait(self._whole("POST", path, body, patience or self.patience), limits)

    def events(
        self, path: str, body: Mapping[str, Any], limits: Limits
    ) -> Generator[dict[str, Any], None, Stopped | None]:
        """The events of a streamed answer: server-sent events, or a JSON object a line. Returns what
        stopped it before its end, if something did. Raises as `get` does.
        """
        inbox: queue.SimpleQueue[dict[str, Any] | BaseException | None] = queue.SimpleQueue()
        pump = background.submit(self._pump(path, body, inbox.put))
        try:
            while (stopped := stopped_by(limits)) is None:
                try:
                    event = inbox.get(timeout=_pause(limits))
                except queue.Empty:
                    continue
                if event is None:
                    return None
                if isinstance(event, BaseException):
                    raise event
                yield event
            return stopped
        finally:
            pump.cancel()

    # --- on the caller's thread

    def _wait(self, work: Coroutine[Any, Any, T], limits: Limits | None) -> T:
        future: Future[T] = background.submit(work)
        try:
            while not wait([future], _pause(limits)).done:
                if limits is not None and (stopped := stopped_by(limits)) is not None:
                    raise StoppedError(stopped)
            return future.result()
        finally:
            future.cancel()

    # --- on the background loop

    async def _whole(self, method: str, path: str, body: Mapping[str, Any] | None, patience: Patience) -> Any:
        try:
            async with self._answer(method, path, body, patience) as (response, chunks):
                check_type(response.headers.get("content-type", ""), ("json",), self.address + path)
                return parse(b"".join([chunk async for chunk in chunks]), self.address + path)
        except EndpointError:
            raise
        except Exception as error:  # whatever it is, a run has to end with it
            raise self._unexpected(path, error) from error

    async def _pump(
        self, path: str, body: Mapping[str, Any], put: Callable[[dict[str, Any] | BaseException | None], None]
    ) -> None:
        try:
            async with self._answer("POST", path, body, self.patience) as (response, chunks):
                kind = response.headers.get("content-type", "")
                check_type(kind, ("event-stream", "json"), self.address + path)
                if kind.partition(";")[0].strip().endswith("/json"):  # all at once, however it is laid out
                    whole = b"".join([chunk async for chunk in chunks])
                    lines = _lines(_chain(b"data: " + whole.replace(b"\n", b" ")))
                else:
                    lines = _lines(chunks)
                async for line in lines:
                    event = event_of(line, self.address + path)
                    if event is OVER:
                        break
                    if isinstance(event, dict):
                        put(event)
            put(None)
        except asyncio.CancelledError:
            raise
        except EndpointError as error:
            put(error)
        except Exception as error:  # whatever it is, the caller must hear of it
            put(self._unexpected(path, error))

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None, patience: Patience
    ) -> AsyncIterator[tuple[httpx2.Response, AsyncGenerator[bytes, None]]]:
        """A successful answer, of which the first byte is there, as chunks."""
        # Many runs at once may wait long for a connection: that says nothing of the server.
        timeout = httpx2.Timeout(patience.idle, connect=patience.connect, pool=None)
        content, kind = None, {}
        if body is not None:  # a lone surrogate, from a file's name say, can't be sent as it is
            content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
            kind = {"content-type": "application/json"}
        begun = False  # from here on errors are the reader's, and final
        for attempt in range(1, patience.tries + 1):
            request = self._client.build_request(
                method, self.address + path, content=content, headers=kind, timeout=timeout
            )
            try:
                response = await self._client.send(request, stream=True)
                try:
                    if response.status_code != 200:
                        raise await self._refusal(response, path)
                    async with aclosing(self._chunks(response, path)) as chunks:
                        first = await anext(chunks, b"")
                        begun = True
                        yield response, _chain(first, chunks)
                        return
                finally:
                    await response.aclose()
            except ServerError as error:
                if begun or error.status not in PASSING or attempt == patience.tries:
                    raise
                wait = _wait_of(error, attempt, patience)
            except httpx2.HTTPError as error:
                timed_out = isinstance(error, httpx2.ReadTimeout)
                if attempt == (min(TIMEOUT_TRIES, patience.tries) if timed_out else patience.tries):
                    raise self._unreachable(error, attempt, patience) from error
                wait = _backoff(attempt, patience)
            await asyncio.sleep(wait)

    async def _chunks(self, response: httpx2.Response, path: str) -> AsyncGenerator[bytes, None]:
        """The body. Before its first byte errors pass, for another try; after it they are final."""
        arrived = 0
        try:
            async for chunk in response.aiter_bytes():
                arrived += len(chunk)
                if arrived > MAX_BYTES:
                    raise EndpointError(f"{self.address}{path} answered more than {MAX_BYTES >> 20} MiB")
                if chunk:
                    yield chunk
        except httpx2.HTTPError as error:
            if not arrived:
                raise
            raise EndpointError(
                f"the answer of {self.address}{path} broke off after {arrived} bytes: "
                f"{self._clean(str(error)) or type(error).__name__}",
                "Look at the server's log; nothing of this turn was acted on.",
            ) from error

    async def _refusal(self, response: httpx2.Response, path: str) -> ServerError:
        said = b""
        async for chunk in response.aiter_bytes():
            said += chunk
            if len(said) > 1 << 16:
                break
        message = self._clean(message_of(said, response.headers.get("content-type", "")))
        if response.is_redirect:
            message = f"redirects to {response.headers.get('location', 'nowhere')}"
        error = refused(self.address + path, response.status_code, message)
        error.retry_after = response.headers.get("retry-after", "")
        return error

    def _unreachable(self, error: httpx2.HTTPError, attempt: int, patience: Patience) -> EndpointError:
        tries = f" ({attempt} tries)" if attempt > 1 else ""
        if isinstance(error, httpx2.ReadTimeout):
            return EndpointError(
                f"{self.address} gave no answer within {patience.idle:g} seconds{tries}",
                "Is it overloaded, or still loading the model?",
            )
        return EndpointError(
            f"{self.address} can't be reached{tries}: {self._clean(str(error)) or type(error).__name__}",
            "Is the server running, and the address right?",
        )

    def _unexpected(self, path: str, error: Exception) -> EndpointError:
        return EndpointError(f"{self.address}{path}: {type(error).__name__}: {self._clean(str(error))}")

    def _clean(self, text: str) -> str:
        """What others said, without the key that some of them repeat."""
        return text.replace(self._key, "***") if self._key else text


class StoppedError(EndpointError):
    """A limit ended the waiting for an answer."""

    def __init__(self, stopped: Stopped) -> None:
        super().__init__(f"stopped while waiting for the server: {stopped}")
        self.stopped = stopped


def stopped_by(limits: Limits) -> Stopped | None:
    """Which limit says stop now, if one does."""
    if limits.cancel is not None and limits.cancel.is_set():
        return "cancelled"
    if limits.deadline is not None and time.monotonic() >= limits.deadline:
        return "deadline"
    return None


def _pause(limits: Limits | None) -> float:
    if limits is None or limits.deadline is None:
        return TRYING
    return max(0.001, min(TRYING, limits.deadline - time.monotonic()))


def _wait_of(error: ServerError, attempt: int, patience: Patience) -> float:
    """Seconds until the next try, as the server asks.

    Raises:
        ServerError: that is too long.
    """
    try:
        asked = float(error.retry_after)
    except ValueError:  # none, or a date
        return _backoff(attempt, patience)
    if asked > patience.longest_wait:
        raise ServerError(f"{error.message}; it asks to wait {asked:g} seconds", error.hint, error.status)
    return max(asked, 0.0)


def _backoff(attempt: int, patience: Patience) -> float:
    doubled = patience.first_wait * 2.0 ** (attempt - 1)
    return min(patience.longest_wait, doubled) * random.uniform(0.8, 1.2)


async def _chain(first: bytes, rest: AsyncIterator[bytes] | None = None) -> AsyncGenerator[bytes, None]:
    if first:
        yield first
    if rest is not None:
        async for chunk in rest:
            yield chunk


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Lines, cut at newlines only: JSON strings hold other line separators."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


def _close(client: httpx2.AsyncClient) -> None:
    background.submit(client.aclose())
