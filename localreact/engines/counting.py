"""How many characters each token of a vocabulary adds to a counted slot.

A character counts where it begins: a token that ends inside of one has begun it. An escape of a JSON string
(a backslash and a letter, or `\\uXXXX`) is one character, as are the bytes of one in UTF-8.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PLAIN = 0
"""Where a character may begin (or go on: continuation bytes of UTF-8 tell themselves)."""

_BACKSLASH, _QUOTE_U = 0x5C, 0x75
_AFTER_BACKSLASH = 1
_INSIDE = {bytes([byte]) for byte in b'"\\/bfnrtu0123456789abcdefABCDEF'}  # what an escape goes on with
_LAST_DIGIT = 5  # 2 to 5: that many of the four digits of \\uXXXX, less two, stand already


@dataclass(frozen=True, slots=True)
class Step:
    """What a token does from some place: characters that it begins, where it ends, and how many of its bytes
    belong to what comes after the slot (None: it doesn't close the slot)."""

    characters: int
    place: int
    closing: int | None


class Counter:
    """Counts for slots of one kind: whether backslashes escape, and the byte that closes (if one does)."""

    def __init__(self, pieces: Sequence[bytes], escapes: bool, closer: int | None) -> None:
        self._pieces = pieces
        self._escapes = escapes
        self._closer = closer
        self.table = functools.lru_cache(maxsize=None)(self._table)

    def step(self, token: int, place: int) -> Step:
        return self._walk(self._pieces[token], place)

    def _walk(self, piece: bytes, place: int) -> Step:
        characters = 0
        for at, byte in enumerate(piece):
            if place == PLAIN:
                if byte == self._closer:
                    return Step(characters, PLAIN, len(piece) - at)
                characters += byte & 0xC0 != 0x80
                if byte == _BACKSLASH and self._escapes:
                    place = _AFTER_BACKSLASH
            elif place == _AFTER_BACKSLASH:
                place = 2 if byte == _QUOTE_U else PLAIN
            else:
                place = PLAIN if place == _LAST_DIGIT else place + 1
        return Step(characters, place, None)

    def _table(self, place: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """For every token from a place: how many characters it begins, and whether it closes the slot."""
        # Most tokens are only counted: what can't go on from the place, no automaton allows.
        special = re.compile(
            b"[\\\\%s]" % re.escape(bytes([self._closer] if self._closer is not None else []))
        )
        characters = np.zeros(len(self._pieces), np.int32)
        closes = np.zeros(len(self._pieces), np.bool_)
        if place == PLAIN:
            data = np.frombuffer(b"".join(self._pieces), np.uint8)
            begins = np.concatenate([[0], np.cumsum(data & 0xC0 != 0x80)])
            ends = np.cumsum([len(piece) for piece in self._pieces])
            characters[:] = begins[ends] - np.concatenate([[0], begins[ends[:-1]]])
        for token, piece in enumerate(self._pieces):
            if special.search(piece) if place == PLAIN else piece[:1] in _INSIDE:
                step = self._walk(piece, place)
                characters[token], closes[token] = step.characters, step.closing is not None
        return characters, closes
