"""OpenAI's Responses API, the request: the subset of it that is served, and the Ask that it makes.

Nothing is stored, so a conversation comes whole with every request; `previous_response_id`, `conversation`,
`background` and references to items are refused. Tools are functions. The model's reasoning and the thought
of a turn are `reasoning` items, and may come back as such. Own fields: `protocol`, `engine`, `seed`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from localreact.serve import schemas
from localreact.serve.ask import ANY_OBJECT, Ask, Called, ClientError, Message, Role, ToolChoice
from localreact.serve.wire import (
    Count,
    Loose,
    Strict,
    Temperature,
    TopP,
    Typed,
    choice_of,
    no_part,
    refuse,
    sampling,
    text_of,
)
from localreact.types import JsonSchema, ToolSpec

TEXTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")


class Item(Loose):
    """A message where `type` is missing."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[Typed] | None = None
    summary: list[Typed] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Typed] | None = None


class FunctionTool(Strict):
    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(Loose):
    type: str
    name: str = ""


class Format(Strict):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(Loose):
    format: Format | None = None


class ResponsesRequest(Strict):
    input: str | list[Item]
    model: str = ""
    instructions: str | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    text: TextConfig | None = None
    stream: bool | None = None
    max_output_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    metadata: dict[str, str] | None = None
    seed: int | None = None
    protocol: str | None = None
    engine: str | None = None

    # Refused, if they ask for something.
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None
    truncation: Literal["auto", "disabled"] | None = None
    top_logprobs: int | None = None

    # These change nothing here.
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    reasoning: Any = None
    include: list[str] | None = None
    store: bool | None = None
    stream_options: Any = None
    service_tier: Any = None
    user: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


def to_ask(body: ResponsesRequest) -> Ask:
    """
    Raises:
        ClientError: 400, with the field that can't be served.
    """
    if body.previous_response_id is not None:
        raise ClientError(
            400,
            "no response is stored here: send the conversation in input instead of previous_response_id",
            "previous_response_id",
            "unsupported",
        )
    refuse(
        {
            "conversation": body.conversation is not None,
            "background": body.background,
            "prompt": body.prompt is not None,
            "truncation": body.truncation == "auto",
            "top_logprobs": body.top_logprobs,
        }
    )
    choice, named = _choice(body.tool_choice)
    answer, strict = _answer(body.text.format if body.text else None)
    return Ask(
        messages=tuple(_messages(body)),
        tools=tuple(_tool(each, number) for number, each in enumerate(body.tools or ())),
        tool_choice=choice,
        tool=named,
        answer=answer,
        strict=strict or any(each.strict for each in body.tools or ()),
        sampling=sampling(body.temperature, body.top_p, seed=body.seed),
        max_tokens=body.max_output_tokens,
        protocol=body.protocol,
        engine=body.engine,
        model=body.model,
    )


def _messages(body: ResponsesRequest) -> list[Message]:
    messages = [Message("system", body.instructions)] if body.instructions else []
    if isinstance(body.input, str):
        return [*messages, Message("user", body.input)]
    if not body.input:
        raise ClientError(400, "there is no input", "input")
    thought = ""
    for number, item in enumerate(body.input):
        at = f"input/{number}"
        match item.type:
            case "reasoning":
                parts = item.content if isinstance(item.content, list) and item.content else item.summary
                thought = text_of(parts, TEXTS, f"{at}/content")
                continue
            case "message":
                messages.append(_message(item, thought, at))
            case "function_call":
                call_id, name = _given(item.call_id, f"{at}/call_id"), _given(item.name, f"{at}/name")
                _add_call(messages, Called(call_id, name, item.arguments or ""), thought)
            case "function_call_output":
                text = text_of(item.output, TEXTS, f"{at}/output")
                messages.append(Message("tool", text, call_id=_given(item.call_id, f"{at}/call_id")))
            case _:
                raise ClientError(400, f"items of type {item.type!r} aren't supported", at, "unsupported")
        thought = ""
    return messages


def _message(item: Item, thought: str, at: str) -> Message:
    if item.role is None:
        raise ClientError(400, "a message has a role", f"{at}/role")
    role: Role = "system" if item.role == "developer" else item.role
    text = text_of(item.content, TEXTS, f"{at}/content")
    return Message(role, text, thought=thought if role == "assistant" else "")


def _add_call(messages: list[Message], call: Called, thought: str) -> None:
    """Calls beside each other, and a text before them, are one message."""
    if messages and messages[-1].role == "assistant":
        last = messages.pop()
        calls = (*last.calls, call)
        messages.append(Message("assistant", last.content, calls, last.thought or thought))
    else:
        messages.append(Message("assistant", "", (call,), thought))


def _given(value: str | None, at: str) -> str:
    if not value:
        raise ClientError(400, f"{at.rpartition('/')[2]} is missing", at)
    return value


def _tool(given: FunctionTool, number: int) -> ToolSpec:
    if given.type != "function":
        raise no_part(given.type, f"tools/{number}/type")
    return ToolSpec(given.name, given.description or "", schemas.parameters(given.parameters))


def _choice(given: str | NamedTool | None) -> tuple[ToolChoice, str]:
    if isinstance(given, NamedTool):
        if given.type != "function":
            raise no_part(given.type, "tool_choice/type")
        return "named", given.name
    return choice_of(given), ""


def _answer(given: Format | None) -> tuple[JsonSchema | None, bool]:
    if given is None or given.type == "text":
        return None, False
    if given.type == "json_object":
        return ANY_OBJECT, False
    if given.schema_ is None:
        raise ClientError(400, "a json_schema needs its schema", "text/format/schema")
    return given.schema_, bool(given.strict)


def echoed(body: ResponsesRequest) -> dict[str, Any]:
    """What a response repeats of its request."""
    choice = body.tool_choice or "auto"
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": body.temperature or 0.0,
        "text": {"format": _format_said(body.text)},
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": [_tool_said(each) for each in body.tools or ()],
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
    }


def _format_said(text: TextConfig | None) -> dict[str, Any]:
    if text is None or text.format is None:
        return {"type": "text"}
    return text.format.model_dump(by_alias=True, exclude_none=True)


def _tool_said(tool: FunctionTool) -> dict[str, Any]:
    return {**tool.model_dump(), "parameters": tool.parameters, "strict": bool(tool.strict)}
