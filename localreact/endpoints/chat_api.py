"""A server's own tool calling: `/v1/chat/completions` with `tools`, as all kinds here offer it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localreact.endpoints.answers import TOO_LONG
from localreact.endpoints.llama_server import penalty
from localreact.endpoints.neutral import markers_of, neutral
from localreact.endpoints.probe import LONGEST, REFUSALS
from localreact.endpoints.server import ServerEndpoint, estimate
from localreact.errors import ContextOverflowError, EndpointError, ServerError
from localreact.protocols.reasoning import split
from localreact.types import Limits, Reasoning, Sampling, ToolSpec, Usage

Message = dict[str, Any]
IDLE = 600.0  # seconds for a reply, which comes all at once


@dataclass(frozen=True)
class NativeCall:
    """A call as the model wrote it; `arguments` is text that may be no JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """`thought` is the model's reasoning, or what it said beside its calls; `message` the assistant's, as it
    goes back in the next request."""

    content: str
    thought: str
    calls: tuple[NativeCall, ...]
    cut: bool
    message: Message
    usage: Usage
    neutralised: int = 0
    """Control markers that were broken in what the model was sent."""


class ChatApi:
    def __init__(self, server: ServerEndpoint) -> None:
        self.server = server
        self._transport = server.dialect.transport
        patience = self._transport.patience
        self._patience = replace(patience, idle=max(patience.idle, IDLE))
        self.penalises = server.dialect.kind == "llama-server"
        """Whether it takes a repeat penalty here too."""

        self._path = "/chat/completions" if server.dialect.kind == "openai" else "/v1/chat/completions"

    def count(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
        """Tokens of a conversation, estimated."""
        said = json.dumps([*messages, *(_tool(each) for each in tools)], ensure_ascii=False)
        return estimate(said)

    def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        choice: str,
        limits: Limits,
        sampling: Sampling,
    ) -> Reply:
        """What the model says next. `choice` is `auto`, `none` or `required`. What users and tools say can't
        become control tokens: what may be one there is sent broken.

        Raises:
            StoppedError: a limit ended the waiting.
            ServerError: the server refused.
            ContextOverflowError: the conversation is too long for it.
            EndpointError: it failed, or answered in another shape.
        """
        sent, broken = self._neutral(messages)
        body: dict[str, Any] = {
            "model": self.server.model,
            "messages": sent,
            "max_tokens": limits.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "stream": False,
        }
        if sampling.repeat_penalty != 1 and self.penalises:
            body |= penalty(sampling)
        if tools:
            body |= {"tools": [_tool(each) for each in tools], "tool_choice": choice}
        try:
            answer = self._transport.post(self._path, body, limits, self._patience)
        except ServerError as error:
            if error.status == TOO_LONG:
                raise ContextOverflowError(error.message, error.hint) from error
            raise
        try:
            return replace(_reply(answer, self.server.tags), neutralised=broken)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise EndpointError(
                f"{self.server.name} answered a chat completion of another shape: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _neutral(self, messages: Sequence[Message]) -> tuple[list[Message], int]:
        markers, sent, broken = markers_of(self.server.chat), [], 0
        for message in messages:
            if message["role"] in ("user", "tool"):
                content, count = neutral(message["content"], markers)
                message, broken = {**message, "content": content}, broken + count
            sent.append(message)
        return sent, broken


def _tool(spec: ToolSpec) -> Message:
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


def _reply(answer: Mapping[str, Any], tags: Reasoning) -> Reply:
    choice = answer["choices"][0]
    message = choice["message"]
    calls = []
    for number, each in enumerate(message.get("tool_calls") or ()):
        function = each["function"]
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        calls.append(NativeCall(str(each.get("id") or f"call_{number}"), str(function["name"]), text))
    content = message.get("content") or ""
    if isinstance(content, list):  # in parts
        content = "".join(str(part.get("text") or "") for part in content)
    usage, details = answer.get("usage") or {}, (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    said = content + "".join(call.name + call.arguments for call in calls)
    back: Message = {"role": "assistant", "content": content}
    if calls:
        back["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    # Where the template opened the reasoning, and the server didn't set it apart, only its end is there.
    reasoning, rest = split(content, replace(tags, opened=tags.opened and tags.close in content))
    return Reply(
        content=rest.strip(),
        thought=str(message.get("reasoning_content") or reasoning or (rest if calls else "")).strip(),
        calls=tuple(calls),
        cut=choice.get("finish_reason") == "length",
        message=back,
        usage=Usage(
            prompt=usage.get("prompt_tokens") or 0,
            reused=details.get("cached_tokens") or 0,
            sampled=usage.get("completion_tokens") or estimate(said),
        ),
    )


_verdicts: dict[str, str] = {}
_deciding = threading.Lock()

_LOOKUP = ToolSpec(
    "look_up_code",
    "Look up the secret code of a person.",
    {
        "type": "object",
        "properties": {"person": {"type": "string", "description": "First name."}},
        "required": ["person"],
    },
)


def objection_to_native(api: ChatApi) -> str:
    """Why this model's own tool calling can't be used; empty where it can. Asked once a process.

    Raises:
        EndpointError: the server fails in a way that says nothing of tools.
    """
    with _deciding:
        if (known := _verdicts.get(api.server.name)) is None:
            known = _verdicts[api.server.name] = _ask(api)
        return known


def known_objection(api: ChatApi) -> str:
    """What was found out so far; nothing is asked."""
    return _verdicts.get(api.server.name, "")


def remember(api: ChatApi, objection: str) -> None:
    """A run found out what asking had not."""
    with _deciding:
        _verdicts[api.server.name] = objection


def _ask(api: ChatApi) -> str:
    question = "What is the secret code of Ada? Use the tool."
    limits = Limits(128, deadline=time.monotonic() + LONGEST)
    try:
        reply = api.reply([{"role": "user", "content": question}], [_LOOKUP], "auto", limits, Sampling())
    except ServerError as error:
        if error.status not in REFUSALS:
            raise
        return f"refuses tools: {error.message}"
    if not reply.calls:
        return f"ignores tools: it said {reply.content[:60]!r}"
    call = reply.calls[0]
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = None
    if call.name != _LOOKUP.name or not isinstance(arguments, dict) or "person" not in arguments:
        return f"breaks the format: it called {call.name!r} with {call.arguments[:60]!r}"
    return ""
