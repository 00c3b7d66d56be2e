"""`POST /api/chat`, `GET /api/tags` and `/api/version`: Ollama's.

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

from localreact._version import __version__
from localreact.serve import errors
from localreact.serve.answering import event_stream, one_line, whole
from localreact.serve.ask import Called
from localreact.serve.errors import Problem, problem_of
from localreact.serve.ollama_wire import OllamaRequest, to_ask
from localreact.serve.parts import ContentDelta, Ended, ReasoningDelta
from localreact.serve.state import State
from localreact.serve.writing import Writing

Json = dict[str, Any]


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
        name = state.desk.model_names()[0]
        since = datetime.fromtimestamp(state.started, timezone.utc).isoformat()
        return {"models": [{"name": name, "model": name, "modified_at": since}]}

    @routes.get("/api/version")
    async def version() -> Json:
        return {"version": __version__}

    return routes


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
