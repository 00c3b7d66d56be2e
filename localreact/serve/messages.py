"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's, as far as `messages_wire` says.

The model's reasoning and the thought of a turn are a `thinking` block (unsigned), and only where thinking is
asked for. A call that was cut ends with `max_tokens`: in a stream its block has begun, a whole reply has
none.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from localreact.serve import errors, messages_wire
from localreact.serve.answering import event_stream, whole
from localreact.serve.errors import Problem, problem_of
from localreact.serve.messages_wire import Counted, MessagesRequest, thinks, to_ask
from localreact.serve.parts import ArgumentsDelta, CallStarted, ContentDelta, Ended, Part, ReasoningDelta
from localreact.serve.state import State
from localreact.serve.wire import event
from localreact.serve.writing import Writing

Json = dict[str, Any]
TYPES = {413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error"}
REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def router(state: State) -> APIRouter:
    routes = APIRouter(tags=["Anthropic"])

    @routes.post("/v1/messages", response_model=None, description=messages_wire.__doc__)
    async def messages(body: MessagesRequest, request: Request) -> Response:
        writing = await state.desk.open(to_ask(body))
        if body.stream:
            return event_stream(writing, _events(writing, thinks(body)))
        (ended,) = await whole(request, writing)
        return JSONResponse(_message(writing, _content(ended, thinks(body)), ended))

    @routes.post("/v1/messages/count_tokens", response_model=None)
    async def count_tokens(body: Counted) -> Json:
        return {"input_tokens": await state.desk.count(to_ask(body))}

    return routes


def shape(problem: Problem) -> Json:
    """An error as Anthropic's clients read it; they know no field for where it is."""
    kind = TYPES.get(problem.status) or (problem.type if problem.status < 500 else "api_error")
    message = f"{problem.param}: {problem.message}" if problem.param else problem.message
    return {"type": "error", "error": {"type": kind, "message": message}}


errors.SHAPES["/v1/messages"] = shape


def _message(writing: Writing, content: list[Json], ended: Ended | None = None) -> Json:
    message = {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": writing.model,
        "content": content,
        **_stopped(ended),
        "usage": _usage(ended),
    }
    return {**message, "warnings": list(writing.notices)} if writing.notices else message


def _stopped(ended: Ended | None) -> Json:
    if ended is None:
        return {"stop_reason": None, "stop_sequence": None}
    reason = "stop_sequence" if ended.stopped_at is not None else REASONS[ended.finish_reason]
    return {"stop_reason": reason, "stop_sequence": ended.stopped_at}


def _usage(ended: Ended | None) -> Json:
    """What was read from the cache is counted apart."""
    if ended is None:
        return {"input_tokens": 0, "output_tokens": 0}
    usage = ended.usage
    return {
        "input_tokens": usage.prompt - usage.reused,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.reused,
        "output_tokens": usage.generated + usage.reasoning,
    }


def _content(ended: Ended, thinking: bool) -> list[Json]:
    blocks: list[Json] = []
    if thinking and ended.reasoning:
        blocks.append({"type": "thinking", "thinking": ended.reasoning, "signature": ""})
    if ended.call is not None:
        arguments = json.loads(ended.call.arguments)
        blocks.append({"type": "tool_use", "id": ended.call.id, "name": ended.call.name, "input": arguments})
    elif ended.content:
        blocks.append({"type": "text", "text": ended.content})
    return blocks


async def _events(writing: Writing, thinking: bool) -> AsyncIterator[str]:
    blocks = _Blocks(thinking)
    try:
        message = _message(writing, [])
        message["usage"]["input_tokens"] = await writing.count_prompt()
        yield event({"type": "message_start", "message": message})
        async for part in writing:
            for each in blocks.told(part):
                yield event(each)
            if isinstance(part, Ended):
                yield event({"type": "message_delta", "delta": _stopped(part), "usage": _usage(part)})
        yield event({"type": "message_stop"})
    except Exception as error:
        yield event(shape(problem_of(error)))


class _Blocks:
    """The blocks of a reply as they grow, one after the other."""

    def __init__(self, thinking: bool) -> None:
        self._thinking = thinking
        self._index = -1
        self._open = ""

    def told(self, part: Part) -> Iterator[Json]:
        match part:
            case ReasoningDelta(text) if self._thinking:
                yield from self._opened("thinking", {"thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case ContentDelta(text):
                yield from self._opened("text", {"text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case CallStarted(call_id, name):
                yield from self._opened("tool_use", {"id": call_id, "name": name, "input": {}})
            case ArgumentsDelta(text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case Ended():
                yield from self._closed()

    def _opened(self, kind: str, block: Json) -> Iterator[Json]:
        if self._open == kind:
            return
        yield from self._closed()
        self._open = kind
        self._index += 1
        yield {
            "type": "content_block_start",
            "index": self._index,
            "content_block": {"type": kind, **block},
        }

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _closed(self) -> Iterator[Json]:
        if self._open:
            self._open = ""
            yield {"type": "content_block_stop", "index": self._index}
