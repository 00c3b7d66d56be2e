"""The decode loop: forced tokens in one batch, candidate first, stop at the last byte of the turn.

Knows nothing of ReAct, prompts or llama.cpp: it works on a session, a matcher and a sampler.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from localreact.decoding.samplers import Sampler
from localreact.decoding.session import Session
from localreact.engines.base import Matcher
from localreact.types import Author, Completion, Limits, Span, StopReason, Timings, Usage


class _Stop(Exception):  # noqa: N818  (control flow, not an error)
    def __init__(self, reason: StopReason) -> None:
        self.reason = reason


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


def decode(
    session: Session,
    ids: Sequence[int],
    matcher: Matcher,
    sampler: Sampler,
    limits: Limits,
    reasoning: Matcher | None = None,
) -> Generator[Span, None, Completion]:
    """Complete the prompt `ids` to one turn. Yields text as it is made; returns the whole.

    `reasoning` holds what comes before the turn until it is done; its budget is its own, and the turn's
    limit doesn't count it. The completion's `reasoning` is its text as written, tags included.

    Raises:
        EndpointError: the model failed.
        GrammarError: no token of the vocabulary can continue the turn.
    """
    started = time.perf_counter()
    constraint = 0.0
    vocab = session.model.vocab
    turn = TurnText(vocab.pieces)
    reused = session.rewind_to(ids)
    pending: list[int] = list(ids[reused:])
    prompt_ready: float | None = None

    def check() -> None:
        if limits.cancel is not None and limits.cancel.is_set():
            raise _Stop("cancelled")
        if limits.deadline is not None and time.monotonic() >= limits.deadline:
            raise _Stop("deadline")

    stop: StopReason
    phase = reasoning or matcher
    try:
        while True:
            thinking = phase is not matcher
            before = time.perf_counter()
            forced = phase.forced()
            if forced:
                phase.accept(forced)
            done = phase.done
            constraint += time.perf_counter() - before
            if forced:
                if not thinking and turn.in_turn + len(forced) > limits.max_tokens:
                    raise _Stop("length")
                pending += forced
                yield turn.add(forced, "forced", thinking)
            if done and thinking:
                phase = matcher
                continue
            if done:
                raise _Stop("complete")
            spent = not thinking and turn.in_turn >= limits.max_tokens
            if spent or len(session.tokens) + len(pending) > session.n_ctx:
                raise _Stop("length")
            check()
            logits = session.extend(pending, check)
            if prompt_ready is None:
                prompt_ready = time.perf_counter()
            before = time.perf_counter()
            token = sampler.choose(logits, phase)
            if token in vocab.eog:
                raise _Stop("eog")
            phase.accept([token])
            constraint += time.perf_counter() - before
            pending = [token]
            yield turn.add(pending, "sampled", thinking)
    except _Stop as stopped:
        stop = stopped.reason
    if (rest := turn.finish()) is not None:
        yield rest
    ended = time.perf_counter()
    prompt_ready = prompt_ready if prompt_ready is not None else ended
    return Completion(
        text=turn.text(reasoning=False),
        reasoning=turn.text(reasoning=True),
        stop=stop,
        tokens=tuple(turn.tokens),
        spans=tuple(turn.spans),
        usage=Usage(
            prompt=len(ids),
            reused=reused,
            sampled=turn.sampled,
            forced=turn.in_turn - turn.sampled,
            masks=sampler.masks,
            reasoning=turn.reasoning,
        ),
        timings=Timings(prompt_ready - started, ended - prompt_ready, constraint),
    )
