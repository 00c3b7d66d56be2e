"""The default engine: llguidance (Lark grammars with JSON Schema inside)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from localreact.decoding import backend
from localreact.decoding.vocab import Vocab
from localreact.engines.base import accepts_bytes
from localreact.errors import GrammarError
from localreact.types import TurnGrammar

# Proving that a line of some length without a marker can be finished takes more than the default
# fuel (200,000), though only milliseconds.
_LIMITS = LLParserLimits(initial_lexer_fuel=20_000_000, step_lexer_fuel=20_000_000)
_SPECIAL = b"\xff"  # llguidance's mark for tokens that aren't text


class LLGuidanceEngine:
    """Compiles for one tokenizer; make it with `for_vocab` or `over_bytes`."""

    name = "llguidance"
    language = "lark"

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self._n_vocab = tokenizer.vocab_size
        self.eog = frozenset(tokenizer.eos_tokens)
        self._tokenize: object = None  # called by the tokenizer, so it has to stay
        # Forks of one compiled grammar share what its lexer has worked out: a turn of a kind seen before
        # starts 200 times as fast, and its masks are 5 to 10 times as fast.
        self._compiled = functools.lru_cache(maxsize=64)(self._compile)

    @classmethod
    def over_bytes(cls) -> LLGuidanceEngine:
        """Without a model: token n is byte n. For looking at grammars."""
        return cls(LLTokenizer("byte"))

    @classmethod
    def for_vocab(cls, vocab: Vocab) -> LLGuidanceEngine:
        """For a model, which has to stay loaded: the tokenizer calls into its vocabulary. Takes about
        0.1 s at a vocabulary of 49k; keep it for as long as the model."""
        tokens = list(vocab.pieces)
        for token in vocab.control:
            tokens[token] = _SPECIAL + b"<%d>" % token
        for token in vocab.markers:
            tokens[token] = _SPECIAL + tokens[token]
        tokenize = _tokenize_function(vocab)
        tokenizer = LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]  # missing in its stubs
            tokens=tokens,
            vocab_ptr=vocab.handle,
            tokenize_fptr=ctypes.cast(tokenize, ctypes.c_void_p).value,
            eos_token=sorted(vocab.eog),
        )
        engine = cls(tokenizer)
        engine._tokenize = tokenize
        return engine

    def accepts(self, grammar: TurnGrammar, text: str) -> bool:
        """Whether the text is exactly one legal turn. On an engine over bytes."""
        return accepts_bytes(self.start(grammar), self.eog, text)

    def start(self, grammar: TurnGrammar) -> LLGuidanceMatcher:
        matcher = self._compiled(grammar).fork()
        matcher.on_error = self._compiled.cache_clear  # a lexer that failed fails for all its forks
        return matcher

    def _compile(self, grammar: TurnGrammar) -> LLGuidanceMatcher:
        source = LLMatcher.grammar_from_lark(grammar.text)
        matcher = LLMatcher(self._tokenizer, source, limits=_LIMITS, log_level=0)
        if problem := matcher.get_error():
            raise GrammarError(f"the grammar of the turn can't be compiled: {' '.join(problem.split())}")
        return LLGuidanceMatcher(matcher, self._n_vocab)


class LLGuidanceMatcher:
    def __init__(self, matcher: LLMatcher, n_vocab: int) -> None:
        self._matcher = matcher
        self._n_vocab = n_vocab
        self.on_error: Callable[[], None] = lambda: None
        self._bits = allocate_token_bitmask(1, n_vocab)
        self._check()

    def forced(self) -> list[int]:
        return list(self._matcher.compute_ff_tokens())

    def allows(self, token: int) -> bool:
        if self._matcher.validate_tokens([token]):
            return True
        self._check()  # a refusal may also be an error, such as a lexer that ran out of its limits
        return False

    def mask(self) -> NDArray[np.bool_]:
        fill_next_token_bitmask(self._matcher, self._bits)
        self._check()
        bits = np.unpackbits(self._bits.view(np.uint8)[0], bitorder="little", count=self._n_vocab)
        return bits.view(np.bool_)

    def accept(self, tokens: Sequence[int]) -> None:
        if not self._matcher.consume_tokens(list(tokens)):
            self._check()
            raise GrammarError(f"tokens {list(tokens)} aren't legal here")

    @property
    def done(self) -> bool:
        if not self._matcher.is_stopped():
            return False
        self._check()  # llguidance stops on errors too
        return True

    def fork(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._matcher.deep_copy(), self._n_vocab)

    def _check(self) -> None:
        if problem := self._matcher.get_error():
            self.on_error()
            raise GrammarError(f"llguidance: {problem.splitlines()[0]}")


_TOKENIZE = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32),  # vocabulary, text, bytes of it
    *(ctypes.POINTER(ctypes.c_int32), ctypes.c_int32),  # tokens, room for them
    *(ctypes.c_bool, ctypes.c_bool),  # add_special, parse_special
)


def _tokenize_function(vocab: Vocab) -> Any:
    """llama.cpp's `llama_tokenize` for forced text, with markers spelled out.

    It finds user-defined tokens even in plain text; one that is a marker isn't text to the grammar, and
    forced text that holds its spelling (a quote of a page that says `<think>`) couldn't be written.
    """
    llama = backend.load().llama_cpp
    if not vocab.markers:
        return llama._lib.llama_tokenize
    special = vocab.control | vocab.markers
    plain = {piece: token for token, piece in enumerate(vocab.pieces) if token not in special}
    spelled = {marker: _spelled(vocab.pieces[marker], plain) or [marker] for marker in vocab.markers}

    def tokenize(
        handle: int, text: int, length: int, tokens: Any, room: int, add_special: bool, parse_special: bool
    ) -> int:
        data = ctypes.string_at(text, length)
        found = (ctypes.c_int32 * (length + 8))()
        n = llama.llama_tokenize(handle, data, length, found, len(found), add_special, parse_special)
        ids = [each for token in found[: max(0, n)] for each in spelled.get(token, (token,))]
        if len(ids) > room:
            return -len(ids)
        for at, token in enumerate(ids):
            tokens[at] = token
        return len(ids)

    return _TOKENIZE(tokenize)


def _spelled(text: bytes, plain: Mapping[bytes, int]) -> list[int]:
    """A text in tokens, each the longest that fits; empty where none does."""
    ids: list[int] = []
    while text:
        length = next((n for n in range(len(text), 0, -1) if text[:n] in plain), 0)
        if not length:
            return []
        ids.append(plain[text[:length]])
        text = text[length:]
    return ids
