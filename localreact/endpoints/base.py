"""What an endpoint can do."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Protocol

from localreact.endpoints.cards import ModelCard
from localreact.endpoints.chat import ChatFormat
from localreact.types import Completion, Limits, Prompt, Reasoning, Sampling, Span, TurnGrammar

LEVELS = {
    "gbnf": "enforced by the server's grammar",
    "lark": "enforced by the server's grammar",
    "json_schema": "enforced by the server's JSON schema",
    "regex": "enforced by the server's regex",
}
CHECKED_ONLY = "checked only"
IN_PROCESS = "enforced in process"


def level_of(languages: Sequence[str]) -> str:
    """How a server holds a model to its turns, in words; the first language is the strongest."""
    return LEVELS[languages[0]] if languages else CHECKED_ONLY


class Endpoint(Protocol):
    name: str
    """What people call it."""

    fingerprint: str
    """Tells one model from another, for traces."""

    languages: tuple[str, ...]
    """Grammar languages that it enforces, the preferred one first; empty: texts are only checked."""

    @property
    def level(self) -> str:
        """The guarantee that goes with them, in words; every turn is checked afterwards whatever it is."""

    chat: ChatFormat
    card: ModelCard
    n_ctx: int
    reasoning: Reasoning | None
    """Between which tags the model reasons before a turn; None where it doesn't."""

    notices: list[str]
    """What a person should know before the first run (no chat template, say)."""

    def count(self, prompt: Prompt) -> int:
        """Tokens of a prompt; an estimate where the endpoint can't tell."""

    def check(self, grammar: TurnGrammar) -> None:
        """
        Raises:
            GrammarError: the grammar can't be enforced here.
        """

    def complete(
        self, prompt: Prompt, grammar: TurnGrammar | None, limits: Limits, sampling: Sampling, turn: int = 0
    ) -> Generator[Span, None, Completion]:
        """One turn, and before it reasoning, where the limits allow it. Yields text as it is made; returns
        the whole.

        `turn` sets the random numbers of one run's turns apart.

        Raises:
            EndpointError: the endpoint failed.
            ContextOverflowError: the prompt doesn't fit.
            GrammarError: the grammar can't be enforced.
        """

    def close(self) -> None: ...


def whole(writing: Generator[Span, None, Completion]) -> Completion:
    """A completion that nobody watches being made."""
    with closing(writing):
        while True:
            try:
                next(writing)
            except StopIteration as finished:
                completion: Completion = finished.value
                return completion
