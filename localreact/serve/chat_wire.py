"""OpenAI's chat completions, the request: what its fields are, and the Ask that they make.

Fields that change nothing here are taken and left alone (`user`, `metadata`, …). One that would change the
reply, and can't, is refused by name: half of what was asked for is not what was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from localreact.serve import schemas
from localreact.serve.ask import ANY_OBJECT, Ask, Called, ClientError, Held, Message, Role, ToolChoice
from localreact.serve.wire import (
    Alternatives,
    Count,
    Loose,
    Most,
    Penalty,
    Share,
    Strict,
    Temperature,
    TopK,
    TopP,
    Typed,
    choice_of,
    no_part,
    refuse,
    sampling,
    stops_of,
)
from localreact.types import JsonSchema, ToolSpec


class Part(Typed):
    """Only text parts are taken."""

    refusal: str | None = None


Content = str | list[Part] | None


class FunctionCall(Strict):
    name: str
    arguments: str = ""


class CallOf(Loose):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Loose):
    """What an assistant's message holds besides (`refusal`, `annotations`) comes back from replies, and says
    nothing to a model."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    tool_calls: list[CallOf] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    audio: Any = None
    function_call: Any = None


class Function(Strict):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolOf(Strict):
    type: Literal["function"]
    function: Function


class NamedFunction(Loose):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


class JsonSchemaFormat(Strict):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    """llama-server's, of a `json_object`."""


class StreamOptions(Loose):
    include_usage: bool = False


class TemplateOptions(Loose):
    """What local servers hand to a chat template; here templates aren't rendered anew for a request."""

    enable_thinking: bool | None = None


class Grammar(Strict):
    """A grammar of the content, in a language that the endpoint enforces."""

    language: str
    text: str


class ChatRequest(Strict):
    messages: list[ChatMessage] = Field(min_length=1)
    model: str = ""
    tools: list[ToolOf] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Most = None
    max_completion_tokens: Most = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: int | None = None
    n: Count | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None

    # Of local servers, and our own.
    top_k: TopK | None = None
    min_p: Share | None = None
    repeat_penalty: Penalty | None = None
    grammar: str | Grammar | None = None
    protocol: str | None = None
    engine: str | None = None
    cite: bool = False
    reasoning_tokens: Annotated[int, Field(ge=0, le=1 << 20)] | None = None

    chat_template_kwargs: TemplateOptions | None = None

    # These change nothing here.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    modalities: list[str] | None = None
    logit_bias: dict[str, float] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None


def to_ask(body: ChatRequest) -> Ask:
    """
    Raises:
        ClientError: 400, with the field that can't be served.
    """
    refuse(
        {
            "top_logprobs": body.top_logprobs if not body.logprobs else None,
            "logit_bias": body.logit_bias,
            "frequency_penalty": body.frequency_penalty,
            "presence_penalty": body.presence_penalty,
            "modalities": body.modalities not in (None, ["text"]),
        }
    )
    tools = tuple(map(_tool, body.tools or ()))
    choice, named = tool_choice(body.tool_choice)
    answer, strict = answer_of(body.response_format)
    strict = strict or any(each.function.strict for each in body.tools or ())
    thinks = body.chat_template_kwargs is None or body.chat_template_kwargs.enable_thinking is not False
    most = body.max_completion_tokens or body.max_tokens
    return Ask(
        messages=tuple(_message(each, number) for number, each in enumerate(body.messages)),
        tools=tools,
        tool_choice=choice,
        tool=named,
        answer=answer,
        strict=strict,
        held=_held(body.grammar),
        sampling=sampling(
            body.temperature, body.top_p, body.top_k, body.min_p, body.repeat_penalty, body.seed
        ),
        max_tokens=most,
        stops=stops_of(body.stop),
        n=body.n or 1,
        protocol=body.protocol,
        engine=body.engine,
        reasoning_tokens=body.reasoning_tokens if thinks else 0,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        cite=body.cite,
        model=body.model,
    )


def tool_choice(given: str | NamedTool | None) -> tuple[ToolChoice, str]:
    if isinstance(given, NamedTool):
        return "named", given.function.name
    return choice_of(given), ""


def _held(given: str | Grammar | None) -> Held | None:
    if given is None or isinstance(given, str):
        return Held("grammar", given) if given else None
    return Held("grammar", given.text, language=given.language)


def _tool(given: ToolOf) -> ToolSpec:
    function = given.function
    parameters = schemas.parameters(function.parameters)
    return ToolSpec(function.name, function.description or "", parameters)


def answer_of(given: ResponseFormat | None) -> tuple[JsonSchema | None, bool]:
    """The schema of what is answered (None: just text), and whether all of it has to be held.

    Raises:
        ClientError: 400, there is no schema.
    """
    if given is None or given.type == "text":
        return None, False
    if given.type == "json_object":
        return given.schema_ or ANY_OBJECT, False
    wanted = given.json_schema
    if wanted is None or wanted.schema_ is None:
        raise ClientError(400, "a json_schema needs its schema", "response_format/json_schema/schema")
    return wanted.schema_, bool(wanted.strict)


def _message(given: ChatMessage, number: int) -> Message:
    at = f"messages/{number}"
    if given.function_call is not None or given.audio is not None:
        raise ClientError(400, "function_call and audio aren't supported: use tool_calls", at, "unsupported")
    text = joined(given.content, f"{at}/content")
    if given.role == "tool":
        if not given.tool_call_id:
            raise ClientError(400, "a tool's result names the call that it answers", f"{at}/tool_call_id")
        return Message("tool", text, call_id=given.tool_call_id)
    if given.tool_calls and given.role != "assistant":
        raise ClientError(400, "only an assistant makes tool calls", f"{at}/tool_calls")
    calls = tuple(
        Called(each.id, each.function.name, each.function.arguments) for each in given.tool_calls or ()
    )
    if len({call.id for call in calls}) != len(calls):
        raise ClientError(400, "two calls of one message have the same id", f"{at}/tool_calls")
    role: Role = "system" if given.role == "developer" else given.role
    return Message(role, text, calls, given.reasoning_content or "")


def joined(content: str | Sequence[Part] | None, at: str) -> str:
    """
    Raises:
        ClientError: a part that isn't text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for number, part in enumerate(content):
        if part.type not in ("text", "refusal"):
            raise no_part(part.type, f"{at}/{number}")
        texts.append(part.text or part.refusal or "")
    return "\n".join(texts)
