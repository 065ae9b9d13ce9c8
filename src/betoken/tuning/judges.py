"""How good is a judge? Discrimination, calibration, and the threshold whose accepted wrong answers stay under a bound.

Pure functions over confidences (or log-odds) of drafts and whether those are right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from betoken.answers.judge import certainty
from betoken.bench.metrics import Interval

Floats = NDArray[np.float64]
Z = 1.959963984540054


class Auc(NamedTuple):
    """Probability that a right draft has more confidence than a wrong one, ties counted half; 0.5 tells nothing."""

    value: float
    interval: Interval
    """95%, after Hanley and McNeil (Radiology 1982)."""
    right: int
    wrong: int


def auc(scores: Sequence[float], right: Sequence[bool]) -> Auc:
    """Of scores that should be high where a draft is right; 0.5 between 0 and 1 if all drafts are alike."""
    values, label = np.asarray(scores, dtype=np.float64), np.asarray(right, dtype=bool)
    good, bad = values[label], values[~label]
    if not len(good) or not len(bad):
        return Auc(0.5, Interval(0.0, 1.0), len(good), len(bad))
    wins = (good[:, None] > bad[None, :]).mean() + 0.5 * (good[:, None] == bad[None, :]).mean()
    area = float(wins)
    both = area / (2.0 - area) - area**2, 2.0 * area**2 / (1.0 + area) - area**2
    # At 0 and 1 the formula knows no spread; half a pair more on the other side keeps one.
    pair = 0.5 / (len(good) * len(bad))
    spread = max(area * (1 - area), pair * (1 - pair))
    variance = (spread + (len(good) - 1) * both[0] + (len(bad) - 1) * both[1]) / (len(good) * len(bad))
    half = Z * math.sqrt(variance)
    return Auc(area, Interval(max(0.0, area - half), min(1.0, area + half)), len(good), len(bad))


def roc(scores: Sequence[float], right: Sequence[bool]) -> list[tuple[float, float]]:
    """(share of wrong drafts accepted, share of right drafts accepted) at every threshold, from (0, 0) to (1, 1)."""
    pairs = sorted(zip(scores, right, strict=True), reverse=True)
    many = max(1, sum(right)), max(1, len(pairs) - sum(right))
    found, good, bad = [(0.0, 0.0)], 0, 0
    for place, (score, is_right) in enumerate(pairs):
        good, bad = good + is_right, bad + (not is_right)
        if place + 1 == len(pairs) or pairs[place + 1][0] != score:
            found.append((bad / many[1], good / many[0]))
    return found


def upper_bound(events: int, trials: int, confidence: float) -> float:
    """Clopper-Pearson (1934): the one-sided upper limit of a probability; 1 of no trials."""
    if events >= trials:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        if _at_most(events, trials, middle) > 1.0 - confidence:
            low = middle
        else:
            high = middle
    return high


def _at_most(events: int, trials: int, share: float) -> float:
    """P(X <= events) of a binomial."""
    if share <= 0.0:
        return 1.0
    if share >= 1.0:
        return 0.0
    k = np.arange(events + 1)
    choose = [math.lgamma(trials + 1) - math.lgamma(i + 1) - math.lgamma(trials - i + 1) for i in range(events + 1)]
    logs = np.array(choose) + k * math.log(share) + (trials - k) * math.log1p(-share)
    return float(min(1.0, np.exp(logs).sum()))


@dataclass(frozen=True)
class Threshold:
    """Accept what has more confidence than this."""

    value: float
    accepted: int
    accepted_wrong: int
    answers: int
    risk: float
    """Upper limit of the share of all answers that are wrong and accepted, at the confidence that was asked for."""


def choose_threshold(
    confidences: Sequence[float], right: Sequence[bool], *, bound: float, confidence: float
) -> Threshold | None:
    """The lowest threshold at which wrong accepted answers are at most `bound` of all answers, with `confidence`.

    Risk-controlling prediction sets (Bates et al. 2021) with Clopper-Pearson limits: the share falls as the threshold
    rises, so thresholds are tested from the highest down until one fails, and no correction for many tests is due.
    None where the bound cannot be shown for any threshold that accepts something.
    """
    label = np.asarray(right, dtype=bool)
    values = np.asarray(confidences, dtype=np.float64)
    best = None
    for value in [*sorted(set(values.tolist()), reverse=True), 0.0]:
        accepted = values > value
        wrong = int((accepted & ~label).sum())
        risk = upper_bound(wrong, len(values), confidence)
        if risk > bound:
            break
        if accepted.any():
            best = Threshold(float(value), int(accepted.sum()), wrong, len(values), risk)
    return best


def fewest(bound: float, confidence: float) -> int:
    """Least number of questions with which a bound can be shown at all: none of them wrong and accepted."""
    return math.ceil(math.log(1.0 - confidence) / math.log1p(-bound))


_DEAF = 1e-3
"""A weight of the log-odds that changes nothing."""


@dataclass(frozen=True)
class Fit:
    """How evidence becomes confidence, see `certainty`."""

    temperature: float
    likelihood: float
    bias: float

    def confidence(self, odds: float, mean_logprob: float = 0.0) -> float:
        """The same as `Judge.confidence` with these settings."""
        return certainty(odds, mean_logprob, self.temperature, self.likelihood, self.bias)


def fit(odds: Sequence[float], means: Sequence[float] | None, right: Sequence[bool]) -> Fit | None:
    """Temperature scaling (Guo et al. 2017) with a bias (Platt 1999), and with `means` a second feature: logistic.

    A slight pull to (1, 0, 0) keeps it finite where the classes can be told apart without a mistake. Where confidence
    should fall as the log-odds rise, the judge says the opposite of what is right: its word is left out (a temperature
    of 1000) if there are `means` which do better, and None if not.
    """
    label = np.asarray(right, dtype=np.float64)
    columns = [np.asarray(odds, dtype=np.float64), np.ones(len(odds))]
    start = [1.0, 0.0]
    if means is not None:
        columns.append(np.asarray(means, dtype=np.float64))
        start.append(0.0)
    weights = _logistic(np.stack(columns, axis=1), label, np.array(start))
    if weights[0] > _DEAF:
        return Fit(1.0 / float(weights[0]), float(weights[2]) if means is not None else 0.0, float(weights[1]))
    if means is None:
        return None
    bias, weight = _logistic(np.stack(columns[1:], axis=1), label, np.zeros(2)).tolist()
    return Fit(1.0 / _DEAF, weight, bias) if weight > 0.0 else None


def _logistic(features: Floats, label: Floats, start: Floats, pull: float = 0.1) -> Floats:
    """Newton's method with halved steps; `pull`: weight of the squared distance to `start`."""

    def loss(weights: Floats) -> float:
        z = features @ weights
        return float(np.logaddexp(0.0, z).sum() - label @ z + 0.5 * pull * ((weights - start) ** 2).sum())

    weights = start.copy()
    for _ in range(100):
        p = 0.5 * (1.0 + np.tanh(0.5 * (features @ weights)))
        gradient = features.T @ (p - label) + pull * (weights - start)
        curvature = (features * (p * (1 - p))[:, None]).T @ features + pull * np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        size = 1.0
        while loss(weights - size * step) > loss(weights) and size > 1e-6:
            size /= 2.0
        weights = weights - size * step
        if np.abs(size * step).max() < 1e-9:
            break
    return weights


class Bin(NamedTuple):
    """Drafts of similar confidence."""

    confidence: float
    """Mean."""
    right: float
    """Share that is right."""
    drafts: int


def reliability(confidences: Sequence[float], right: Sequence[bool], bins: int = 10) -> list[Bin]:
    """Bins of equal width that are not empty."""
    values, label = np.asarray(confidences, dtype=np.float64), np.asarray(right, dtype=np.float64)
    place = np.minimum((values * bins).astype(int), bins - 1)
    return [
        Bin(float(values[place == b].mean()), float(label[place == b].mean()), int((place == b).sum()))
        for b in range(bins)
        if (place == b).any()
    ]
