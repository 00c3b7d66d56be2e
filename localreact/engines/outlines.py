"""The outlines engine: turns cut into literals and slots, each slot an index of outlines' core.

An index of a whole turn takes seconds and gigabytes; those of slots take milliseconds and are the same for
all turns, so they are kept in memory and not on disk. States of an index are numbers, which threads carry
themselves (outlines' `Guide` is one such number). outlines' own vocabulary would let control tokens into a
turn; ours leaves them out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
from outlines_core import Index, Vocabulary

from localreact.decoding.vocab import Vocab
from localreact.engines.base import accepts_bytes
from localreact.engines.counting import Counter
from localreact.engines.positions import Mask, Position
from localreact.engines.slots import Turns
from localreact.errors import GrammarError
from localreact.grammar.slots import read, regexes
from localreact.types import TurnGrammar

_EDGE = b"\0"
"""Begins and ends every regex that is indexed; no turn holds it. From a state in which a match may end, the
index goes to other such states only (of `1.5`, it would refuse the point after the `1`): let there be none.
And outlines' automaton is one for finding the regex anywhere: of `[ab][a-c]{0,20}`, it would have a state for
every set of places at which a match may have begun. So let it begin in one place only."""


class OutlinesEngine:
    """Compiles for one vocabulary; make it with `for_vocab` or `over_bytes`.

    Args:
        pieces: the bytes of every token; empty for those that no turn may hold.
        eog: the tokens that end a generation.
        encode: the model's own tokenizer, for text that is forced.
    """

    name = "outlines"
    language = "slots"

    def __init__(
        self, pieces: Sequence[bytes], eog: frozenset[int], encode: Callable[[str], Sequence[int]]
    ) -> None:
        self.tokens = IndexedTokens(pieces, eog, encode)
        self._compiled = functools.lru_cache(maxsize=64)(self._compile)

    @classmethod
    def over_bytes(cls) -> OutlinesEngine:
        """Without a model: token n is byte n. For looking at grammars."""
        pieces = [*(bytes([byte]) for byte in range(256)), b""]
        return cls(pieces, frozenset([256]), lambda text: text.encode("utf-8", "surrogatepass"))

    @classmethod
    def for_vocab(cls, vocab: Vocab) -> OutlinesEngine:
        """For a model. Takes about 0.1 s at a vocabulary of 49k; keep it for as long as the model."""
        barred = vocab.control | vocab.markers
        pieces = [b"" if token in barred else piece for token, piece in enumerate(vocab.pieces)]
        return cls(pieces, vocab.eog, vocab.encode_text)

    def accepts(self, grammar: TurnGrammar, text: str) -> bool:
        """Whether the text is exactly one legal turn. On an engine over bytes."""
        return accepts_bytes(self.start(grammar), self.tokens.eog, text)

    def check(self, grammar: TurnGrammar) -> None:
        """Compile the grammar and index every slot, which otherwise happens when a turn gets there.

        Raises:
            GrammarError: it isn't a grammar of slots, or outlines can't index a slot.
        """
        self.start(grammar)
        for regex in regexes(read(grammar.text)):
            self.tokens.automaton(regex)

    def start(self, grammar: TurnGrammar) -> SlotMatcher:
        turns = self._compiled(grammar)
        return SlotMatcher(turns, turns.begin)

    def _compile(self, grammar: TurnGrammar) -> Turns:
        return Turns(read(grammar.text), self.tokens)


class SlotMatcher:
    """One turn being written: a position, and where it leads."""

    def __init__(self, turns: Turns, position: Position) -> None:
        self._turns = turns
        self._position = position

    def forced(self) -> list[int]:
        return self._turns.forced(self._position)

    def allows(self, token: int) -> bool:
        return self._turns.allows(self._position, token)

    def mask(self) -> Mask:
        return self._turns.mask(self._position)

    def accept(self, tokens: Sequence[int]) -> None:
        position = self._position
        for token in tokens:
            if token in self._turns.tokens.eog and position.complete:
                following: Position | None = Position((), True)
            else:
                following = self._turns.advance(position, token)
            if following is None:
                raise GrammarError(f"tokens {list(tokens)} aren't legal here")
            position = following
        self._position = position

    @property
    def done(self) -> bool:
        return self._position.complete and not self._position.threads

    def fork(self) -> SlotMatcher:
        return SlotMatcher(self._turns, self._position)


class IndexedTokens:
    """A vocabulary as outlines indexes it."""

    def __init__(
        self, pieces: Sequence[bytes], eog: frozenset[int], encode: Callable[[str], Sequence[int]]
    ) -> None:
        self.size = len(pieces)
        self.eog = eog
        self.pieces = [b"" if _EDGE in piece else piece for piece in pieces]
        self._encode = encode
        self._ids: dict[bytes, list[int]] = {}
        for token, piece in enumerate(self.pieces):
            if piece:
                self._ids.setdefault(piece, []).append(token)
        self._longest = max(map(len, self._ids), default=0)
        # Two tokens that the model doesn't have: outlines' own end of generation, and our edge of a slot.
        self._vocabulary = Vocabulary(self.size, {**self._ids, _EDGE: [self.size + 1]})
        self.automaton = functools.lru_cache(maxsize=256)(self._automaton)
        self.counter = functools.lru_cache(maxsize=64)(self._counter)
        self.canonical = functools.lru_cache(maxsize=4096)(self._canonical)

    def beginnings(self, text: bytes) -> list[int]:
        lengths = range(1, min(len(text), self._longest) + 1)
        return [token for length in lengths for token in self._ids.get(text[:length], ())]

    def _automaton(self, regex: str) -> IndexedRegex:
        try:
            return IndexedRegex(self.size, Index(_between_edges(regex), self._vocabulary))
        except ValueError as error:
            raise GrammarError(f"outlines can't index the regex {regex!r}: {error}") from error

    def _counter(self, escapes: bool, closer: int | None) -> Counter:
        return Counter(self.pieces, escapes, closer)

    def _canonical(self, text: bytes) -> tuple[int, ...]:
        """The text as the model's tokenizer writes it where it goes on from other text."""
        string = text.decode("utf-8", "replace")
        tokens = tuple(self._encode(string))
        if self._spell(tokens) == text:
            return tokens
        # Some tokenizers put a space before all they are given: give them something for it.
        tokens = tuple(self._encode("\n" + string))
        for start in range(1, len(tokens)):
            if self._spell(tokens[start:]) == text:
                return tokens[start:]
        return self._greedy(text)

    def _spell(self, tokens: Sequence[int]) -> bytes:
        return b"".join([self.pieces[token] for token in tokens])

    def _greedy(self, text: bytes) -> tuple[int, ...]:
        """The longest token first."""
        tokens: list[int] = []
        while text and (found := self.beginnings(text)):
            tokens.append(found[-1])
            text = text[len(self.pieces[found[-1]]) :]
        return tuple(tokens)


def _between_edges(regex: str) -> str:
    return f"{_EDGE.decode()}(?:{regex}){_EDGE.decode()}"


class IndexedRegex:
    """One regex over a vocabulary."""

    def __init__(self, size: int, index: Index) -> None:
        self._size = size
        self._index = index
        start = self.next(index.get_initial_state(), size + 1)
        assert start is not None
        self.start = start
        self.mask = functools.lru_cache(maxsize=64)(self._mask)

    def next(self, state: int, token: int) -> int | None:
        following: int | None = self._index.get_next_state(state, token)
        return following

    def final(self, state: int) -> bool:
        return self.next(state, self._size + 1) is not None

    def _mask(self, state: int) -> Mask:
        legal = np.zeros(self._size + 2, np.bool_)
        legal[self._index.get_allowed_tokens(state)] = True
        legal = legal[: self._size]
        legal.flags.writeable = False
        return legal
