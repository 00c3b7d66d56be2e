"""No grammar: the control arm. Stop strings end a turn, and the strict parser has to hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localreact.decoding.vocab import Vocab


class FreeMatcher:
    """Allows everything. Done at a stop string, or at a control token: what comes after one isn't
    part of this turn, and its id must not stand in the next prompt."""

    def __init__(self, vocab: Vocab, stops: Sequence[str]) -> None:
        self._vocab = vocab
        self._stops = [stop.encode() for stop in stops]
        self._tail = b""
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
            piece = self._vocab.pieces[token]
            text = self._tail + piece
            self.done = self.done or token in self._vocab.control or any(stop in text for stop in self._stops)
            self._tail = text[-self._longest :] if self._longest else b""

    def fork(self) -> FreeMatcher:
        twin = FreeMatcher(self._vocab, ())
        twin._stops, twin._longest = self._stops, self._longest
        twin._tail, twin.done = self._tail, self.done
        return twin


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string in it."""
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text
