"""Small statistics: pure functions over one list of numbers, none of them with state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

Statistic = Literal["median", "mean", "geometric-mean"]


class Interval(NamedTuple):
    """The two ends of a confidence interval."""

    low: float
    high: float


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of them do not exceed, by linear interpolation; nan of none."""
    return float(np.percentile(np.asarray(values, dtype=np.float64), percent)) if len(values) else math.nan


def median(values: Sequence[float]) -> float:
    """The 50th percentile; nan of none."""
    return percentile(values, 50.0)


def geometric_mean(values: Sequence[float]) -> float:
    """The mean for ratios: that of 2 and 1/2 is 1. nan of none; all must be above 0."""
    return math.exp(math.fsum(math.log(value) for value in values) / len(values)) if len(values) else math.nan


def bootstrap(
    values: Sequence[float],
    statistic: Statistic = "median",
    *,
    level: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval (Efron 1979) of a statistic of independent values; nan, nan of none.

    `level`: the share of such intervals that hold the true value, for samples that are not tiny.
    """
    if not len(values):
        return Interval(math.nan, math.nan)
    data = np.asarray(values, dtype=np.float64)
    drawn = data[np.random.default_rng(seed).integers(len(data), size=(resamples, len(data)))]
    if statistic == "median":
        found = np.median(drawn, axis=1)
    elif statistic == "mean":
        found = drawn.mean(axis=1)
    else:
        found = np.exp(np.log(drawn).mean(axis=1))
    tail = 50.0 * (1.0 - level)
    return Interval(float(np.percentile(found, tail)), float(np.percentile(found, 100.0 - tail)))


def wilson(successes: int, trials: int, *, z: float = 1.959963984540054) -> Interval:
    """Score interval of a proportion (Wilson 1927), right for small counts and for none or all; 0..1 of no trials.

    `z`: the normal quantile of the level, 1.96 for 95%.
    """
    if trials == 0:
        return Interval(0.0, 1.0)
    share = successes / trials
    scale = 1.0 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def paired(lost: int, gained: int, trials: int, *, z: float = 1.959963984540054) -> Interval:
    """Interval of a difference of two proportions on the same trials (Agresti and Min 2005, adjusted Wald).

    `lost`: trials that only the first got right; `gained`: only the second. Half a trial is added to each of the four
    cells, so the interval has a width also where nothing differs. -1..1 of no trials.
    """
    if trials == 0:
        return Interval(-1.0, 1.0)
    first, second, many = lost + 0.5, gained + 0.5, trials + 2.0
    middle = (second - first) / many
    half = z * math.sqrt(first + second - (second - first) ** 2 / many) / many
    return Interval(max(-1.0, middle - half), min(1.0, middle + half))
