"""Anthropic's Messages API, the request: the subset of it that is served, and the Ask that it makes.

Taken: text, `tool_use`, `tool_result` and `thinking` blocks, `system` as text or blocks, tools of one's own,
`tool_choice`, `stop_sequences`, `thinking`, `output_config.format`. Refused: images, documents, Anthropic's
own tools, MCP servers, containers. `thinking` shows the thought; its budget changes nothing. Fields that
aren't known (Anthropic's clients keep sending new ones, `context_management` say) change nothing either. Own
fields: `protocol`, `engine`, `seed`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from localreact.serve import schemas
from localreact.serve.ask import Ask, Called, ClientError, Message, ToolChoice
from localreact.serve.wire import (
    Count,
    Loose,
    Strict,
    Temperature,
    TopK,
    TopP,
    Typed,
    no_part,
    refuse,
    sampling,
    stops_of,
    text_of,
)
from localreact.types import JsonSchema, ToolSpec


class Block(Loose):
    """`type` says which of the other fields there are."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None


class Turn(Loose):
    role: Literal["user", "assistant"]
    content: str | list[Block]


class OwnTool(Loose):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class Choice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Loose):
    type: Literal["enabled", "adaptive", "disabled"]


class Format(Loose):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Loose):
    format: Format | None = None


class Counted(Loose):
    """What tokens are counted of."""

    messages: list[Turn] = Field(min_length=1)
    model: str = ""
    system: str | list[Typed] | None = None
    tools: list[OwnTool] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    protocol: str | None = None
    engine: str | None = None

    # Refused, if they ask for something.
    mcp_servers: Any = None
    container: Any = None


class MessagesRequest(Counted):
    max_tokens: Count
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: int | None = None


def to_ask(body: Counted) -> Ask:
    """
    Raises:
        ClientError: 400, with the field that can't be served.
    """
    refuse({"mcp_servers": body.mcp_servers, "container": body.container})
    choice, named = _choice(body.tool_choice)
    ask = Ask(
        messages=tuple(_messages(body)),
        tools=tuple(_tool(each, number) for number, each in enumerate(body.tools or ())),
        tool_choice=choice,
        tool=named,
        answer=_answer(body.output_config),
        strict=any(each.strict for each in body.tools or ()),
        protocol=body.protocol,
        engine=body.engine,
        model=body.model,
    )
    if not isinstance(body, MessagesRequest):
        return ask
    return replace(
        ask,
        sampling=sampling(body.temperature, body.top_p, body.top_k, seed=body.seed),
        max_tokens=body.max_tokens,
        stops=stops_of(body.stop_sequences),
    )


def thinks(body: Counted) -> bool:
    """Whether the client asked for the thought."""
    return body.thinking is not None and body.thinking.type != "disabled"


def _messages(body: Counted) -> Iterator[Message]:
    if system := text_of(body.system, ("text",), "system"):
        yield Message("system", system)
    for number, turn in enumerate(body.messages):
        at = f"messages/{number}/content"
        if isinstance(turn.content, str):
            yield Message(turn.role, turn.content)
        elif turn.role == "user":
            yield from _said(turn.content, at)
        else:
            yield _written(turn.content, at)


def _said(blocks: Sequence[Block], at: str) -> Iterator[Message]:
    """Tool results first, as they have to follow their calls."""
    texts = []
    for number, block in enumerate(blocks):
        here = f"{at}/{number}"
        if block.type == "tool_result":
            text = text_of(_result(block, here), ("text",), f"{here}/content")
            if not block.tool_use_id:
                raise ClientError(
                    400, "a tool's result names the call that it answers", f"{here}/tool_use_id"
                )
            yield Message("tool", text, call_id=block.tool_use_id, failed=bool(block.is_error))
        elif block.type == "text":
            texts.append(block.text or "")
        else:
            raise no_part(block.type, here)
    if texts or not blocks:
        yield Message("user", "\n".join(texts))


def _result(block: Block, at: str) -> str | list[Typed] | None:
    content = block.content
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise ClientError(400, "a result's content is text, or a list of blocks", f"{at}/content")
    for number, each in enumerate(content):
        if each.get("type") != "text" or not isinstance(each.get("text"), str):
            raise no_part(str(each.get("type")), f"{at}/content/{number}")
    return [Typed(type="text", text=each["text"]) for each in content]


def _written(blocks: Sequence[Block], at: str) -> Message:
    texts, calls, thoughts = [], [], []
    for number, block in enumerate(blocks):
        match block.type:
            case "text":
                texts.append(block.text or "")
            case "thinking":
                thoughts.append(block.thinking or "")
            case "redacted_thinking":
                pass
            case "tool_use" if block.id and block.name:
                arguments = json.dumps(block.input or {}, ensure_ascii=False)
                calls.append(Called(block.id, block.name, arguments))
            case "tool_use":
                raise ClientError(400, "a tool_use block has an id and a name", f"{at}/{number}")
            case _:
                raise no_part(block.type, f"{at}/{number}")
    return Message("assistant", "\n".join(texts), tuple(calls), "\n".join(thoughts))


def _tool(given: OwnTool, number: int) -> ToolSpec:
    if given.type not in (None, "custom"):
        raise no_part(given.type, f"tools/{number}/type")
    if given.input_schema is None:
        raise ClientError(400, f"tool {given.name!r} has no input_schema", f"tools/{number}/input_schema")
    return ToolSpec(given.name, given.description or "", schemas.parameters(given.input_schema))


def _choice(given: Choice | None) -> tuple[ToolChoice, str]:
    match given.type if given else "auto":
        case "any":
            return "required", ""
        case "tool":
            return "named", (given and given.name) or ""
        case "none":
            return "none", ""
    return "auto", ""


def _answer(given: OutputConfig | None) -> JsonSchema | None:
    return given.format.schema_ if given and given.format else None
