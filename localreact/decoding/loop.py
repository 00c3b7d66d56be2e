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
    """The turn so far: its tokens, their authors, and the text that is complete UTF-8."""

    pieces: Sequence[bytes]
    tokens: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    sampled: int = 0

    def __post_init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, tokens: Sequence[int], author: Author) -> Span:
        """Bytes of a character cut by a token's end are held back until the next token."""
        text = self._utf8.decode(b"".join([self.pieces[token] for token in tokens]))
        self.tokens.extend(tokens)
        if author == "sampled":
            self.sampled += len(tokens)
        span = Span(author, text, tuple(tokens))
        if self.spans and self.spans[-1].author == author:
            last = self.spans[-1]
            self.spans[-1] = Span(author, last.text + text, last.tokens + span.tokens)
        else:
            self.spans.append(span)
        return span

    def finish(self) -> Span | None:
        """What is left of a character that never became whole, as U+FFFD."""
        rest = self._utf8.decode(b"", final=True)
        if not rest:
            return None
        last = self.spans[-1]
        self.spans[-1] = Span(last.author, last.text + rest, last.tokens)
        return Span(last.author, rest)


def decode(
    session: Session, ids: Sequence[int], matcher: Matcher, sampler: Sampler, limits: Limits
) -> Generator[Span, None, Completion]:
    """Complete the prompt `ids` to one turn. Yields text as it is made; returns the whole.

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
    try:
        while True:
            before = time.perf_counter()
            forced = matcher.forced()
            if forced:
                matcher.accept(forced)
            done = matcher.done
            constraint += time.perf_counter() - before
            if forced:
                if len(turn.tokens) + len(forced) > limits.max_tokens:
                    raise _Stop("length")
                pending += forced
                yield turn.add(forced, "forced")
            if done:
                raise _Stop("complete")
            if len(turn.tokens) >= limits.max_tokens or len(session.tokens) + len(pending) > session.n_ctx:
                raise _Stop("length")
            check()
            logits = session.extend(pending, check)
            if prompt_ready is None:
                prompt_ready = time.perf_counter()
            before = time.perf_counter()
            token = sampler.choose(logits, matcher)
            if token in vocab.eog:
                raise _Stop("eog")
            matcher.accept([token])
            constraint += time.perf_counter() - before
            pending = [token]
            yield turn.add(pending, "sampled")
    except _Stop as stopped:
        stop = stopped.reason
    if (rest := turn.finish()) is not None:
        yield rest
    ended = time.perf_counter()
    prompt_ready = prompt_ready if prompt_ready is not None else ended
    return Completion(
        text="".join(span.text for span in turn.spans),
        stop=stop,
        tokens=tuple(turn.tokens),
        spans=tuple(turn.spans),
        usage=Usage(
            prompt=len(ids),
            reused=reused,
            sampled=turn.sampled,
            forced=len(turn.tokens) - turn.sampled,
            masks=sampler.masks,
        ),
        timings=Timings(prompt_ready - started, ended - prompt_ready, constraint),
    )
