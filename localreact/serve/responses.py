"""`POST /v1/responses`: OpenAI's Responses API, as far as `responses_wire` says.

A reply is a `reasoning` item where there is any, then one `message` or one `function_call`. A call that was
cut is none: its item, begun in a stream, is never done, and isn't in the response, which is `incomplete`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from localreact.serve import responses_wire
from localreact.serve.answering import event_stream, whole
from localreact.serve.errors import problem_of
from localreact.serve.parts import ArgumentsDelta, CallStarted, ContentDelta, Ended, Part, ReasoningDelta
from localreact.serve.responses_wire import ResponsesRequest, echoed, to_ask
from localreact.serve.state import State
from localreact.serve.wire import event
from localreact.serve.writing import Writing

Json = dict[str, Any]


def router(state: State) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/responses", response_model=None, description=responses_wire.__doc__)
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        writing = await state.desk.open(to_ask(body))
        reply = _Reply(body, writing)
        if body.stream:
            return event_stream(writing, _events(reply, writing))
        (ended,) = await whole(request, writing)
        for _ in reply.told(ended):
            pass
        return JSONResponse(reply.response(ended))

    return routes


async def _events(reply: _Reply, writing: Writing) -> AsyncIterator[str]:
    number = 0

    def line(data: Json) -> str:
        nonlocal number
        number += 1
        return event({**data, "sequence_number": number - 1})

    yield line({"type": "response.created", "response": reply.response()})
    yield line({"type": "response.in_progress", "response": reply.response()})
    try:
        async for part in writing:
            for each in reply.told(part):
                yield line(each)
            if isinstance(part, Ended):
                response = reply.response(part)
                yield line({"type": f"response.{response['status']}", "response": response})
    except Exception as error:
        problem = problem_of(error)
        failed = {"code": problem.code or problem.type, "message": problem.message}
        response = {**reply.response(), "status": "failed", "error": failed}
        yield line({"type": "response.failed", "response": response})


class _Reply:
    """The items of a reply, and the events of their growing. At most one item is open at a time."""

    def __init__(self, body: ResponsesRequest, writing: Writing) -> None:
        self._id = f"resp_{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._head = {"model": writing.model, **echoed(body)}
        self._warnings = list(writing.notices)
        self._done: list[Json] = []
        self._open: Json | None = None

    def response(self, ended: Ended | None = None) -> Json:
        """As it stands, or as it ended."""
        status = "in_progress" if ended is None else "completed"
        response: Json = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "error": None,
            "incomplete_details": None,
            **self._head,
            "output": list(self._done),
            "usage": None,
        }
        if ended is not None:
            if ended.finish_reason == "length":
                status = "incomplete"
                response["incomplete_details"] = {"reason": "max_output_tokens"}
            response["usage"] = _usage(ended)
        if self._warnings:
            response["warnings"] = self._warnings
        return {**response, "status": status}

    def told(self, part: Part) -> Iterator[Json]:
        match part:
            case ReasoningDelta(text):
                yield from self._opened("reasoning")
                yield from self._text("response.reasoning_text.delta", text)
            case ContentDelta(text):
                yield from self._opened("message")
                yield from self._text("response.output_text.delta", text)
            case CallStarted(call_id, name):
                yield from self._opened("function_call", call_id=call_id, name=name, arguments="")
            case ArgumentsDelta(text):
                assert self._open is not None
                self._open["arguments"] += text
                yield self._about("response.function_call_arguments.delta", delta=text)
            case Ended():
                yield from self._ended(part)

    def _ended(self, ended: Ended) -> Iterator[Json]:
        """Also makes, of a reply that wasn't told part by part, its items."""
        said = {each["type"] for each in (*self._done, self._open) if each is not None}
        if ended.reasoning and "reasoning" not in said:
            yield from self.told(ReasoningDelta(ended.reasoning))
        if ended.call is not None and "function_call" not in said:
            yield from self.told(CallStarted(ended.call.id, ended.call.name))
            yield from self.told(ArgumentsDelta(ended.call.arguments))
        if ended.call is None and ended.content and "message" not in said:
            yield from self.told(ContentDelta(ended.content))
        if ended.finish_reason == "stop" and not ended.content:
            yield from self._opened("message")
        if ended.finish_reason == "length" and self._open and self._open["type"] == "function_call":
            self._open = None
        yield from self._closed("incomplete" if ended.finish_reason == "length" else "completed")

    def _opened(self, kind: str, **fields: Any) -> Iterator[Json]:
        if self._open is not None and self._open["type"] == kind:
            return
        yield from self._closed("completed")
        prefix = {"reasoning": "rs", "message": "msg", "function_call": "fc"}[kind]
        self._open = {"id": f"{prefix}_{secrets.token_hex(12)}", "type": kind, **fields}
        if kind == "reasoning":
            self._open |= {"summary": [], "content": []}
        elif kind == "message":
            self._open |= {"role": "assistant", "content": []}
        self._open["status"] = "in_progress"
        yield {
            "type": "response.output_item.added",
            "output_index": len(self._done),
            "item": _copy(self._open),
        }
        if kind != "function_call":
            part = _part(kind)
            yield self._about("response.content_part.added", content_index=0, part=dict(part))
            self._open["content"].append(part)

    def _text(self, kind: str, text: str) -> Iterator[Json]:
        assert self._open is not None
        self._open["content"][0]["text"] += text
        logprobs: Json = {"logprobs": []} if self._open["type"] == "message" else {}
        yield self._about(kind, content_index=0, delta=text, **logprobs)

    def _closed(self, status: str) -> Iterator[Json]:
        if self._open is None:
            return
        item = self._open
        if item["type"] == "function_call":
            yield self._about(
                "response.function_call_arguments.done", name=item["name"], arguments=item["arguments"]
            )
        else:
            part = item["content"][0]
            kind = "reasoning_text" if item["type"] == "reasoning" else "output_text"
            logprobs: Json = {"logprobs": []} if item["type"] == "message" else {}
            yield self._about(f"response.{kind}.done", content_index=0, text=part["text"], **logprobs)
            yield self._about("response.content_part.done", content_index=0, part=dict(part))
        item["status"] = status
        yield {"type": "response.output_item.done", "output_index": len(self._done), "item": item}
        self._done.append(item)
        self._open = None

    def _about(self, kind: str, **fields: Any) -> Json:
        assert self._open is not None
        return {"type": kind, "item_id": self._open["id"], "output_index": len(self._done), **fields}


def _part(kind: str) -> Json:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _copy(item: Json) -> Json:
    return {key: list(value) if isinstance(value, list) else value for key, value in item.items()}


def _usage(ended: Ended) -> Json:
    usage = ended.usage
    generated = usage.generated + usage.reasoning
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.reused},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + generated,
    }
