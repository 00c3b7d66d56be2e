"""Ways to decode the same turn: ours, with one part changed at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from localreact.bench.workload import Case
from localreact.decoding.context import Context, Part
from localreact.decoding.loop import TurnWriter
from localreact.decoding.samplers import Sampler
from localreact.engines.base import Engine, Matcher
from localreact.engines.free import FreeMatcher
from localreact.errors import LocalReactError
from localreact.protocols import Protocol as TurnProtocol
from localreact.types import Limits, Sampling

MAX_TOKENS = 400
FREE_TOKENS = 64
"""Of an unconstrained turn: enough to time it, however much the model rambles."""


@dataclass(frozen=True)
class Sample:
    """One turn, written once. Seconds: from the prompt being in memory to the turn's last byte, of them
    those in the model and in the constraint, and to the first token. `whole`: the turn was completed."""

    seconds: float
    sampled: int
    forced: int = 0
    masks: int = 0
    model_s: float = 0.0
    constraint_s: float = 0.0
    first_s: float = 0.0
    whole: bool = True

    @property
    def tokens(self) -> int:
        return self.sampled + self.forced


class Arm(Protocol):
    name: str
    once: bool
    """Whether it is too slow to be written every round."""

    def write(self, case: Case) -> Sample: ...


@dataclass
class Desk:
    """One context with the prompt of one case in it, put back before every turn."""

    context: Context
    protocol: TurnProtocol
    _state: memoryview = field(default_factory=lambda: memoryview(b""))
    _ids: tuple[int, ...] = ()

    def prepare(self, case: Case) -> float:
        """Evaluate all but the last token of a prompt, from nothing; seconds."""
        self.context.clear()
        self._ids = case.ids
        started = time.perf_counter()
        self._evaluate(case.ids[:-1], 0)
        seconds = time.perf_counter() - started
        self._state = self.context.save(0)
        return seconds

    def put_back(self) -> None:
        """Only the prompt is in memory, as after `prepare`."""
        n = len(self._ids) - 1
        if self.context.model.window or self.context.model.recurrent:
            self.context.clear()
            if not self.context.restore(0, self._state, n):
                raise LocalReactError("llama.cpp couldn't restore the state of a prompt")
        elif not self.context.cut(0, n):
            raise LocalReactError("llama.cpp couldn't cut back its memory to a prompt")

    def _evaluate(self, ids: Sequence[int], start: int) -> None:
        for at in range(0, len(ids), self.context.n_batch):
            chunk = ids[at : at + self.context.n_batch]
            self.context.decode([Part(0, chunk, start + at, at + len(chunk) == len(ids))])


class Unforced:
    """A matcher that keeps to itself what it forces: every token is chosen."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self.allows, self.mask, self.accept = matcher.allows, matcher.mask, matcher.accept

    def forced(self) -> list[int]:
        return []

    @property
    def done(self) -> bool:
        return self._matcher.done

    def fork(self) -> Unforced:
        return Unforced(self._matcher.fork())


class Ours:
    """Our decode loop under an engine; without one, free. `reference` keeps the tokens last written."""

    once = False

    def __init__(
        self, name: str, desk: Desk, engine: Engine | None, *, reject: bool = True, force: bool = True
    ) -> None:
        self.name = name
        self.reference: tuple[int, ...] = ()
        self._desk, self._engine = desk, engine
        self._reject, self._force = reject, force

    def write(self, case: Case) -> Sample:
        context = self._desk.context
        self._desk.put_back()
        model_s, first, at = 0.0, 0.0, len(case.ids) - 1
        started = time.perf_counter()
        writer = self._begin(case)
        new = [case.ids[-1], *writer.advance(None)]
        while new:
            before = time.perf_counter()
            logits = context.decode([Part(0, new, at, True)])
            after = time.perf_counter()
            first = first or after - started
            model_s += after - before
            if logits is None:
                raise LocalReactError("the context is too small for the benchmark's turns")
            at += len(new)
            new = writer.advance(logits[0])
        seconds = time.perf_counter() - started
        done = writer.completion()
        self.reference = done.tokens
        return Sample(
            seconds,
            done.usage.sampled,
            done.usage.forced,
            done.usage.masks,
            model_s,
            done.timings.constraint_s,
            first,
            done.stop in ("complete", "eog"),
        )

    def _begin(self, case: Case) -> TurnWriter:
        context, protocol = self._desk.context, self._desk.protocol
        matcher: Matcher
        if self._engine is None:
            matcher = FreeMatcher(context.model.vocab, protocol.stops)
        else:
            matcher = self._engine.start(protocol.grammar(case.spec, self._engine.language))
        if not self._force:
            matcher = Unforced(matcher)
        writer = TurnWriter(
            context.model.vocab,
            case.ids,
            matcher,
            Sampler(Sampling(), candidate_first=self._reject),
            Limits(FREE_TOKENS if self._engine is None else MAX_TOKENS),
            context.n_ctx,
        )
        writer.begin(len(case.ids) - 1)
        return writer


class Stepped:
    """The very tokens of another arm's turn, one at a time and without a grammar: what the same text costs
    a loop that knows nothing of it but picks the likeliest token at every step."""

    name = "same text, token by token"
    once = False

    def __init__(self, desk: Desk, of: Ours) -> None:
        self._desk, self._of = desk, of

    def write(self, case: Case) -> Sample:
        context = self._desk.context
        self._desk.put_back()
        model_s, at, token = 0.0, len(case.ids) - 1, case.ids[-1]
        started = time.perf_counter()
        for following in self._of.reference:
            before = time.perf_counter()
            logits = context.decode([Part(0, [token], at, True)])
            model_s += time.perf_counter() - before
            assert logits is not None
            logits[0].argmax()
            token, at = following, at + 1
        seconds = time.perf_counter() - started
        return Sample(seconds, len(self._of.reference), model_s=model_s)
