"""No grammar: the control arm. Stop strings end a turn, and the strict parser has to hold."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localreact.decoding.vocab import Vocab
from localreact.types import Reasoning


class FreeMatcher:
    """Allows everything. Done at a stop string, or at a control token: what comes after one isn't
    part of this turn, and its id must not stand in the next prompt. In reasoning that the text begins
    with, stop strings are text."""

    def __init__(self, vocab: Vocab, stops: Sequence[str], reasoning: Reasoning | None = None) -> None:
        self._vocab = vocab
        self._stops = [stop.encode() for stop in stops]
        self._tail = b""
        self._tags = (reasoning.open.encode(), reasoning.close.encode()) if reasoning else None
        self._beginning = b""  # the text so far, while it is or may become reasoning
        self._longest = max(map(len, self._stops), default=0)
        self.done = False

    def forced(self) -> list[int]:
        return []

    def allows(self, token: int) -> bool:
        return True

    def mask(self) -> NDArray[np.bool_]:
        return np.ones(self._vocab.size, np.bool_)

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            text = self._tail + self._after_reasoning(self._vocab.pieces[token])
            self.done = self.done or token in self._vocab.control or any(stop in text for stop in self._stops)
            self._tail = text[-self._longest :] if self._longest else b""

    def fork(self) -> FreeMatcher:
        return copy.copy(self)

    def _after_reasoning(self, piece: bytes) -> bytes:
        """What of the text's next bytes may hold a stop string."""
        if self._tags is None:
            return piece
        open_, close = self._tags
        self._beginning += piece
        begun = self._beginning.lstrip()
        if begun.startswith(open_) and close not in begun:
            return b""
        if open_.startswith(begun):
            return b""
        self._tags = None
        _, closed, rest = begun.partition(close) if begun.startswith(open_) else (b"", b"", b"")
        return rest if closed else self._beginning


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string in it."""
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text
