"""Ratios of totals over the same cases, with the interval that resampling the cases gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True)
class Ratio:
    """A ratio and its 95% interval (percentile bootstrap over cases; Efron, 1979)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def ratio(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Ratio:
    """The sum of `above` through the sum of `below`, one number of each per case."""
    over, under = np.asarray(above, float), np.asarray(below, float)
    if over.shape != under.shape or not over.size:
        raise ValueError(f"a ratio needs as many cases above as below, and some: {over.size}, {under.size}")
    drawn = np.random.default_rng(seed).integers(0, over.size, (RESAMPLES, over.size))
    ratios = over[drawn].sum(axis=1) / under[drawn].sum(axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Ratio(float(over.sum() / under.sum()), float(low), float(high))
