"""Statistics of judges against brute force: areas, limits, thresholds, fits; and what they promise, by simulation."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from betoken.answers.judge import Judge
from betoken.answers.plan import Rates
from betoken.tuning.ceiling import Case, Costs, by_confidence, perfect, speed_up
from betoken.tuning.judges import auc, choose_threshold, fewest, fit, reliability, roc, upper_bound

drafts = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=25)


@given(drafts)
def test_the_area_counts_pairs(pairs: list[tuple[int, bool]]) -> None:
    scores, right = [float(score) for score, _ in pairs], [label for _, label in pairs]
    good = [score for score, label in pairs if label]
    bad = [score for score, label in pairs if not label]
    found = auc(scores, right)
    assert (found.right, found.wrong) == (len(good), len(bad))
    if not good or not bad:
        assert (found.value, found.interval) == (0.5, (0.0, 1.0))
        return
    wins = sum(1.0 if g > b else 0.5 if g == b else 0.0 for g in good for b in bad) / (len(good) * len(bad))
    assert found.value == pytest.approx(wins)
    assert found.interval.low <= found.value <= found.interval.high
    assert found.interval.low < found.interval.high
    points = roc(scores, right)
    area = sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in pairwise(points))
    assert points[0] == (0.0, 0.0) and points[-1] == (1.0, 1.0) and area == pytest.approx(wins)


def test_the_interval_of_the_area_holds_it_as_often_as_it_says() -> None:
    chance = np.random.default_rng(1)
    true = 0.5 * (1 + math.erf(1 / 2))  # P(N(1, 1) > N(0, 1))
    held = 0
    for _ in range(400):
        right = chance.random(60) < 0.5
        found = auc((chance.normal(size=60) + right).tolist(), right.tolist())
        held += found.interval.low <= true <= found.interval.high
    assert 0.92 <= held / 400 <= 0.98


@pytest.mark.parametrize(("events", "trials"), [(0, 10), (1, 10), (3, 40), (39, 40), (0, 1)])
def test_clopper_pearson_by_exact_sums(events: int, trials: int) -> None:
    share = Fraction(upper_bound(events, trials, 0.9)).limit_denominator(10**9)
    tail = sum(math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(events + 1))
    assert float(tail) == pytest.approx(0.1, abs=1e-6)
    assert upper_bound(trials, trials, 0.9) == upper_bound(0, 0, 0.9) == 1.0


@given(drafts, st.floats(0.05, 0.6))
def test_the_threshold_is_the_lowest_that_no_higher_one_fails(pairs: list[tuple[int, bool]], bound: float) -> None:
    confidences, right = [score / 7 for score, _ in pairs], [label for _, label in pairs]
    found = choose_threshold(confidences, right, bound=bound, confidence=0.8)

    def risk(value: float) -> float:
        wrong = sum(c > value and not label for c, label in zip(confidences, right, strict=True))
        return upper_bound(wrong, len(right), 0.8)

    tried = sorted({*confidences, 0.0}, reverse=True)
    passing = [value for place, value in enumerate(tried) if all(risk(one) <= bound for one in tried[: place + 1])]
    accepting = [value for value in passing if any(c > value for c in confidences)]
    assert (found is None) == (not accepting)
    if found is not None:
        assert found.value == min(accepting) and found.risk == risk(found.value) <= bound
        assert found.accepted == sum(c > found.value for c in confidences)
        assert found.accepted_wrong == sum(
            c > found.value and not label for c, label in zip(confidences, right, strict=True)
        )


def test_the_promise_is_kept_as_often_as_it_says() -> None:
    """Drafts from a known law: the true share of accepted wrong answers is above the bound in at most 10% of cases."""
    chance = np.random.default_rng(4)
    broken = 0
    for _ in range(300):
        scores = chance.random(80)
        right = chance.random(80) < scores
        found = choose_threshold(scores.tolist(), right.tolist(), bound=0.1, confidence=0.9)
        if found is not None:
            broken += (1 - found.value) ** 2 / 2 > 0.1  # P(score above the threshold, and wrong)
    assert broken / 300 <= 0.13


def test_the_fewest_questions() -> None:
    many = fewest(0.05, 0.9)
    assert upper_bound(0, many, 0.9) <= 0.05 < upper_bound(0, many - 1, 0.9)
    assert choose_threshold([0.9] * (many - 1), [True] * (many - 1), bound=0.05, confidence=0.9) is None
    found = choose_threshold([0.9] * many, [True] * many, bound=0.05, confidence=0.9)
    assert found is not None and found.value == 0.0 and found.accepted == many


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_the_fit_finds_the_law(seed: int, two: bool) -> None:
    chance = np.random.default_rng(seed)
    odds, means = chance.normal(1.0, 3.0, 4000), chance.normal(-1.0, 0.5, 4000)
    true = odds / 2.5 + (1.5 * means if two else 0.0) + 0.4
    right = chance.random(4000) < 1 / (1 + np.exp(-true))
    found = fit(odds.tolist(), means.tolist() if two else None, right.tolist())
    assert found is not None
    assert 1 / found.temperature == pytest.approx(0.4, abs=0.06)
    assert found.likelihood == pytest.approx(1.5 if two else 0.0, abs=0.35)
    assert found.bias == pytest.approx(0.4, abs=0.45)
    judge = Judge(temperature=found.temperature, likelihood=found.likelihood, bias=found.bias)
    assert judge.confidence(1.3, -0.7) == found.confidence(1.3, -0.7)
    for one in reliability([found.confidence(o, m) for o, m in zip(odds, means, strict=True)], right.tolist(), 5):
        assert one.drafts < 200 or abs(one.confidence - one.right) < 0.08
    assert fit((-odds).tolist(), None, right.tolist()) is None


def test_a_fit_of_drafts_that_are_told_apart_without_mistake_is_finite() -> None:
    found = fit([-2.0, -1.0, 1.0, 2.0], None, [False, False, True, True])
    assert found is not None and 0 < found.temperature < 2
    assert [one.drafts for one in reliability([0.0, 0.05, 1.0], [True, False, True])] == [2, 1]


def case(right: bool, whole: float, prefixes: tuple[float, ...] = (0.9, 0.4, 0.8)) -> Case:
    return Case(right, 10, 12, 4, 40, 44, 40, (10, 20, 30), (*prefixes, whole))


def test_speed_ups_by_hand() -> None:
    costs = Costs(Rates(lambda nodes: 2.0 + nodes, chunk=1000), Rates(lambda nodes: 0.5, chunk=1000))
    cases = [case(True, 0.9), case(False, 0.3)]
    alone = 2 * (12.0 + 40 * 3.0)
    drafted = 0.5 + 44 * 0.5
    whole = 2 + 12 + 40 + 4
    assert speed_up(cases, perfect, costs) == pytest.approx(alone / (2 * (drafted + whole) + 40 * 3.0))
    cascade = by_confidence(0.5, 0)
    assert speed_up(cases, cascade, costs) == pytest.approx(alone / (2 * (drafted + whole) + 40 * 3.0))
    # Three prefixes: one pass costs 12 nodes more for both, two passes 2 + 12 for the rejected one. Ten tokens stand.
    accepted, rejected = drafted + whole, drafted + whole + 12 + 30 * 3.0
    assert speed_up(cases, by_confidence(0.5, 3), costs) == pytest.approx(alone / (accepted + rejected))
    assert cases[1].kept(0.5, 3) == (10, 3) and cases[1].kept(0.3, 3) == (30, 3) and cases[1].kept(0.5, 1) == (0, 1)
