"""Following a turn of literals and slots, token by token.

Where a turn may go on in several ways, all of them are followed at once, each as a thread: inside a literal,
a regex slot or a counted slot, with what may come after it. Threads are values, so forks cost nothing. What
comes after is a linked list of frames, one for each text and place, so that threads at the same place are
one; rules may refer to themselves.

No token reaches across the end of a regex slot, or from a literal into a slot: every text of the language can
be written, but not in every tokenization. Tokens may reach from a counted slot into the literal after it, as
those that end a sentence and a string at once, and from a literal into those that may follow it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from localreact.engines.positions import (
    Count,
    CountedSlot,
    Frame,
    Literal,
    Mask,
    Opening,
    Position,
    Rests,
    Scan,
    Thread,
    Tokens,
)
from localreact.errors import GrammarError
from localreact.grammar.regexes import escaped
from localreact.grammar.rules import Ref, Text
from localreact.grammar.slots import Chain, Choice, Counted, Loop, Pattern, Slots

T = TypeVar("T", bytes, tuple[int, ...])

_MAX_THREADS = 5000
_MAX_LITERAL = 2000  # bytes that are put together to be forced at once
_ESCAPES = (
    '\\"',
    "\\\\",
    "\\/",
    "\\b",
    "\\f",
    "\\n",
    "\\r",
    "\\t",
    *(f"\\u{code:04x}" for code in range(0xA0)),
)


class Turns:
    """A grammar in the notation of `grammar.slots`, for one vocabulary. Matchers share what it works out."""

    def __init__(self, rules: Mapping[str, Slots], tokens: Tokens) -> None:
        self._rules = rules
        self.tokens = tokens
        self._frames: dict[tuple[int, int], Frame] = {}
        self._loops: dict[tuple[int, int, int | None], Loop] = {}
        self._counted: dict[tuple[Counted, str], CountedSlot] = {}
        self._openings: dict[Rests, Opening] = {}
        self._positions: dict[Rests, Position] = {}
        self.begin = self.position((self._frame(rules["start"], None),))

    # --- where a turn may go on

    def position(self, rests: Rests) -> Position:
        """The position in which one of these comes next."""
        if (known := self._positions.get(rests)) is None:
            opening = self._opening(rests)
            threads: list[Thread] = [each for literal in opening.literals for each in self._extended(literal)]
            threads += [self._entered(slot, after) for slot, after in opening.slots]
            self._positions[rests] = known = Position(_merged(threads), opening.complete)
        return known

    def _opening(self, rests: Rests) -> Opening:
        if (known := self._openings.get(rests)) is None:
            self._openings[rests] = known = self._open(rests)
        return known

    def _open(self, rests: Rests) -> Opening:
        literals: dict[str, dict[Frame | None, None]] = {}
        slots: dict[Pattern | Counted, dict[Frame | None, None]] = {}
        complete = False
        seen: set[Frame] = set()
        waiting = list(reversed(rests))
        while waiting:
            frame = waiting.pop()
            if frame is None:
                complete = True
                continue
            if frame in seen:
                continue
            seen.add(frame)
            if len(seen) > 4 * _MAX_THREADS:
                raise GrammarError(
                    "the grammar has too many ways to go on, or a rule that begins with itself"
                )
            rest = frame.rest
            match frame.node:
                case Text(text):
                    if text:
                        literals.setdefault(text, {})[rest] = None
                    else:
                        waiting.append(rest)
                case Pattern(regex) as slot:
                    automaton = self.tokens.automaton(regex)
                    if final := automaton.final(automaton.start):
                        waiting.append(rest)
                    if not final or automaton.mask(automaton.start).any():
                        slots.setdefault(slot, {})[rest] = None
                case Counted(_, least, most) as slot:
                    if least == 0:
                        waiting.append(rest)
                    if most != 0:
                        slots.setdefault(slot, {})[rest] = None
                case Ref(name):
                    waiting.append(self._frame(self._rules[name], rest))
                case Chain(parts):
                    for part in reversed(parts):
                        rest = self._frame(part, rest)
                    waiting.append(rest)
                case Choice(options):
                    waiting += [self._frame(option, rest) for option in reversed(options)]
                case Loop(part, least, most) as loop:
                    if least == 0:
                        waiting.append(rest)
                    if most != 0:
                        waiting.append(self._frame(part, self._frame(self._again(loop), rest)))
        return Opening(
            tuple(
                Literal(text.encode("utf-8", "surrogatepass"), tuple(after))
                for text, after in literals.items()
            ),
            tuple((slot, tuple(after)) for slot, after in slots.items()),
            complete,
        )

    def _extended(self, literal: Literal) -> list[Literal]:
        """A literal with those that have to follow it, so that they are tokenized as one: also where several
        may follow, though only once."""
        grown = self._straight(literal)
        after = self._opening(grown.rests)
        if after.complete or after.slots or len(grown.left) >= _MAX_LITERAL:
            return [grown]
        return [self._straight(Literal(grown.left + each.left, each.rests)) for each in after.literals]

    def _straight(self, literal: Literal) -> Literal:
        left, rests = literal.left, literal.rests
        while len(left) < _MAX_LITERAL:
            after = self._opening(rests)
            if after.complete or after.slots or len(after.literals) != 1:
                break
            left, rests = left + after.literals[0].left, after.literals[0].rests
        return Literal(left, rests)

    def _entered(self, slot: Pattern | Counted, rests: Rests) -> Thread:
        if isinstance(slot, Pattern):
            automaton = self.tokens.automaton(slot.regex)
            return Scan(automaton, automaton.start, rests)
        tail = self._tail(slot.regex, rests)
        if (counted := self._counted.get((slot, tail))) is None:
            counted = CountedSlot(
                slot.least,
                slot.most,
                self.tokens.automaton(f"(?:{slot.regex})*(?:{''.join(map(escaped, tail))})?"),
                self.tokens.counter(_escapes(slot.regex), ord(tail[0]) if tail else None),
            )
            self._counted[slot, tail] = counted
        return Count(counted, counted.automaton.start, rests)

    def _tail(self, regex: str, rests: Rests) -> str:
        """How what follows a counted slot begins, if that can't be one of its characters."""
        after = self._opening(rests)
        if after.slots or not after.literals:
            return ""
        common = _common([self._straight(literal).left for literal in after.literals])
        tail = re.match(rb"[^\w\x80-\xff]{0,8}", common)
        text = tail[0].decode() if tail else ""
        return "" if re.fullmatch(regex, text[:1]) else text

    def _frame(self, node: Slots, rest: Frame | None) -> Frame:
        key = (id(node), id(rest))
        if (frame := self._frames.get(key)) is None:
            self._frames[key] = frame = Frame(node, rest)  # which keeps both alive, and so their ids
        return frame

    def _again(self, loop: Loop) -> Loop:
        """The loop after one more time round."""
        least, most = max(loop.least - 1, 0), None if loop.most is None else loop.most - 1
        if (least, most) == (loop.least, loop.most):
            return loop
        key = (id(loop.part), least, most)
        return self._loops.setdefault(key, Loop(loop.part, least, most))

    # --- going on

    def advance(self, position: Position, token: int) -> Position | None:
        """The position after a token; None where it isn't legal."""
        piece = self.tokens.pieces[token]
        if not piece:
            return None
        threads: list[Thread] = []
        opened: dict[Rests, None] = {}
        for thread in position.threads:
            match thread:
                case Literal(left, rests):
                    if left == piece:
                        opened[rests] = None
                    elif left.startswith(piece):
                        threads.append(Literal(left[len(piece) :], rests))
                case Scan(slot, state, rests):
                    if (following := slot.next(state, token)) is not None:
                        final = slot.final(following)
                        if final:
                            opened[rests] = None
                        if not final or slot.mask(following).any():
                            threads.append(Scan(slot, following, rests))
                case Count():
                    threads += self._counting(thread, token, piece, opened)
        complete = False
        for rests in opened:
            after = self.position(rests)
            threads += after.threads
            complete |= after.complete
        if not threads and not complete:
            return None
        if len(threads) > _MAX_THREADS:
            raise GrammarError("the turn can be read in too many ways at once")
        return Position(_merged(threads), complete)

    def _counting(
        self, thread: Count, token: int, piece: bytes, opened: dict[Rests, None]
    ) -> Iterable[Thread]:
        slot = thread.slot
        if (state := slot.automaton.next(thread.state, token)) is None:
            return
        step = slot.counter.step(token, thread.place)
        characters = thread.characters + step.characters
        if slot.most is not None and characters > slot.most:
            return
        if step.closing is not None:
            if characters >= slot.least:
                tail = piece[len(piece) - step.closing :]
                for each in self.position(thread.rests).threads:
                    if isinstance(each, Literal) and each.left == tail:
                        opened[each.rests] = None
                    elif isinstance(each, Literal) and each.left.startswith(tail):
                        yield Literal(each.left[len(tail) :], each.rests)
            return
        whole = slot.automaton.final(state)
        if whole and characters >= slot.least:
            opened[thread.rests] = None
        if not whole or characters != slot.most:
            yield Count(slot, state, thread.rests, characters, step.place)

    def allows(self, position: Position, token: int) -> bool:
        if token in self.tokens.eog:
            return position.complete
        return self.advance(position, token) is not None

    def mask(self, position: Position) -> Mask:
        legal = np.zeros(self.tokens.size, np.bool_)
        if position.complete:
            legal[list(self.tokens.eog)] = True
        for thread in position.threads:
            match thread:
                case Literal(left):
                    legal[self.tokens.beginnings(left)] = True
                case Scan(slot, state):
                    legal |= slot.mask(state)
                case Count():
                    legal |= _countable(thread)
        return legal

    def forced(self, position: Position) -> list[int]:
        literals = [thread.left for thread in position.threads if isinstance(thread, Literal)]
        if position.complete or not literals or len(literals) < len(position.threads):
            return []
        return list(_common([self.tokens.canonical(left) for left in literals])) if _common(literals) else []


def _common(texts: Sequence[T]) -> T:
    """The longest beginning that all have."""
    first, last = min(texts), max(texts)
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return first[:length]


def _countable(thread: Count) -> Mask:
    slot = thread.slot
    legal = slot.automaton.mask(thread.state)
    characters, closes = slot.counter.table(thread.place)
    if slot.most is not None:
        legal = legal & (characters <= slot.most - thread.characters)
    if thread.characters < slot.least:
        legal = legal & (~closes | (characters >= slot.least - thread.characters))
    return legal


def _escapes(regex: str) -> bool:
    """Whether a backslash begins an escape, rather than being a character like others (or none)."""
    return not re.fullmatch(regex, "\\") and any(re.fullmatch(regex, each) for each in _ESCAPES)


def _merged(threads: Iterable[Thread]) -> tuple[Thread, ...]:
    """Threads at the same place as one, with all that may come after them."""
    places: dict[Thread, dict[Frame | None, None]] = {}
    for thread in threads:
        places.setdefault(replace(thread, rests=()), {}).update(dict.fromkeys(thread.rests))
    return tuple(replace(thread, rests=tuple(rests)) for thread, rests in places.items())
