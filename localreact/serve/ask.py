"""What a client asks for, whatever dialect it speaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from localreact.errors import LocalReactError
from localreact.types import JsonSchema, Sampling, ToolSpec

Role = Literal["system", "user", "assistant", "tool"]
ToolChoice = Literal["auto", "none", "required", "named"]

ANY_OBJECT: JsonSchema = {"type": "object"}
"""The answer's schema where a client wants some JSON object."""


@dataclass(frozen=True, slots=True)
class Called:
    """A tool call: `arguments` is JSON text, as it was written, to the byte."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """`developer` is `system`; parts of text come joined, missing content is empty.

    An assistant may have made `calls`, and have thought before (`thought`); a tool's result names the call
    that it answers (`call_id`), and whether that `failed`.
    """

    role: Role
    content: str = ""
    calls: tuple[Called, ...] = ()
    thought: str = ""
    call_id: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """What a plain text is held to: a grammar (in that `language`, or one that it is recognised by), a JSON
    Schema, a regex, or one of several texts. `param` is the field that asked for it."""

    kind: Literal["grammar", "json", "regex", "choice"]
    value: Any
    param: str = "grammar"
    language: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. Either `messages`, or a `prompt`: raw text to go on with, without a chat template.

    With tools, an `answer` schema, or tool calls in the history, the reply is one turn of a protocol under
    its grammar: a call, or an answer. Otherwise it is plain text by the model's chat template (or `held`
    to what the client says, which goes with none of these).

    Args:
        tool_choice: `named` goes with the tool's name in `tool`.
        answer: the JSON Schema that an answer's content has to fit; None: it is text.
        strict: tools, answer and a schema in `held` are refused unless the grammar holds all of them.
        max_tokens: None: as many as the server's settings and the context leave.
        stops: content ends before the first of them. They don't touch tool calls.
        n: replies to the same.
        protocol, engine: None: the server's own.
        reasoning_tokens: None: as usual with the model.
        logprobs: tokens of plain text come with their log-probabilities, and those of so many likeliest.
        cite: the answer carries quotes from the tool results.
        model: the name the client gave; empty: any.
    """

    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = "auto"
    tool: str = ""
    answer: JsonSchema | None = None
    strict: bool = False
    held: Held | None = None
    sampling: Sampling = Sampling()  # noqa: RUF009  (frozen)
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    n: int = 1
    protocol: str | None = None
    engine: str | None = None
    reasoning_tokens: int | None = None
    logprobs: int | None = None
    cite: bool = False
    model: str = ""


class ClientError(LocalReactError):
    """The client's fault (400, 401, 404, 413, 422), or that it comes when it can't be served (429, 503).

    `param` names the field of the request, with a JSON pointer where that helps (`tools/2/parameters`);
    `code` is a word for programs; `retry_after` is in seconds.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after
