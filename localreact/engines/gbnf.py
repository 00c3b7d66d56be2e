"""llama.cpp's own grammar sampler (GBNF), driven rejection-first.

A single candidate costs microseconds, the whole vocabulary milliseconds: so one is tried first, then the
likeliest few hundred (`legal`), and only then all. The sampler alone would let control tokens into strings
and admits overlong UTF-8; both are refused here. It aborts the process when it is given a token that it
refuses, so none is without having been checked.
"""

from __future__ import annotations

import codecs
import ctypes
import functools
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localreact.decoding import backend
from localreact.decoding.vocab import Vocab
from localreact.errors import GrammarError
from localreact.grammar.line_bounds import LineCounter
from localreact.types import TurnGrammar

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


class GbnfEngine:
    """For a model, which has to stay loaded: the samplers look into its vocabulary."""

    name = "gbnf"
    language = "gbnf"

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        self.tokens = _Tokens(vocab)
        self._compiled = functools.lru_cache(maxsize=64)(self._compile)

    def start(self, grammar: TurnGrammar) -> GbnfMatcher:
        sampler = self._compiled(grammar.text).clone()
        return GbnfMatcher(self.tokens, sampler, LineCounter(grammar.bounds), b"")

    def _compile(self, text: str) -> _Sampler:
        backend.forget_log()
        llama = backend.load()
        handle = llama.llama_sampler_init_grammar(self.vocab.handle, text.encode(), b"root")
        if not handle:
            reason = backend.last_complaint() or "llama.cpp can't read it"
            raise GrammarError(f"the grammar of the turn can't be compiled: {reason}")
        return _Sampler(llama, handle)


class _Sampler:
    """A grammar sampler of llama.cpp's, freed when nobody holds it any more."""

    def __init__(self, llama: Any, handle: Any) -> None:
        self._llama = llama
        self._handle = handle
        weakref.finalize(self, llama.llama_sampler_free, handle).atexit = False

    def clone(self) -> _Sampler:
        return _Sampler(self._llama, self._llama.llama_sampler_clone(self._handle))

    def accept(self, token: int) -> None:
        self._llama.llama_sampler_accept(self._handle, token)

    def legal(self, tokens: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of the tokens the grammar takes next."""
        candidates = np.zeros(len(tokens), _CANDIDATE)
        candidates["id"] = tokens
        pointer = ctypes.cast(candidates.ctypes.data, self._llama.llama_token_data_p)
        array = self._llama.llama_token_data_array(pointer, len(tokens), -1, False)
        self._llama.llama_sampler_apply(self._handle, ctypes.byref(array))
        return np.asarray(candidates["logit"] == 0)


class _Tokens:
    """What is known of a vocabulary's tokens without a grammar."""

    def __init__(self, vocab: Vocab) -> None:
        self.pieces = vocab.pieces
        self.size = vocab.size
        self.eog = np.array(sorted(vocab.eog), np.intp)
        self.is_eog = np.zeros(vocab.size, np.bool_)
        self.is_eog[self.eog] = True
        never = vocab.control | vocab.markers
        text = [bool(piece) and token not in never for token, piece in enumerate(self.pieces)]
        beginning = [utf8_rest(piece) for piece in self.pieces]
        self.starting = np.array([ok and rest is not None for ok, rest in zip(text, beginning, strict=True)])
        """May come where no character is cut: their bytes are the beginning of some text."""
        self.is_continuing = np.array(
            [ok and piece[0] & 0xC0 == 0x80 for ok, piece in zip(text, self.pieces, strict=True)]
        )
        """Begin inside a character."""
        self.breaks = np.array([any(end in piece for end in (b"\n", b"]")) for piece in self.pieces])
        """May end a line, or what is counted of one."""
        self.characters = np.array([sum(byte & 0xC0 != 0x80 for byte in piece) for piece in self.pieces])
        self.first_byte = np.array([piece[0] if piece else -1 for piece in self.pieces])
        self.first = self._first(text)
        """Of all tokens that begin with a byte, the one that is the byte alone, or else all: if any token
        is legal one of these is."""

    def _first(self, text: Sequence[bool]) -> NDArray[np.intp]:
        by_byte: dict[int, list[int]] = {}
        for token, piece in enumerate(self.pieces):
            if text[token]:
                by_byte.setdefault(piece[0], []).append(token)
        first: list[int] = []
        for tokens in by_byte.values():
            first += [token for token in tokens if len(self.pieces[token]) == 1][:1] or tokens
        return np.array(sorted(first), np.intp)


class GbnfMatcher:
    """`forced` is always empty: llama.cpp doesn't tell what a grammar leaves no choice about."""

    def __init__(self, tokens: _Tokens, sampler: _Sampler, lines: LineCounter, cut: bytes) -> None:
        self._tokens = tokens
        self._sampler = sampler
        self._lines = lines
        self._cut = cut  # the beginning of a character that isn't whole yet
        self._done: bool | None = None

    def forced(self) -> list[int]:
        return []

    def allows(self, token: int) -> bool:
        return bool(self.legal(np.array([token]))[0])

    def legal(self, tokens: NDArray[np.intp]) -> NDArray[np.bool_]:
        known = self._tokens
        eog = known.is_eog[tokens]
        if self._cut:
            possible = np.array([self._continues(token) for token in tokens], np.bool_)
        else:
            possible = known.starting[tokens]
        possible |= eog & (self._lines.may_end and not self._cut)
        if possible.any():
            possible[possible] = self._sampler.legal(tokens[possible])
            bounded = possible & ~eog
            bounded[bounded] = self._within_bounds(tokens[bounded])
            possible = (possible & eog) | bounded
        return possible

    def mask(self) -> NDArray[np.bool_]:
        known = self._tokens
        candidates = np.flatnonzero(known.is_continuing if self._cut else known.starting)
        candidates = np.concatenate([candidates, known.eog])
        mask = np.zeros(known.size, np.bool_)
        mask[candidates] = self.legal(candidates)
        return mask

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._tokens.is_eog[token] or not self.allows(token):
                raise GrammarError(f"tokens {list(tokens)} aren't legal here")
            self._advance(token)

    def _advance(self, token: int) -> None:
        piece = self._tokens.pieces[token]
        lines, cut = self._lines.after(piece), utf8_rest(self._cut + piece)
        assert lines is not None
        assert cut is not None
        self._sampler.accept(token)
        self._lines, self._cut, self._done = lines, cut, None

    @property
    def done(self) -> bool:
        if self._done is None:
            ended = self.legal(self._tokens.eog)
            # Without an end-of-generation token nothing says that a turn may end, but nothing goes on either.
            may_end = bool(ended.any()) or not len(ended)
            self._done = may_end and not self.legal(self._tokens.first).any()
        return self._done

    def fork(self) -> GbnfMatcher:
        return GbnfMatcher(self._tokens, self._sampler.clone(), self._lines, self._cut)

    def _continues(self, token: int) -> bool:
        known = self._tokens
        return bool(known.is_continuing[token]) and utf8_rest(self._cut + known.pieces[token]) is not None

    def _within_bounds(self, tokens: NDArray[np.intp]) -> NDArray[np.bool_]:
        lines, known = self._lines, self._tokens
        if not lines.bounds:
            return np.ones(len(tokens), np.bool_)
        # Where a token neither opens nor ends a line, its characters are counted at once.
        plain = ~(known.breaks[tokens] | np.isin(known.first_byte[tokens], list(lines.awaited)))
        room = np.inf if lines.bound is None else lines.bound.most - lines.count
        within = plain & (known.characters[tokens] <= room)
        for i in np.flatnonzero(~plain):
            within[i] = lines.after(known.pieces[tokens[i]]) is not None
        return within


def utf8_rest(data: bytes) -> bytes | None:
    """The beginning of a character at the data's end, which may be empty; None where no UTF-8 text
    begins with the data."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(data)
    except UnicodeDecodeError:
        return None
    return decoder.getstate()[0]
