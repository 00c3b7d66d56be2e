"""`POST /v1/chat/completions`: OpenAI's, every tool call held by a grammar.

One call a turn; `parallel_tool_calls` is taken, and changes nothing. The thought of a turn, and the model's
reasoning before it, are `reasoning_content`. Own fields of a message and a response: `evidence` (with `cite`)
and `warnings`, what of the client's schemas no grammar holds. `logprobs` go with plain text: no
tools, no schema.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from localreact.serve.answering import data, event_stream, whole
from localreact.serve.chat_wire import ChatRequest, to_ask
from localreact.serve.errors import openai_shape, problem_of
from localreact.serve.parts import ArgumentsDelta, CallStarted, ContentDelta, Ended, Part, ReasoningDelta
from localreact.serve.scores import of_chat
from localreact.serve.state import State
from localreact.serve.writing import Writing
from localreact.types import Usage


def router(state: State) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/chat/completions", response_model=None, description=__doc__)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        writing = await state.desk.open(to_ask(body))
        if body.stream:
            usage = bool(body.stream_options and body.stream_options.include_usage)
            return event_stream(writing, _events(writing, usage))
        return JSONResponse(_completion(await whole(request, writing), writing))

    return routes


def usage_of(*usages: Usage) -> dict[str, Any]:
    """OpenAI's counts. Replies to one request share its prompt, which counts once."""
    total = sum(usages, Usage())
    prompt = usages[0].prompt if usages else 0
    generated = total.generated + total.reasoning
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": usages[0].reused if usages else 0},
        "completion_tokens_details": {
            "reasoning_tokens": total.reasoning,
            "forced_tokens": total.forced,
        },
    }


def _head(writing: Writing, kind: str) -> dict[str, Any]:
    head: dict[str, Any] = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": writing.model,
    }
    if writing.notices:
        head["warnings"] = list(writing.notices)
    return head


def _completion(replies: Sequence[Ended], writing: Writing) -> dict[str, Any]:
    choices = [
        {
            "index": each.choice,
            "message": _message(each),
            "logprobs": of_chat(each.scored),
            "finish_reason": each.finish_reason,
        }
        for each in replies
    ]
    usage = usage_of(*(each.usage for each in replies))
    return {**_head(writing, "chat.completion"), "choices": choices, "usage": usage}


def _message(reply: Ended) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None if reply.call else reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.call is not None:
        function = {"name": reply.call.name, "arguments": reply.call.arguments}
        message["tool_calls"] = [{"id": reply.call.id, "type": "function", "function": function}]
    if reply.evidence:
        message["evidence"] = _evidence(reply)
    return message


def _evidence(reply: Ended) -> list[dict[str, Any]]:
    return [{"result": each.step, "quote": each.quote} for each in reply.evidence]


async def _events(writing: Writing, with_usage: bool) -> AsyncIterator[str]:
    head = _head(writing, "chat.completion.chunk")
    begun: set[int] = set()
    usages = []

    def chunk(choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> str:
        return data({**head, "choices": choices, **({"usage": usage} if with_usage else {})})

    try:
        async for part in writing:
            if part.choice not in begun:
                begun.add(part.choice)
                yield chunk([_choice(part.choice, {"role": "assistant", "content": ""})])
            if isinstance(part, Ended):
                usages.append(part.usage)
                delta = {"evidence": _evidence(part)} if part.evidence else {}
                yield chunk([_choice(part.choice, delta, part.finish_reason)])
            else:
                scored = part.scored if isinstance(part, ContentDelta) else ()
                yield chunk([{**_choice(part.choice, _delta(part)), "logprobs": of_chat(scored)}])
        if with_usage:
            yield chunk([], usage_of(*usages))
        yield "data: [DONE]\n\n"
    except Exception as error:
        yield data(openai_shape(problem_of(error)))


def _delta(part: Part) -> dict[str, Any]:
    match part:
        case ReasoningDelta():
            return {"reasoning_content": part.text}
        case ContentDelta():
            return {"content": part.text}
        case CallStarted():
            function = {"name": part.name, "arguments": ""}
            call = {"index": 0, "id": part.id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case ArgumentsDelta():
            return {"tool_calls": [{"index": 0, "function": {"arguments": part.text}}]}
    return {}


def _choice(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
