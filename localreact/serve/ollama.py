"""`POST /api/chat` and `/api/show`, `GET /api/tags`, `/api/ps` and `/api/version`: Ollama's.

Taken: `messages`, `tools`, `format` (`json`, or a schema), `think`, `stream`, and of `options` those that
choose tokens (`temperature`, `top_k`, `top_p`, `min_p`, `seed`, `num_predict`, `stop`, `repeat_penalty`);
options of the machine change nothing. Refused: images, and options that can't be had. The model's reasoning
and the thought of a turn are `thinking`, where `think` asks for them. Own fields: `tool_choice`, `protocol`,
`engine`.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from localreact.endpoints.llama import LlamaEndpoint
from localreact.serve import errors
from localreact.serve.answering import event_stream, one_line, whole
from localreact.serve.ask import Called, ClientError
from localreact.serve.desk import Desk
from localreact.serve.errors import Problem, problem_of
from localreact.serve.ollama_wire import OllamaRequest, ShowRequest, to_ask
from localreact.serve.parts import ContentDelta, Ended, ReasoningDelta
from localreact.serve.state import State
from localreact.serve.writing import Writing

Json = dict[str, Any]
VERSION = "0.12.6"
"""The Ollama whose API this is: clients look at it (VS Code's Copilot wants 0.6.4 or later). Our own version
is at `/version`."""


def router(state: State) -> APIRouter:
    routes = APIRouter(tags=["Ollama"])

    @routes.post("/api/chat", response_model=None, description=__doc__)
    async def chat(body: OllamaRequest, request: Request) -> Response:
        started = time.monotonic()
        writing = await state.desk.open(to_ask(body))
        if body.stream is not False:
            lines = _lines(writing, body, started)
            return event_stream(writing, lines, "application/x-ndjson")
        (ended,) = await whole(request, writing)
        message = _message(ended.content, ended.reasoning if body.think else "", ended.call)
        return JSONResponse(_last(writing, message, ended, started))

    @routes.get("/api/tags")
    async def tags() -> Json:
        since = datetime.fromtimestamp(state.started, timezone.utc).isoformat()
        return {"models": [{**_named(state.desk), "modified_at": since}]}

    @routes.get("/api/ps")
    async def loaded() -> Json:
        return {"models": [{**_named(state.desk), "context_length": state.desk.endpoint.n_ctx}]}

    @routes.post("/api/show")
    async def show(body: ShowRequest) -> Json:
        desk = state.desk
        desk.check_model((body.model or body.name).removesuffix(":latest"))
        kind = _architecture(desk)
        about = {"general.architecture": kind, "general.basename": desk.model_names()[0]}
        return {
            "details": _named(desk)["details"],
            "model_info": {**about, f"{kind}.context_length": desk.endpoint.n_ctx},
            "capabilities": ["completion", "tools"],
        }

    @routes.get("/api/version")
    async def version() -> Json:
        return {"version": VERSION}

    @routes.post("/api/generate", include_in_schema=False)
    async def generate() -> None:
        raise ClientError(
            501, "/api/generate isn't served here; /api/chat is, and for raw text /v1/completions"
        )

    return routes


def _named(desk: Desk) -> Json:
    name, kind = desk.model_names()[0], _architecture(desk)
    local = isinstance(desk.endpoint, LlamaEndpoint)
    details = {"format": "gguf" if local else "", "family": kind, "families": [kind]}
    return {
        "name": name,
        "model": name,
        "details": {**details, "parameter_size": "", "quantization_level": ""},
    }


def _architecture(desk: Desk) -> str:
    endpoint = desk.endpoint
    known = endpoint.model.metadata("general.architecture") if isinstance(endpoint, LlamaEndpoint) else None
    return known or "unknown"


def shape(problem: Problem) -> Json:
    """An error as Ollama's clients read it; they know no field for where it is."""
    return {"error": f"{problem.param}: {problem.message}" if problem.param else problem.message}


errors.SHAPES["/api/"] = shape


def _message(content: str = "", thinking: str = "", call: Called | None = None) -> Json:
    message: Json = {"role": "assistant", "content": "" if call else content}
    if thinking:
        message["thinking"] = thinking
    if call is not None:
        function = {"name": call.name, "arguments": json.loads(call.arguments)}
        message["tool_calls"] = [{"id": call.id, "function": function}]
    return message


async def _lines(writing: Writing, body: OllamaRequest, started: float) -> AsyncIterator[str]:
    """A call comes whole, before the last line."""
    try:
        async for part in writing:
            match part:
                case ReasoningDelta(text) if body.think:
                    yield _line(_chunk(writing, _message(thinking=text)))
                case ContentDelta(text):
                    yield _line(_chunk(writing, _message(text)))
                case Ended():
                    if part.call is not None:
                        yield _line(_chunk(writing, _message(call=part.call)))
                    yield _line(_last(writing, _message(), part, started))
    except Exception as error:
        yield _line(shape(problem_of(error)))


def _chunk(writing: Writing, message: Json) -> Json:
    created = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
    return {"model": writing.model, "created_at": created, "message": message, "done": False}


def _last(writing: Writing, message: Json, ended: Ended, started: float) -> Json:
    """Durations are in nanoseconds; the model is loaded before anything is asked."""
    usage, timings = ended.usage, ended.timings
    last = {
        **_chunk(writing, message),
        "done": True,
        "done_reason": "length" if ended.finish_reason == "length" else "stop",
        "total_duration": round((time.monotonic() - started) * 1e9),
        "load_duration": 0,
        "prompt_eval_count": usage.prompt,
        "prompt_eval_duration": round(timings.prompt_s * 1e9),
        "eval_count": usage.generated + usage.reasoning,
        "eval_duration": round(timings.generate_s * 1e9),
    }
    return {**last, "warnings": list(writing.notices)} if writing.notices else last


def _line(data: Json) -> str:
    return f"{one_line(data)}\n"
