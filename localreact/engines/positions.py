"""Where a turn of literals and slots may be: values, and what they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from localreact.engines.counting import PLAIN, Counter
from localreact.grammar.slots import Counted, Pattern, Slots

Mask: TypeAlias = NDArray[np.bool_]


class Automaton(Protocol):
    """A regex over the tokens of a vocabulary. States are numbers."""

    start: int

    def next(self, state: int, token: int) -> int | None:
        """The state after a token that has bytes; None where it isn't legal."""

    def final(self, state: int) -> bool: ...

    def mask(self, state: int) -> Mask:
        """The legal tokens; not to be written to."""


class Tokens(Protocol):
    """What threads ask of a vocabulary."""

    size: int
    eog: frozenset[int]
    pieces: list[bytes]  # empty for tokens that no turn may hold

    def automaton(self, regex: str) -> Automaton: ...

    def counter(self, escapes: bool, closer: int | None) -> Counter: ...

    def beginnings(self, text: bytes) -> list[int]:
        """The tokens that are a beginning of the text."""

    def canonical(self, text: bytes) -> tuple[int, ...]:
        """The text as the model's own tokenizer writes it."""


class Frame:
    """Something that has still to come, and what comes after it. Equal only to itself."""

    __slots__ = ("node", "rest")

    def __init__(self, node: Slots, rest: Frame | None) -> None:
        self.node = node
        self.rest = rest


Rests: TypeAlias = tuple[Frame | None, ...]
"""What may come after a thread, each in a frame; None for the end of the turn."""


@dataclass(frozen=True, slots=True)
class Literal:
    """Inside a literal, of which `left` is still to come."""

    left: bytes
    rests: Rests


@dataclass(frozen=True, slots=True)
class Scan:
    """Inside a regex slot."""

    slot: Automaton
    state: int
    rests: Rests


@dataclass(frozen=True, slots=True)
class Count:
    """Inside a counted slot: after so many characters, at a place of the counter (inside an escape)."""

    slot: CountedSlot
    state: int
    rests: Rests
    characters: int = 0
    place: int = PLAIN


Thread: TypeAlias = Literal | Scan | Count


@dataclass(frozen=True, eq=False)
class CountedSlot:
    least: int
    most: int | None
    automaton: Automaton
    counter: Counter


@dataclass(frozen=True, slots=True)
class Opening:
    """What comes next, not yet entered: literals, slots, the end."""

    literals: tuple[Literal, ...]
    slots: tuple[tuple[Pattern | Counted, Rests], ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class Position:
    """All that a turn may be in the middle of; `complete` if it may also end here."""

    threads: tuple[Thread, ...]
    complete: bool
