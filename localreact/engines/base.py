"""The interface between the decode loop and whatever enforces a grammar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localreact.types import TurnGrammar


class Matcher(Protocol):
    """One turn being written under a grammar."""

    def forced(self) -> list[int]:
        """Tokens that the grammar leaves no choice about now (canonically tokenized), possibly none."""

    def allows(self, token: int) -> bool:
        """Whether one token may come next; much cheaper than a mask. End-of-generation tokens are
        allowed exactly when the text so far is a complete turn."""

    def mask(self) -> NDArray[np.bool_]:
        """Which tokens may come next: one flag per vocabulary entry, valid until the next call."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Advance.

        Raises:
            GrammarError: a token isn't legal here.
        """

    @property
    def done(self) -> bool:
        """The turn is complete and nothing more is legal: stop at once."""

    def fork(self) -> Matcher:
        """An independent copy, for speculation and parallel branches."""


def accepts_bytes(matcher: Matcher, eog: Iterable[int], text: str) -> bool:
    """Whether a text is exactly one legal turn, by a matcher at its beginning that takes bytes for tokens."""
    for byte in text.encode("utf-8", "replace"):
        if matcher.done or not matcher.allows(byte):
            return False
        matcher.accept([byte])
    return matcher.done or any(map(matcher.allows, eog))


class Engine(Protocol):
    """Compiles turn grammars for one vocabulary."""

    name: str
    language: str

    def start(self, grammar: TurnGrammar) -> Matcher:
        """A matcher at the beginning of a turn.

        Raises:
            GrammarError: the grammar can't be compiled; the message says why.
        """
