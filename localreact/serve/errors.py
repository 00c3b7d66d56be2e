"""What went wrong, told in each dialect's shape: whose fault it is, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from localreact.errors import (
    ContextOverflowError,
    EndpointError,
    GrammarError,
    LocalReactError,
    ProtocolError,
    ServerError,
    UsageError,
)
from localreact.serve.ask import ClientError

BUSY_RETRY_S = 10
"""When to ask again where a server behind this one is busy, which seldom says itself."""

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "unavailable_error",
    504: "timeout_error",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as it is told to a client. `type` is OpenAI's word for its kind."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def problem_of(error: BaseException) -> Problem:
    """Of our own faults nothing is told but that they are ours."""
    match error:
        case ClientError():
            headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
            kind = TYPES.get(error.status, "invalid_request_error")
            return Problem(error.status, str(error), kind, error.param, error.code, headers)
        case ContextOverflowError():
            return Problem(400, str(error), TYPES[400], "messages", "context_length_exceeded")
        case GrammarError():
            return Problem(400, str(error), TYPES[400], "tools", "not_enforceable")
        case UsageError():
            return Problem(400, str(error), TYPES[400])
        case ProtocolError():
            return Problem(502, str(error), "model_error", code="no_turn")
        case ServerError(status=503):
            headers = {"retry-after": str(BUSY_RETRY_S)}
            return Problem(503, error.message, TYPES[503], code="busy", headers=headers)
        case EndpointError():
            return Problem(502, error.message, "endpoint_error")
        case LocalReactError():
            return Problem(500, error.message, "server_error")
    return Problem(500, "the server failed; its log says why", "server_error")


def openai_shape(problem: Problem) -> dict[str, Any]:
    return {
        "error": {
            "message": problem.message,
            "type": problem.type,
            "param": problem.param,
            "code": problem.code,
        }
    }


SHAPES: dict[str, Callable[[Problem], dict[str, Any]]] = {}
"""The shape of errors under a path (its beginning), where it isn't OpenAI's."""


def body_of(problem: Problem, path: str) -> dict[str, Any]:
    """An error as the dialect of that path tells it."""
    shape = next((each for start, each in SHAPES.items() if path.startswith(start)), openai_shape)
    return shape(problem)
