"""What tells one kind of server from another: where to send what, and how to read what comes back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from localreact.endpoints.http import Transport
from localreact.types import Limits, Prompt, Sampling, StopReason


@dataclass(frozen=True)
class Spelling:
    """One way to ask a server for a grammar: `fields` are what a request gets of a grammar's text.

    A dialect lists those that its servers may take; which they do is for the probe to find out.
    """

    language: str
    name: str
    fields: Callable[[str], Mapping[str, Any]]


@dataclass(frozen=True)
class About:
    """What a server tells of its model, as far as it does."""

    model: str
    fingerprint: str
    n_ctx: int | None = None
    template: str | None = None
    bos: str = ""
    eos: str = ""
    names: tuple[str, ...] = ()
    """Other names, by which a model card may know it: the file, the path."""


@dataclass(frozen=True)
class Request:
    """One completion. `prompt` is text, or ids where the dialect takes them."""

    prompt: str | list[int]
    constraint: Mapping[str, Any]
    max_tokens: int
    stops: tuple[str, ...]
    sampling: Sampling
    seed: int
    logprobs: bool = False


@dataclass(frozen=True)
class Piece:
    """What one event adds. `stop` is set by the last one that says how it ended; counts come whenever
    the server tells them, and the last one holds. `tokens` is None where this piece's ids aren't known."""

    text: str = ""
    tokens: tuple[int, ...] | None = None
    stop: StopReason | None = None
    prompt_tokens: int | None = None
    reused: int | None = None
    generated: int | None = None
    logprobs: bool = False


def short(model: str) -> str:
    """A model's name without the folders of somebody's disk; `org/model` stays."""
    is_path = re.match(r"[/~.\\]|[A-Za-z]:[\\/]", model)
    return re.split(r"[/\\]", model)[-1] if is_path else model


class Dialect(Protocol):
    transport: Transport

    @property
    def kind(self) -> str:
        """As it stands in addresses (`llama-server`)."""

    @property
    def spellings(self) -> tuple[Spelling, ...]:
        """Every way in which such a server may take a grammar, the preferred language first."""

    @property
    def penalises(self) -> bool:
        """Whether it takes `repeat_penalty` and `repeat_last_n`, as they are meant in process."""

    def about(self, limits: Limits | None) -> About:
        """
        Raises:
            EndpointError: the server isn't there, or isn't of this kind.
        """

    def alive(self, limits: Limits | None) -> None:
        """Ask for something that costs nothing.

        Raises:
            EndpointError: the server doesn't answer.
        """

    def ids(self, prompt: Prompt, limits: Limits | None) -> list[int] | None:
        """The prompt as ids that hold no control token that the runtime didn't put there; None where
        this server takes text only."""

    def request(self, request: Request) -> tuple[str, dict[str, Any]]:
        """The path and the body of a streamed completion."""

    def reader(self) -> Callable[[Mapping[str, Any]], Piece]:
        """Reads the events of one stream, in order."""


@dataclass
class Received:
    """The pieces of a completion, added up."""

    texts: list[str] = field(default_factory=list)
    tokens: list[int] | None = field(default_factory=list)
    stop: StopReason | None = None
    prompt_tokens: int | None = None
    reused: int | None = None
    generated: int | None = None
    logprobs: bool = False
    events: int = 0

    def add(self, piece: Piece) -> None:
        self.events += 1
        if piece.text:
            self.texts.append(piece.text)
        if piece.tokens is None:
            self.tokens = None
        elif self.tokens is not None:
            self.tokens += piece.tokens
        self.stop = piece.stop or self.stop
        self.logprobs = self.logprobs or piece.logprobs
        for name in ("prompt_tokens", "reused", "generated"):
            if (value := getattr(piece, name)) is not None:
                setattr(self, name, value)

    @property
    def text(self) -> str:
        """All of it; a character that came as two surrogates, in two pieces, is one."""
        return "".join(self.texts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
