"""The decode loop: forced tokens in one batch, candidate first, stop at the last byte of the turn.

It is written inside out: a `TurnWriter` says what to evaluate and is told the logits, so that a scheduler
can step many of them. Knows nothing of ReAct, prompts or llama.cpp: it works on a matcher and a sampler.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from localreact.decoding.samplers import Sampler, log_probabilities
from localreact.decoding.vocab import Vocab
from localreact.engines.base import Matcher
from localreact.types import (
    Author,
    Completion,
    Limits,
    ScoredSpan,
    Span,
    StopReason,
    Timings,
    TokenScore,
    Usage,
)


@dataclass
class TurnText:
    """What was written so far: tokens, their authors, and the text that is complete UTF-8."""

    pieces: Sequence[bytes]
    tokens: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    sampled: int = 0
    reasoning: int = 0
    """Tokens before the turn; `sampled` doesn't count them."""

    def __post_init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def in_turn(self) -> int:
        """Tokens of the turn itself."""
        return len(self.tokens) - self.reasoning

    def text(self, reasoning: bool) -> str:
        return "".join(span.text for span in self.spans if span.reasoning == reasoning)

    def add(self, tokens: Sequence[int], author: Author, reasoning: bool = False) -> Span:
        """Bytes of a character cut by a token's end are held back until the next token."""
        text = self._utf8.decode(b"".join([self.pieces[token] for token in tokens]))
        self.tokens.extend(tokens)
        if reasoning:
            self.reasoning += len(tokens)
        elif author == "sampled":
            self.sampled += len(tokens)
        span = Span(author, text, tuple(tokens), reasoning)
        if self.spans and (self.spans[-1].author, self.spans[-1].reasoning) == (author, reasoning):
            last = self.spans[-1]
            self.spans[-1] = Span(author, last.text + text, last.tokens + span.tokens, reasoning)
        else:
            self.spans.append(span)
        return span

    def finish(self) -> Span | None:
        """What is left of a character that never became whole, as U+FFFD."""
        rest = self._utf8.decode(b"", final=True)
        if not rest:
            return None
        last = self.spans[-1]
        self.spans[-1] = Span(last.author, last.text + rest, last.tokens, last.reasoning)
        return Span(last.author, rest, reasoning=last.reasoning)


class TurnWriter:
    """Writes one turn after a prompt.

        new = writer.advance(None)
        while new:
            evaluate(new)           # the first time: after the prompt
            new = writer.advance(logits)
        writer.completion()

    Text goes to `emit` as it is made. `stop` says why the turn ended, once it has.

    `reasoning` holds what comes before the turn until it is done; its budget is its own, and the turn's
    limit doesn't count it. The completion's `reasoning` is its text as written, tags included.
    """

    def __init__(
        self,
        vocab: Vocab,
        prompt: Sequence[int],
        matcher: Matcher,
        sampler: Sampler,
        limits: Limits,
        n_ctx: int,
        emit: Callable[[Span], None] = lambda span: None,
        reasoning: Matcher | None = None,
    ) -> None:
        self.prompt = prompt
        self.turn = TurnText(vocab.pieces)
        self.stop: StopReason | None = None
        self.reused = 0
        self._vocab = vocab
        self._matcher = matcher
        self._phase = reasoning or matcher
        self._sampler = sampler
        self._limits = limits
        self._n_ctx = n_ctx
        self.emit = emit
        self._constraint_s = 0.0
        self._started = self._prompt_ready = self._ended = 0.0

    def begin(self, reused: int) -> None:
        """The clock starts. `reused` tokens of the prompt needn't be evaluated."""
        self.reused = reused
        self._started = time.perf_counter()

    def interrupted(self) -> bool:
        """Whether a cancel or the deadline ends the turn here."""
        limits = self._limits
        if limits.cancel is not None and limits.cancel.is_set():
            self._finish("cancelled")
        elif limits.deadline is not None and time.monotonic() >= limits.deadline:
            self._finish("deadline")
        return self.stop is not None

    def advance(self, logits: NDArray[np.float32] | None) -> list[int]:
        """The tokens to evaluate next; none once the turn has ended. `logits` are those after the last
        token; None before the first.

        Raises:
            GrammarError: no token of the vocabulary can continue the turn.
        """
        new: list[int] = []
        before = time.perf_counter()
        if logits is not None:
            if not self._prompt_ready:
                self._prompt_ready = before
            token = self._sampler.choose(logits, self._phase, self._recent())
            if token in self._vocab.eog:
                self._finish("eog", before)
                return []
            new.append(token)
            self._phase.accept(new)
            self._constraint_s += time.perf_counter() - before
            self._write(new, "sampled", logits)
        done = self._force(new)
        if done and self._phase is not self._matcher and self.stop is None:
            self._phase = self._matcher
            done = self._force(new)
        if self.stop is not None:
            return []
        turn = self.turn
        spent = self._phase is self._matcher and turn.in_turn >= self._limits.max_tokens
        if done:
            self._finish("complete")
        elif spent or len(self.prompt) + len(turn.tokens) > self._n_ctx:
            self._finish("length")
        return [] if self.interrupted() else new

    def _force(self, new: list[int]) -> bool:
        """Add what the grammar leaves no choice about; whether the phase is done then."""
        before = time.perf_counter()
        forced = self._phase.forced()
        if forced:
            self._phase.accept(forced)
        done = self._phase.done
        self._constraint_s += time.perf_counter() - before
        if forced:
            in_turn = self.turn.in_turn + len(forced)
            if self._phase is self._matcher and in_turn > self._limits.max_tokens:
                self._finish("length")
                return False
            self._write(forced, "forced")
            new += forced
        return done

    def _write(
        self, tokens: Sequence[int], author: Author, logits: NDArray[np.float32] | None = None
    ) -> None:
        """`logits` are those that the token was chosen by."""
        span = self.turn.add(tokens, author, self._phase is not self._matcher)
        if self._limits.logprobs is not None:
            scores = tuple(self._score(token, logits) for token in tokens)
            span = ScoredSpan(span.author, span.text, span.tokens, span.reasoning, scores)
        self.emit(span)

    def _score(self, token: int, logits: NDArray[np.float32] | None) -> TokenScore:
        pieces = self._vocab.pieces
        if logits is None:
            return TokenScore(pieces[token], 0.0)
        logprob, top = log_probabilities(logits, token, self._limits.logprobs or 0)
        return TokenScore(pieces[token], logprob, tuple((pieces[each], score) for each, score in top))

    def _recent(self) -> list[int]:
        if not (n := self._sampler.looks_back):
            return []
        recent = self.turn.tokens[-n:]
        missing = n - len(recent)
        return [*self.prompt[-missing:], *recent] if missing else recent

    def _finish(self, stop: StopReason, constraint_since: float | None = None) -> None:
        if self.stop is not None:
            return
        self.stop = stop
        self._ended = time.perf_counter()
        if constraint_since is not None:
            self._constraint_s += self._ended - constraint_since
        if (rest := self.turn.finish()) is not None:
            self.emit(rest)

    def completion(self) -> Completion:
        """The whole turn, once it has ended."""
        assert self.stop is not None
        turn = self.turn
        started = self._started or self._ended  # a turn may end before it began
        prompt_ready = self._prompt_ready or self._ended
        return Completion(
            text=turn.text(reasoning=False),
            reasoning=turn.text(reasoning=True),
            stop=self.stop,
            tokens=tuple(turn.tokens),
            spans=tuple(turn.spans),
            usage=Usage(
                prompt=len(self.prompt),
                reused=self.reused,
                sampled=turn.sampled,
                forced=turn.in_turn - turn.sampled,
                masks=self._sampler.masks,
                reasoning=turn.reasoning,
            ),
            timings=Timings(prompt_ready - started, self._ended - prompt_ready, self._constraint_s),
        )
