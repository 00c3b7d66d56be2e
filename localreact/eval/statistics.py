"""Intervals and paired tests. Textbook formulas; sources beside them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction

Z95 = 1.959963984540054
"""Of the standard normal distribution: 95% lie within."""

RESAMPLES = 10_000


def wilson(hits: int, total: int, z: float = Z95) -> tuple[float, float]:
    """The interval of a share (Wilson 1927): usable at 0 and at all, and for small totals.

    Without anything counted it is everything: (0, 1).
    """
    if total == 0:
        return 0.0, 1.0
    share, square = hits / total, z * z
    centre = (share + square / (2 * total)) / (1 + square / total)
    half = z / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return (0.0 if hits == 0 else max(0.0, centre - half)), (
        1.0 if hits == total else min(1.0, centre + half)
    )


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided exact p of McNemar's test: pairs in which one of two succeeded, by which one."""
    pairs = only_first + only_second
    tail = sum(math.comb(pairs, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, float(Fraction(2 * tail, 2**pairs)))


def bootstrap(differences: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 95% interval of the mean of paired differences, by resampling pairs (Efron's percentiles)."""
    if not differences:
        return 0.0, 0.0
    chance, count = random.Random(seed), len(differences)
    means = sorted(sum(chance.choices(differences, k=count)) / count for _ in range(RESAMPLES))
    return means[round(0.025 * (RESAMPLES - 1))], means[round(0.975 * (RESAMPLES - 1))]


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
