"""Ollama's chat, the request: its fields, and the Ask that they make."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from localreact.serve import schemas
from localreact.serve.ask import ANY_OBJECT, Ask, Called, ClientError, Message, ToolChoice
from localreact.serve.wire import (
    Loose,
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
from localreact.types import JsonSchema, ToolSpec


class Function(Loose):
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class CallOf(Loose):
    function: Function
    id: str | None = None


class OllamaMessage(Loose):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[CallOf] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ToolFunction(Loose):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolOf(Loose):
    type: Literal["function"] = "function"
    function: ToolFunction


class Options(Loose):
    """Those of the machine (`num_ctx`, `num_gpu`, …) are the server's own."""

    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: Share | None = None
    repeat_penalty: Penalty | None = None
    seed: int | None = None
    num_predict: int | None = None
    stop: str | list[str] | None = None

    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    mirostat: int | None = None


class OllamaRequest(Strict):
    messages: list[OllamaMessage] = Field(min_length=1)
    model: str = ""
    tools: list[ToolOf] | None = None
    format: dict[str, Any] | Literal["", "json"] | None = None
    options: Options | None = None
    stream: bool | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    tool_choice: Literal["auto", "none", "required"] | None = None
    protocol: str | None = None
    engine: str | None = None

    keep_alive: Any = None
    """Changes nothing here."""

    logprobs: bool | None = None
    top_logprobs: int | None = None


class ShowRequest(Loose):
    """`name` is what older clients call it."""

    model: str = ""
    name: str = ""


def to_ask(body: OllamaRequest) -> Ask:
    """
    Raises:
        ClientError: 400, with the field that can't be served.
    """
    options = body.options or Options()
    refuse(
        {
            "logprobs": body.logprobs or body.top_logprobs,
            "options/frequency_penalty": options.frequency_penalty,
            "options/presence_penalty": options.presence_penalty,
            "options/mirostat": options.mirostat,
        }
    )
    choice: ToolChoice = body.tool_choice or "auto"
    return Ask(
        messages=_messages(body.messages),
        tools=tuple(_tool(each) for each in body.tools or ()),
        tool_choice=choice,
        answer=_answer(body.format),
        sampling=sampling(
            options.temperature,
            options.top_p,
            options.top_k,
            options.min_p,
            options.repeat_penalty,
            options.seed,
        ),
        # -1 and -2 mean as many as there is room for.
        max_tokens=options.num_predict if (options.num_predict or 0) > 0 else None,
        stops=stops_of(options.stop),
        protocol=body.protocol,
        engine=body.engine,
        reasoning_tokens=0 if body.think is False else None,
        model=body.model.removesuffix(":latest"),
    )


def _messages(given: list[OllamaMessage]) -> tuple[Message, ...]:
    messages = []
    waiting: list[Called] = []  # calls without their results
    for number, each in enumerate(given):
        at = f"messages/{number}"
        if each.images:
            raise ClientError(
                400, "images aren't supported here: only text is", f"{at}/images", "unsupported"
            )
        text = each.content or ""
        if each.role == "tool":
            call = _answered(each, waiting, at)
            waiting.remove(call)
            messages.append(Message("tool", text, call_id=call.id))
            continue
        if each.tool_calls and each.role != "assistant":
            raise ClientError(400, "only an assistant makes tool calls", f"{at}/tool_calls")
        calls = tuple(_called(call, f"{number}_{at_}") for at_, call in enumerate(each.tool_calls or ()))
        waiting = list(calls)
        messages.append(Message(each.role, text, calls, each.thinking or ""))
    return tuple(messages)


def _called(given: CallOf, number: str) -> Called:
    arguments = json.dumps(given.function.arguments, ensure_ascii=False)
    return Called(given.id or f"call_{number}", given.function.name, arguments)


def _answered(result: OllamaMessage, waiting: list[Called], at: str) -> Called:
    """The call that a result belongs to: by its id, else by the tool's name, else the next without one.

    Raises:
        ClientError: there is none.
    """
    for call in waiting:
        if result.tool_call_id == call.id:
            return call
    if result.tool_call_id is None:
        for call in waiting:
            if result.tool_name in (None, call.name):
                return call
    raise ClientError(400, "the result answers no call of the message before", at)


def _tool(given: ToolOf) -> ToolSpec:
    function = given.function
    return ToolSpec(function.name, function.description or "", schemas.parameters(function.parameters))


def _answer(given: dict[str, Any] | str | None) -> JsonSchema | None:
    if isinstance(given, dict):
        return given
    return ANY_OBJECT if given == "json" else None
