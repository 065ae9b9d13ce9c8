"""Statistics against published values, Python's statistics module, and simulation."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from betoken.bench import metrics


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [  # Newcombe (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_intervals_of_newcombe(successes: int, trials: int, low: float, high: float) -> None:
    assert metrics.wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_wilson_of_no_trials_knows_nothing() -> None:
    assert metrics.wilson(0, 0) == (0.0, 1.0)


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=30))
def test_means_and_percentiles_are_those_of_python(values: list[float]) -> None:
    assert metrics.geometric_mean(values) == pytest.approx(statistics.geometric_mean(values))
    assert metrics.median(values) == pytest.approx(statistics.median(values))
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    assert metrics.percentile(values, 95) == pytest.approx(cuts[-1])
    assert metrics.percentile(values, 5) == pytest.approx(cuts[0])


def test_nothing_gives_nan() -> None:
    assert math.isnan(metrics.median([])) and math.isnan(metrics.geometric_mean([]))
    assert all(map(math.isnan, metrics.bootstrap([])))


def test_bootstrap_of_two_values_has_the_law_of_two_coins() -> None:
    # Means of resamples of {0, 1}: 0 with probability 1/4, 1/2 with 1/2, 1 with 1/4.
    assert metrics.bootstrap([0.0, 1.0], "mean", level=0.40) == (0.5, 0.5)
    assert metrics.bootstrap([0.0, 1.0], "mean", level=0.60) == (0.0, 1.0)
    assert metrics.bootstrap([1.0, 4.0], "geometric-mean", level=0.40) == pytest.approx((2.0, 2.0))
    assert metrics.bootstrap([3.0] * 5) == (3.0, 3.0)


def test_bootstrap_intervals_hold_the_true_median_about_as_often_as_they_say() -> None:
    draws = np.random.default_rng(1).lognormal(size=(300, 40))
    held = 0
    for index, values in enumerate(draws):
        low, high = metrics.bootstrap(values.tolist(), resamples=400, seed=index)
        held += low <= 1.0 <= high
    assert 0.90 <= held / 300 <= 0.99


def test_bootstrap_is_seeded() -> None:
    values = [1.0, 2.0, 4.0, 8.0, 9.0]
    assert metrics.bootstrap(values, seed=3) == metrics.bootstrap(values, seed=3)
