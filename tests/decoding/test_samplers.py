from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from localreact.decoding.samplers import Sampler, log_probabilities, truncate
from localreact.errors import GrammarError, UsageError
from localreact.types import Sampling

LOGITS = np.array([3.0, 2.5, 2.0, 1.5, 1.0, 0.0, -1.0, -2.0], np.float32)
LEGAL = np.array([False, True, False, True, True, True, False, True])

SETTINGS = [
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_k=3),
    Sampling(temperature=1.3, top_p=0.8),
    Sampling(temperature=1.0, min_p=0.2),
    Sampling(temperature=0.9, top_k=4, top_p=0.9, min_p=0.05),
]
PENALTIES = [
    Sampling(repeat_penalty=1.5),
    Sampling(temperature=1.0, repeat_penalty=1.7),
    Sampling(temperature=0.8, top_k=3, min_p=0.1, repeat_penalty=0.6),
    Sampling(temperature=1.0, top_p=0.8, repeat_penalty=1.3, repeat_last_n=2),
]
RECENT = [6, 1, 1, 7, 3]


class Fixed:
    """A constraint with one mask."""

    def __init__(self, legal: NDArray[np.bool_]) -> None:
        self.flags = legal

    def allows(self, token: int) -> bool:
        return bool(self.flags[token])

    def mask(self) -> NDArray[np.bool_]:
        return self.flags


class Dear(Fixed):
    """A constraint that would rather check a few candidates than make a mask."""

    def legal(self, tokens: NDArray[np.intp]) -> NDArray[np.bool_]:
        return np.asarray(self.mask()[tokens])


def expected(sampling: Sampling) -> NDArray[np.float64]:
    """The distribution of mask, then truncate, then temperature, computed the plain way."""
    masked = np.where(LEGAL, LOGITS, -np.inf).astype(np.float64)
    if sampling.temperature == 0:
        return np.asarray(np.eye(len(LOGITS))[masked.argmax()])
    order = np.argsort(-masked)
    keep = np.isfinite(masked)
    if sampling.top_k:
        keep[order[sampling.top_k :]] = False
    if sampling.top_p < 1:
        p = np.where(keep, np.exp(masked), 0)
        p /= p.sum()
        total = 0.0
        for token in order:
            if total >= sampling.top_p:
                keep[token] = False
            total += p[token]
    if sampling.min_p:
        keep &= masked >= masked.max() + np.log(sampling.min_p)
    p = np.where(keep, np.exp(masked / sampling.temperature), 0)
    return np.asarray(p / p.sum())


@pytest.mark.parametrize("sampling", SETTINGS)
@pytest.mark.parametrize("candidate_first", [True, False])
def test_tokens_are_drawn_from_mask_then_truncate(sampling: Sampling, candidate_first: bool) -> None:
    sampler = Sampler(sampling, candidate_first=candidate_first)
    constraint, draws = Fixed(LEGAL), 20_000
    counts = np.bincount([sampler.choose(LOGITS, constraint) for _ in range(draws)], minlength=len(LOGITS))
    wanted = expected(sampling) * draws
    assert not counts[wanted == 0].any()
    tested = wanted > 0
    chi_square = ((counts - wanted)[tested] ** 2 / wanted[tested]).sum()
    assert chi_square < 25  # 7 degrees of freedom: exceeded once in 1,300 fair draws; the seed is fixed


@pytest.mark.parametrize("sampling", PENALTIES)
@pytest.mark.parametrize("candidate_first", [True, False])
def test_a_repetition_penalty_is_part_of_the_logits(sampling: Sampling, candidate_first: bool) -> None:
    """As llama.cpp has it: positive logits are divided, others multiplied, once a token, before the rest."""
    penalised = LOGITS.copy()
    for token in set(RECENT[-sampling.repeat_last_n :]):
        penalised[token] *= sampling.repeat_penalty ** (-1 if penalised[token] > 0 else 1)
    given, constraint = LOGITS.copy(), Fixed(LEGAL)
    without = replace(sampling, repeat_penalty=1.0)
    ours, plain = Sampler(sampling, candidate_first=candidate_first), Sampler(without, candidate_first=False)
    for _ in range(300):
        assert ours.choose(given, constraint, RECENT) == plain.choose(penalised, constraint)
        assert (given == LOGITS).all()


def test_a_penalty_that_is_off_asks_for_no_tokens() -> None:
    assert Sampler(Sampling()).looks_back == 0
    assert Sampler(Sampling(repeat_penalty=1.1, repeat_last_n=5)).looks_back == 5
    off = Sampler(Sampling(repeat_penalty=9.0, repeat_last_n=0))
    assert off.choose(LOGITS.copy(), Fixed(LEGAL), RECENT) == 1


@pytest.mark.parametrize("sampling", SETTINGS)
def test_candidate_first_and_mask_first_choose_the_same_tokens(sampling: Sampling) -> None:
    random = np.random.default_rng(1)
    first, always = Sampler(sampling), Sampler(sampling, candidate_first=False)
    for _ in range(500):
        logits = random.normal(0, 3, 200).astype(np.float32)
        constraint = Fixed(random.random(200) < 0.3)
        assert first.choose(logits, constraint) == always.choose(logits, constraint)
    assert always.masks == 500
    if sampling.top_p == 1:
        assert first.masks < 500


@pytest.mark.parametrize("sampling", SETTINGS)
@pytest.mark.parametrize("share", [0.3, 0.02, 0.001])
def test_checking_the_likeliest_first_chooses_the_same_tokens(sampling: Sampling, share: float) -> None:
    random = np.random.default_rng(2)
    first, always = Sampler(sampling), Sampler(sampling, candidate_first=False)
    for _ in range(200):
        logits = np.round(random.normal(0, 3, 2000), 1).astype(np.float32)  # with ties
        legal = random.random(2000) < share
        legal[0] = True
        assert first.choose(logits, Dear(legal)) == always.choose(logits, Fixed(legal))
    if share == 0.3 and not first._truncates:
        assert first.masks == 0


def test_the_likeliest_first_are_drawn_from_the_same_distribution() -> None:
    legal = np.zeros(1000, np.bool_)
    legal[:8] = LEGAL
    logits = np.concatenate([LOGITS, np.full(992, -3, np.float32)])
    sampler, draws = Sampler(Sampling(temperature=1.0)), 20_000
    counts = np.bincount([sampler.choose(logits, Dear(legal)) for _ in range(draws)], minlength=1000)
    wanted = expected(Sampling(temperature=1.0)) * draws
    assert counts[~legal].sum() == 0
    assert (((counts[:8] - wanted) ** 2)[LEGAL] / wanted[LEGAL]).sum() < 25
    assert sampler.masks < draws / 2


def test_the_same_seed_gives_the_same_tokens_and_another_does_not() -> None:
    def draw(seed: int, stream: int = 0) -> list[int]:
        sampler = Sampler(Sampling(temperature=1.0, seed=seed), stream)
        return [sampler.choose(LOGITS, Fixed(LEGAL)) for _ in range(50)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(1, stream=1) != draw(1, stream=2)


def test_a_dead_end_is_an_error() -> None:
    with pytest.raises(GrammarError, match="no token"):
        Sampler(Sampling()).choose(LOGITS, Fixed(np.zeros(8, np.bool_)))


def test_truncation_never_keeps_what_is_masked() -> None:
    masked = np.where(LEGAL, LOGITS, -np.inf).astype(np.float32)
    for sampling in SETTINGS:
        assert not truncate(masked, sampling)[~LEGAL].any()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=-1),
        Sampling(temperature=1e-39),
        Sampling(seed=-1),
        Sampling(temperature=float("nan")),
        Sampling(top_k=-1),
        Sampling(top_p=0),
        Sampling(top_p=1.1),
        Sampling(min_p=1),
        Sampling(repeat_penalty=0),
        Sampling(repeat_penalty=float("nan")),
        Sampling(repeat_last_n=-1),
    ],
)
def test_settings_that_make_no_sense_are_refused(sampling: Sampling) -> None:
    with pytest.raises(UsageError):
        Sampler(sampling)


@pytest.mark.parametrize("top", [0, 1, 3, 8])
def test_log_probabilities_are_those_of_the_softmax(top: int) -> None:
    softmax = np.exp(LOGITS.astype(np.float64)) / np.exp(LOGITS.astype(np.float64)).sum()
    own, likeliest = log_probabilities(LOGITS, 5, top)
    assert own == pytest.approx(np.log(softmax[5]))
    assert [token for token, _ in likeliest] == list(range(top))  # LOGITS fall
    assert [score for _, score in likeliest] == pytest.approx(np.log(softmax[:top]).tolist())
