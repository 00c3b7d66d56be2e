"""What servers answer: their content types, JSON, events, and the ways in which they say no."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from localreact.errors import EndpointError, ServerError

MAX_BYTES = 64 << 20
TOO_LONG = 413
"""The status of every error that says: this prompt is too long. HTTP's own for too large a body."""

_TOO_LONG = re.compile(
    "exceed_context_size|maximum context length|longer than the model's context length"
    "|exceed(s|ed)? (the |max )?(available )?context (size|length|window)|context the overflows"
    r"|`inputs` must have less than|`inputs` tokens \+ `max_new_tokens` must be"
)
"""How servers say so: llama.cpp's two, vLLM, SGLang, Ollama, LM Studio, TGI."""

SAID = 300  # characters of a server's message that are passed on

_HINTS = {
    401: "Set the key that the server wants in LOCALREACT_API_KEY (for openai:… also OPENAI_API_KEY).",
    403: "The key in LOCALREACT_API_KEY may not do this.",
    404: "Is the address right, and is the model there? Name it after a #: openai:http://host:8000/v1#model",
    429: "The server is busy: try later, or with fewer runs at once.",
    503: "The server is overloaded, or still loading the model.",
}


def check_type(given: str, wanted: Iterable[str], address: str) -> None:
    """
    Raises:
        EndpointError: an answer of another content type. None at all passes: the parser decides.
    """
    kind = given.partition(";")[0].strip().lower()
    if kind and not any(each in kind for each in wanted):
        raise EndpointError(
            f"{address} answered {kind}, not JSON", "Is that the server's API, or a proxy or a web page?"
        )


def parse(data: bytes, address: str) -> Any:
    """
    Raises:
        EndpointError: not JSON.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        shown = data[:80].decode("utf-8", "replace")
        raise EndpointError(f"{address} answered no JSON: {shown!r}") from error


class _Over:
    """The type of OVER."""


OVER = _Over()
"""What a line is that ends a stream, whatever comes after it."""


def event_of(line: bytes, address: str) -> dict[str, Any] | _Over | None:
    """The event in a line of a stream; None where the line says nothing, OVER where it is the last.

    Raises:
        EndpointError: the line can't be read, or is an error that the server reports.
    """
    line = line.strip()
    field, colon, payload = line.partition(b":")
    if not line or (colon and field in (b"", b"event", b"id", b"retry")):
        return None
    if line.startswith(b"{"):  # an object a line, without SSE around it
        payload = line
    elif field not in (b"data", b"error"):
        shown = line[:80].decode("utf-8", "replace")
        raise EndpointError(f"{address} streamed what is no event: {shown!r}")
    if payload.strip() == b"[DONE]":
        return OVER
    event = parse(payload, address)
    if not isinstance(event, dict):
        raise EndpointError(f"{address} streamed {type(event).__name__} where an object belongs")
    if field == b"error" or event.get("error") or event.get("object") == "error":
        raise refused(address, _status(event), _message(event))
    return event


def message_of(said: bytes, kind: str) -> str:
    """What a refusal says, in a line; empty where it is a web page."""
    try:
        return _message(json.loads(said))
    except (ValueError, RecursionError):
        return "" if "html" in kind else _trim(said.decode("utf-8", "replace"))


def refused(address: str, status: int, message: str) -> ServerError:
    """The error for an answer that isn't a success."""
    if _TOO_LONG.search(message):
        return ServerError(message, "Offer fewer tools, or give the server a larger context.", TOO_LONG)
    text = f"{address} answered {status}" + (f": {message}" if message else "")
    return ServerError(text, _HINTS.get(status, ""), status)


def _message(body: Any) -> str:
    """The message of an error body, of whichever shape: OpenAI's, FastAPI's, Ollama's, TGI's."""
    if isinstance(body, Mapping):
        kind = body.get("type")
        for key in ("error", "message", "detail", "msg"):
            if body.get(key):
                said = _message(body[key])
                marked = kind == "exceed_context_size_error" and key == "message"
                return f"{said} ({kind})" if marked else said
        return _trim(json.dumps(body, ensure_ascii=False))
    if isinstance(body, list):
        return _trim("; ".join(_message(each) for each in body[:3]))
    return _trim(str(body))


def _status(event: Mapping[str, Any]) -> int:
    error = event.get("error")
    code = error.get("code") if isinstance(error, Mapping) else event.get("code")
    return code if isinstance(code, int) and not isinstance(code, bool) else 500


def _trim(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SAID else line[:SAID] + " …"
