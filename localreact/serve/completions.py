"""`POST /v1/completions`: text that goes on with a prompt, without a chat template.

Taken: `prompt` (a text, or several), `max_tokens`, `stop`, `stream` with `stream_options`, `n`, `seed`,
`temperature`, `top_p`, `logprobs`, and one of `grammar` (GBNF or Lark), `json_schema`, `response_format` and
vLLM's `structured_outputs`. Refused: prompts as token ids, `echo`, `suffix`, `best_of`. A prompt is text and
nothing else: what it holds of control tokens is tokenized letter by letter.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from localreact.serve.answering import data, event_stream, whole
from localreact.serve.ask import ANY_OBJECT, Ask, ClientError, Held
from localreact.serve.chat import usage_of
from localreact.serve.chat_wire import ResponseFormat, StreamOptions, answer_of
from localreact.serve.desk import Desk
from localreact.serve.errors import openai_shape, problem_of
from localreact.serve.parts import ContentDelta, Ended, Scored
from localreact.serve.scores import of_text
from localreact.serve.state import State
from localreact.serve.wire import (
    Alternatives,
    Count,
    Most,
    Penalty,
    Share,
    Strict,
    Temperature,
    TopK,
    TopP,
    refuse,
    sampling,
    stops_of,
)
from localreact.serve.writing import Writing
from localreact.types import JsonSchema


class StructuredOutputs(Strict):
    """One of them."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class CompletionRequest(Strict):
    prompt: str | list[str] | list[int] | list[list[int]]
    model: str = ""
    max_tokens: Most = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Count | None = None
    seed: int | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    repeat_penalty: Penalty | None = None
    logprobs: Alternatives | None = None

    grammar: str | None = None
    json_schema: dict[str, Any] | str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    engine: str | None = None

    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    logit_bias: dict[str, float] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None

    user: Any = None
    """Changes nothing here."""


def router(state: State) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/completions", response_model=None, description=__doc__)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        texts = Texts(await _open(state.desk, to_asks(body)), body.n or 1)
        if body.stream:
            usage = bool(body.stream_options and body.stream_options.include_usage)
            return event_stream(texts, _events(texts, usage))
        replies = await whole(request, texts)
        choices = [_choice(each, each.content, each.scored, each.finish_reason) for each in replies]
        return JSONResponse({**texts.head(), "choices": choices, "usage": texts.usage(replies)})

    return routes


def to_asks(body: CompletionRequest) -> list[Ask]:
    """One for each prompt.

    Raises:
        ClientError: 400, with the field that can't be served.
    """
    refuse(
        {
            "echo": body.echo,
            "suffix": body.suffix,
            "best_of": (body.best_of or 1) > (body.n or 1),
            "logit_bias": body.logit_bias,
            "frequency_penalty": body.frequency_penalty,
            "presence_penalty": body.presence_penalty,
        }
    )
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if not prompts:
        raise ClientError(400, "there is no prompt", "prompt")
    how = sampling(body.temperature, body.top_p, body.top_k, body.min_p, body.repeat_penalty, body.seed)
    held, strict = _held(body), answer_of(body.response_format)[1]
    asks = []
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise ClientError(
                400, "prompts as token ids aren't supported: give text", "prompt", "unsupported"
            )
        ask = Ask(
            prompt=prompt,
            held=held,
            strict=strict,
            sampling=how,
            max_tokens=body.max_tokens,
            stops=stops_of(body.stop),
            n=body.n or 1,
            logprobs=body.logprobs,
            engine=body.engine,
            model=body.model,
        )
        asks.append(ask)
    return asks


def _held(body: CompletionRequest) -> Held | None:
    """
    Raises:
        ClientError: 400, two things at a time, or a schema that is no JSON.
    """
    outputs = body.structured_outputs or StructuredOutputs.model_validate({})
    asked = [
        Held("grammar", body.grammar),
        Held("json", body.json_schema, "json_schema"),
        Held("json", answer_of(body.response_format)[0], "response_format"),
        Held("json", outputs.json_, "structured_outputs/json"),
        Held("json", ANY_OBJECT if outputs.json_object else None, "structured_outputs/json_object"),
        Held("regex", outputs.regex, "structured_outputs/regex"),
        Held("choice", outputs.choice, "structured_outputs/choice"),
        Held("grammar", outputs.grammar, "structured_outputs/grammar"),
    ]
    given = [each for each in asked if each.value is not None]
    if len(given) > 1:
        raise ClientError(400, "one grammar, schema, regex or choice at a time", "structured_outputs")
    held = given[0] if given else None
    if held is not None and held.kind == "json" and isinstance(held.value, str):
        return replace(held, value=_loaded(held.value, held.param))
    return held


def _loaded(text: str, at: str) -> JsonSchema:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ClientError(400, f"the schema isn't JSON: {error}", at) from error
    if not isinstance(schema, dict):
        raise ClientError(400, "the schema isn't an object", at)
    return schema


async def _open(desk: Desk, asks: Sequence[Ask]) -> list[Writing]:
    most, wanted = desk.settings.parallel + desk.settings.queue, sum(each.n for each in asks)
    if wanted > most:  # not 429: it would never be served
        raise ClientError(422, f"prompts times n: at most {most}, not {wanted}", "prompt", "too_many")
    writings: list[Writing] = []
    try:
        for ask in asks:
            writings.append(await desk.open(ask))
    except BaseException:
        for each in writings:
            await each.aclose()
        raise
    return writings


@dataclass
class Texts:
    """The writings of all prompts, as if they were one: choices are counted through."""

    writings: Sequence[Writing]
    n: int

    def __post_init__(self) -> None:
        self.id = f"cmpl-{secrets.token_hex(12)}"
        self.created = int(time.time())

    async def __aiter__(self) -> AsyncIterator[ContentDelta | Ended]:
        """Prompt after prompt, although they are all being written."""
        for number, writing in enumerate(self.writings):
            async for part in writing:
                if isinstance(part, ContentDelta | Ended):
                    yield replace(part, choice=number * self.n + part.choice)

    async def whole(self) -> list[Ended]:
        ended = [part async for part in self if isinstance(part, Ended)]
        return sorted(ended, key=lambda each: each.choice)

    async def aclose(self) -> None:
        for each in self.writings:
            await each.aclose()

    def head(self) -> dict[str, Any]:
        head = {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.writings[0].model,
        }
        notices = self.writings[0].notices
        return {**head, "warnings": list(notices)} if notices else head

    def usage(self, replies: Sequence[Ended]) -> dict[str, Any]:
        """Replies to one prompt share it."""
        first = [each for each in replies if each.choice % self.n == 0]
        usage = usage_of(*(each.usage for each in replies))
        usage["prompt_tokens"] = sum(each.usage.prompt for each in first)
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        usage["prompt_tokens_details"]["cached_tokens"] = sum(each.usage.reused for each in first)
        return usage


def _choice(
    part: ContentDelta | Ended, text: str, scored: Sequence[Scored] = (), finish_reason: str | None = None
) -> dict[str, Any]:
    return {"index": part.choice, "text": text, "logprobs": of_text(scored), "finish_reason": finish_reason}


async def _events(texts: Texts, with_usage: bool) -> AsyncIterator[str]:
    replies: list[Ended] = []

    def chunk(choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> str:
        return data({**texts.head(), "choices": choices, **({"usage": usage} if with_usage else {})})

    try:
        async for part in texts:
            if isinstance(part, Ended):
                replies.append(part)
                yield chunk([_choice(part, "", finish_reason=part.finish_reason)])
            else:
                yield chunk([_choice(part, part.text, part.scored)])
        if with_usage:
            yield chunk([], texts.usage(replies))
        yield "data: [DONE]\n\n"
    except Exception as error:
        yield data(openai_shape(problem_of(error)))
