"""A client's messages as an append-only prompt, in the spelling of the protocol that the reply is held to.

Chat formats know user and model, in turns. So what a user, tools and late system messages say between two
replies becomes one message of the user's, and an assistant's message with several calls one exchange each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from localreact.context import Transcript, opening
from localreact.endpoints.chat import ChatFormat
from localreact.errors import ProtocolError
from localreact.examples import examples_for
from localreact.grammar import quotes
from localreact.protocols import Protocol
from localreact.protocols.strict_json import load_object
from localreact.serve.ask import Ask, Called, ClientError, Message
from localreact.types import Finish, JsonSchema, Observation, Prompt, Segment, Source, ToolCall, ToolSpec

PLAIN_SYSTEM = "You are a helpful assistant."

Written = Callable[[Called], tuple[str, tuple[int, ...]] | None]
"""The turn in which the model made a call, as it wrote it (text and ids), if that is still known."""

Said = list[Segment]


@dataclass(frozen=True)
class Call:
    called: Called
    thought: str
    at: str
    """The field of the request, for errors."""


def plain_prompt(messages: Sequence[Message], chat: ChatFormat) -> Prompt:
    """For a plain reply by the chat template. Where the assistant spoke last, the reply goes on with that."""
    system, rest = _system(messages)
    transcript = Transcript(chat, [Segment(system or PLAIN_SYSTEM)])
    pending: list[Said] = []
    for each in rest:
        if each.role != "assistant":
            pending.append([Segment(each.content)])
        else:
            transcript.user(_joined(pending))
            transcript.model(each.content)
            pending = []
    if pending or not rest:
        transcript.user(_joined(pending))
    return transcript.prompt


def turn_prompt(
    ask: Ask,
    chat: ChatFormat,
    protocol: Protocol,
    tools: tuple[ToolSpec, ...],
    answer: JsonSchema | None,
    examples: int,
    written: Written,
) -> tuple[Prompt, tuple[Source, ...]]:
    """For a reply that is a turn, with what an answer can cite.

    Raises:
        ClientError: the history holds what can't be put so.
    """
    system, rest = _system(ask.messages)
    said = protocol.instructions(tools, ask.cite)
    if answer is not None:
        schema = json.dumps(answer, ensure_ascii=False)
        said += [Segment("\nAnswer as JSON for the schema ", True), Segment(f"{schema}.")]
    if system:
        said += [Segment("\n\n", True), Segment(system)]
    transcript = opening(chat, protocol, said, examples_for(tools, examples), ask.cite)
    sources: list[Source] = []
    pending: list[Said] = []
    step = 0
    for kind, value in _exchanges(rest, len(ask.messages) - len(rest)):
        match kind, value:
            case "said", str(text):
                pending.append([Segment(text)])
            case "result", Message() as result:
                step += 1
                observation = Observation("", result.content, ok=not result.failed)
                citable = ask.cite and not result.failed
                pending.append(protocol.observation(observation, step if citable else None))
                if citable and (source := quotes.source(step, result.content, result.content)):
                    sources.append(source)
            case _:
                transcript.user(_joined(pending))
                pending = []
                text, ids = _turn(value, protocol, written)
                transcript.model(text, ids)
    transcript.user(_joined(pending))
    return transcript.prompt, tuple(sources)


def _system(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """The system text that a conversation begins with, and what comes after it."""
    first = next((i for i, each in enumerate(messages) if each.role != "system"), len(messages))
    return "\n\n".join(each.content for each in messages[:first] if each.content), messages[first:]


def _joined(parts: Sequence[Said]) -> Said:
    """Several things said in one message."""
    joined: Said = []
    for number, part in enumerate(parts):
        joined += [Segment("\n\n", True), *part] if number else part
    return joined


def _exchanges(messages: Sequence[Message], first: int) -> Iterator[tuple[str, str | Message | Call]]:
    """What was said, each call followed by its result, and what the model answered, in order.

    Raises:
        ClientError: a call without a result, or a result without a call.
    """
    at = 0
    while at < len(messages):
        message, here = messages[at], first + at
        at += 1
        if message.role == "tool":
            raise ClientError(
                400,
                f"the result {message.call_id!r} doesn't follow the call that it answers",
                f"messages/{here}/tool_call_id",
            )
        if message.role != "assistant":
            yield "said", message.content
            continue
        if not message.calls:
            yield "answer", message
            continue
        results: dict[str, Message] = {}
        known = {call.id for call in message.calls}
        while at < len(messages) and messages[at].role == "tool":
            result = messages[at]
            if result.call_id not in known or result.call_id in results:
                raise ClientError(
                    400,
                    f"the result {result.call_id!r} answers no call of the message before, or one that has "
                    "its result",
                    f"messages/{first + at}/tool_call_id",
                )
            results[result.call_id] = result
            at += 1
        for number, call in enumerate(message.calls):
            where = f"messages/{here}/tool_calls/{number}"
            if call.id not in results:
                raise ClientError(400, f"the call {call.id!r} has no result", where)
            thought = (message.thought or message.content) if number == 0 else ""
            yield "call", Call(call, thought, where)
            yield "result", results[call.id]


def _turn(value: object, protocol: Protocol, written: Written) -> tuple[str, tuple[int, ...]]:
    """The text of an earlier turn, and its ids where the model itself wrote it here."""
    if isinstance(value, Message):
        return protocol.write(Finish(value.thought, answer=value.content)), ()
    assert isinstance(value, Call)
    called = value.called
    if (known := written(called)) is not None:
        return known
    try:
        arguments = load_object(called.arguments.strip() or "{}")
    except ProtocolError as error:
        raise ClientError(
            400, f"the arguments are {error.message}", f"{value.at}/function/arguments"
        ) from error
    return protocol.write(ToolCall(value.thought or f"I use {called.name}.", called.name, arguments)), ()
