"""Choosing a token: exact under a grammar, and the same token whichever path was taken.

One draw of Gumbel noise a step makes sampling an argmax (Gumbel-max trick: the argmax of
logits/temperature + noise is distributed as the softmax). So the candidate over the whole
vocabulary, if it is legal and survives the truncation of the raw logits, also is the argmax over
the legal, truncated set; only otherwise is a mask computed, and the same noise used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from localreact.errors import GrammarError, UsageError
from localreact.types import Sampling

Scores = NDArray[np.float32]
MIN_TEMPERATURE = 0.001  # below, single-precision scores lose the differences that matter


class Constraint(Protocol):
    """The part of an engine's matcher that a sampler needs."""

    def allows(self, token: int) -> bool: ...

    def mask(self) -> NDArray[np.bool_]: ...


@runtime_checkable
class Picky(Constraint, Protocol):
    """A constraint whose masks are dear, and that can check some candidates for less."""

    def legal(self, tokens: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of these tokens may come next."""


LIKELIEST = 256  # candidates to check before the whole vocabulary, where masks are dear


def check(sampling: Sampling) -> None:
    """Raises UsageError where a setting makes no sense."""
    if sampling.temperature != 0 and not MIN_TEMPERATURE <= sampling.temperature < float("inf"):
        raise UsageError(
            f"temperature must be 0 (greedy), or {MIN_TEMPERATURE} or more, not {sampling.temperature}"
        )
    if sampling.seed < 0:
        raise UsageError(f"seed must be 0 or more, not {sampling.seed}")
    if sampling.top_k < 0:
        raise UsageError(f"top_k must be 0 (off) or more, not {sampling.top_k}")
    if not 0 < sampling.top_p <= 1:
        raise UsageError(f"top_p must be above 0 and at most 1, not {sampling.top_p}")
    if not 0 <= sampling.min_p < 1:
        raise UsageError(f"min_p must be 0 or more and below 1, not {sampling.min_p}")
    if not 0 < sampling.repeat_penalty < float("inf"):
        raise UsageError(f"repeat_penalty must be above 0 (1: off), not {sampling.repeat_penalty}")
    if sampling.repeat_last_n < 0:
        raise UsageError(f"repeat_last_n must be 0 or more, not {sampling.repeat_last_n}")


class Sampler:
    """Chooses tokens for one turn. `masks` counts the masks that had to be computed."""

    def __init__(self, sampling: Sampling, stream: int = 0, candidate_first: bool = True) -> None:
        """`stream` sets turns of one run apart: the same seed and stream give the same noise.
        `candidate_first=False` always masks: slower, same tokens (the tests compare the two)."""
        check(sampling)
        self.sampling = sampling
        self.masks = 0
        self._candidate_first = candidate_first
        self._random = np.random.default_rng((sampling.seed, stream))

    @property
    def looks_back(self) -> int:
        """How many of the latest tokens `choose` wants to be told."""
        return self.sampling.repeat_last_n if self.sampling.repeat_penalty != 1 else 0

    def choose(self, logits: Scores, constraint: Constraint, recent: Sequence[int] = ()) -> int:
        """The next token. `recent` are the latest tokens before it, at most `looks_back`.

        The logits may be llama.cpp's own memory: they are changed for the length of the call at most.

        Raises:
            GrammarError: the constraint allows no token at all.
        """
        if not recent or not self.looks_back:
            return self._choose(logits, constraint)
        # A penalty is part of the model as far as the rest is concerned: candidate, truncation and mask
        # all see the same penalised logits, so that candidate first stays exact.
        repeated = np.unique(np.asarray(recent[-self.looks_back :], np.int64))
        before = logits[repeated]  # a copy
        penalty = np.float32(self.sampling.repeat_penalty)
        logits[repeated] = np.where(before > 0, before / penalty, before * penalty)
        try:
            return self._choose(logits, constraint)
        finally:
            logits[repeated] = before

    def _choose(self, logits: Scores, constraint: Constraint) -> int:
        s = self.sampling
        scores = logits
        if s.temperature > 0:
            scores = logits / np.float32(s.temperature) + self._gumbel(len(logits))
        if self._candidate_first and (s.temperature == 0 or s.top_p >= 1):
            candidate = int(scores.argmax())
            if constraint.allows(candidate) and (s.temperature == 0 or self._survives(candidate, logits)):
                return candidate
            if isinstance(constraint, Picky) and not self._truncates:
                chosen = _best_legal(scores, constraint)
                if chosen is not None:
                    return chosen
        self.masks += 1
        legal = constraint.mask()
        if not legal.any():
            raise GrammarError(
                "no token of this model's vocabulary can continue the turn",
                "A tool's schema may ask for text that the vocabulary can't spell.",
            )
        if s.temperature > 0:
            legal = truncate(np.where(legal, logits, -np.inf), s)
        return int(np.where(legal, scores, -np.inf).argmax())

    @property
    def _truncates(self) -> bool:
        s = self.sampling
        return s.temperature > 0 and bool(s.top_k or s.min_p or s.top_p < 1)

    def _gumbel(self, n: int) -> Scores:
        # In double precision: single-precision draws are exactly 0 once in millions, which makes a
        # noise of infinity, and a vocabulary has many tokens.
        draws = np.maximum(self._random.standard_exponential(n), np.finfo(np.float64).tiny)
        noise: Scores = (-np.log(draws)).astype(np.float32)
        return noise

    def _survives(self, token: int, logits: Scores) -> bool:
        """Whether the token is inside top_k and min_p of the raw logits (then it is inside the
        masked ones too, since masking only takes competitors away)."""
        s = self.sampling
        if s.top_k and np.count_nonzero(logits > logits[token]) >= s.top_k:
            return False
        return not (s.min_p and logits[token] < logits.max() + np.log(s.min_p))


def _best_legal(scores: Scores, constraint: Picky) -> int | None:
    """The legal token of the highest score, if it is among the likeliest; of equals the first, as `argmax`
    has it. None where that can't be told from them."""
    if len(scores) <= LIKELIEST:
        return None
    likeliest = np.sort(np.argpartition(scores, len(scores) - LIKELIEST)[len(scores) - LIKELIEST :])
    legal = likeliest[constraint.legal(likeliest)]
    if not len(legal):
        return None
    best = int(legal[scores[legal].argmax()])
    return best if scores[best] > scores[likeliest].min() else None


def log_probabilities(logits: Scores, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    """Of a token, and of the `top` likeliest ones, the likeliest first."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    likeliest = np.argpartition(scores, -top)[len(scores) - top :]
    pairs = sorted(((float(scores[each]), int(each)) for each in likeliest), reverse=True)
    return float(scores[token]), [(each, score) for score, each in pairs]


def truncate(logits: Scores, sampling: Sampling) -> NDArray[np.bool_]:
    """Which tokens top_k, top_p and min_p keep, in this order; -inf is never kept."""
    keep: NDArray[np.bool_] = logits > -np.inf
    if sampling.top_k:
        kept = np.count_nonzero(keep)
        if kept > sampling.top_k:
            threshold = np.partition(logits, len(logits) - sampling.top_k)[len(logits) - sampling.top_k]
            keep &= logits >= threshold
    if sampling.top_p < 1:
        order = np.argsort(-np.where(keep, logits, -np.inf), kind="stable")
        weights = np.exp(np.where(keep, logits, -np.inf)[order] - logits.max(), dtype=np.float64)
        before = np.cumsum(weights) - weights
        cut = np.zeros_like(keep)
        cut[order] = before < sampling.top_p * weights.sum()
        keep &= cut
    if sampling.min_p:
        keep &= logits >= logits.max() + np.log(sampling.min_p)
    return keep
