"""The stretch before a turn in which a model may reason: any text, up to the closing tag or a budget."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localreact.decoding.vocab import Vocab
from localreact.errors import GrammarError
from localreact.protocols.reasoning import AFTER, closing, opening
from localreact.types import Reasoning


class ReasoningEngine:
    """For one vocabulary and one pair of tags, which may be tokens of their own or plain text."""

    def __init__(self, vocab: Vocab, tags: Reasoning) -> None:
        self.pieces = vocab.pieces
        self.close = tags.close.encode()
        self.opening = vocab.encode_trusted(opening(tags))
        self.closing = vocab.encode_trusted(closing(tags))
        self.after = vocab.encode_trusted(AFTER)
        ids = vocab.encode_trusted(tags.close)
        self.close_token = ids[0] if len(ids) == 1 else None
        self.legal = np.ones(vocab.size, np.bool_)
        self.legal[list(vocab.control | vocab.markers)] = False
        if self.close_token is not None:
            self.legal[self.close_token] = True
        last = self.close[-1:]
        # Tokens that might end the tag and go on, with what would be the beginning of the turn.
        self.overrunning = [token for token, piece in enumerate(self.pieces) if last in piece[:-1]]

    def start(self, budget: int) -> ReasoningMatcher:
        """`budget` counts the tokens that the model chooses, the closing tag not among them."""
        return ReasoningMatcher(self, budget)


class ReasoningMatcher:
    """Done behind the closing tag and the blank line after it. The runtime writes both, if the model has
    spent its budget; control tokens and other markup are never legal."""

    def __init__(self, engine: ReasoningEngine, budget: int) -> None:
        self._engine = engine
        self._due = list(engine.opening)
        self._left = budget
        self._tail = b""  # of the text, as long as a tag's beginning may be
        self._closed = False
        self.done = False
        if budget == 0:
            self._close(engine.closing)

    def forced(self) -> list[int]:
        return list(self._due)

    def allows(self, token: int) -> bool:
        if self._due:
            return token == self._due[0]
        return not self.done and bool(self._engine.legal[token]) and not (self._rest(token) or b"").strip()

    def mask(self) -> NDArray[np.bool_]:
        if self._due or self.done:
            only = np.zeros(len(self._engine.legal), np.bool_)
            only[self._due[:1]] = True
            return only
        mask: NDArray[np.bool_] = self._engine.legal.copy()
        for token in self._engine.overrunning:
            mask[token] = self.allows(token)
        return mask

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not self.allows(token):
                raise GrammarError(f"token {token} isn't legal in reasoning")
            if self._due:
                del self._due[0]
                self.done = self._closed and not self._due
            elif (rest := self._rest(token)) is not None:
                self._close([] if rest else self._engine.after)
            else:
                self._tail = (self._tail + self._engine.pieces[token])[1 - len(self._engine.close) :]
                self._left -= 1
                if self._left == 0:
                    self._close(self._engine.closing)

    def fork(self) -> ReasoningMatcher:
        twin = copy.copy(self)
        twin._due = list(self._due)
        return twin

    def _rest(self, token: int) -> bytes | None:
        """What stands behind the closing tag if this token completes it; None if it doesn't."""
        if token == self._engine.close_token:
            return b""
        _, closed, rest = (self._tail + self._engine.pieces[token]).partition(self._engine.close)
        return rest if closed else None

    def _close(self, tokens: Sequence[int]) -> None:
        self._due += tokens
        self._closed = True
        self.done = not self._due
