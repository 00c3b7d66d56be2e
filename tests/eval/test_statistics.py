from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localreact.eval.statistics import bootstrap, mcnemar, median, wilson


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [  # Newcombe 1998, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0),
    ],
)
def test_wilson_against_published_values(hits: int, total: int, low: float, high: float) -> None:
    assert wilson(hits, total) == pytest.approx((low, high), abs=5e-5)


def test_nothing_counted_is_nothing_known() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(0, 500).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_an_interval_holds_its_share(counted: tuple[int, int]) -> None:
    hits, total = counted
    low, high = wilson(hits, total)
    assert 0 <= low <= high <= 1
    assert total == 0 or low <= hits / total <= high


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [(0, 0, 1.0), (1, 1, 1.0), (0, 5, 0.0625), (6, 0, 0.03125), (2, 8, 0.109375), (5, 15, 0.0413895)],
)
def test_mcnemar_is_the_binomial_test(only_first: int, only_second: int, p: float) -> None:
    assert mcnemar(only_first, only_second) == pytest.approx(p, abs=1e-6)
    assert mcnemar(only_second, only_first) == mcnemar(only_first, only_second)


def test_the_bootstrap_is_reproducible_and_near_the_normal_interval() -> None:
    differences = [1.0] * 30 + [0.0] * 60 + [-1.0] * 10
    low, high = bootstrap(differences)
    assert (low, high) == bootstrap(differences)
    assert low == pytest.approx(0.2 - 1.96 * 0.06, abs=0.02)
    assert high == pytest.approx(0.2 + 1.96 * 0.06, abs=0.02)
    assert bootstrap([]) == (0.0, 0.0)


def test_medians() -> None:
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5
