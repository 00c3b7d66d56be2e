"""Intervals and paired tests. Textbook formulas; sources beside them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import median as median
from typing import Any

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
    """The two-sided exact p of McNemar's test: pairs in which one of two succeeded, by which one. (Of pairs
    in which one of two did better it is the sign test's.)"""
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


def paired(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, Any]:
    """Two lots of successes on the tasks that both have: counts, McNemar's test, and an interval of the
    difference. There has to be such a task. A success is 0 or 1, or, of a task that was run several times,
    its share: runs of one task depend on one another, so that only tasks are resampled and tested."""
    common = [task for task in first if task in second]
    only_first = [task for task in common if first[task] > second[task]]
    only_second = [task for task in common if second[task] > first[task]]
    low, high = bootstrap([second[task] - first[task] for task in common])
    return {
        "tasks": len(common),
        "success_a": round(sum(first[task] for task in common), 2),
        "success_b": round(sum(second[task] for task in common), 2),
        "both": sum(0 < first[task] == second[task] for task in common),
        "neither": sum(first[task] == second[task] == 0 for task in common),
        "only_a": only_first,
        "only_b": only_second,
        "mcnemar_p": mcnemar(len(only_first), len(only_second)),
        "difference": round(sum(second[task] - first[task] for task in common) / len(common), 4),
        "difference_low": round(low, 4),
        "difference_high": round(high, 4),
    }
