"""Numbers and tokens: Pick and its inverse, one law at a time and in batches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from betoken.sampling import law, pick_inverse_cdf
from betoken.state import SamplingSettings
from betoken.training.intervals import (
    Interval,
    Intervals,
    interval,
    intervals_of,
    laws,
    picked_tokens,
    picks,
    place,
    places,
    spread,
    token_intervals,
)

ENDS = (0.0, 2.0**-60, 0.25, 0.5, 1.0 - 2.0**-53)
settings_st = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 50]),
    top_p=st.sampled_from([0.3, 0.9, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3]),
)
# Few different values, so that ties at the edge of top-k and top-p are common; wide, so that some masses vanish.
logits_st = st.lists(st.sampled_from([-800.0, -40.0, -2.0, -1.0, 0.0, 0.5, 0.5, 3.0, 20.0]), min_size=1, max_size=9)


def laws_of(values: list[float]) -> np.ndarray:
    weights = np.array(values)
    return weights / weights.sum()


@given(logits_st, settings_st, st.floats(0.0, 1.0))
def test_every_number_of_an_interval_picks_its_token(logits: list[float], settings: SamplingSettings, v: float) -> None:
    probabilities = law(np.array(logits, dtype=np.float32), settings)
    covered = 0.0
    for token in range(len(logits)):
        where = interval(probabilities, token)
        covered += where.high - where.low
        if where.high > where.low:
            for place_of in (v, *ENDS, 1.0):
                u = place(where, place_of)
                assert where.low <= u < where.high <= 1.0
                assert pick_inverse_cdf(probabilities, u) == token
    assert covered == pytest.approx(1.0, abs=1e-15)


@given(logits_st, settings_st, st.one_of(st.sampled_from(ENDS), st.floats(0.0, 1.0, exclude_max=True)))
def test_every_number_lies_in_the_interval_of_the_token_it_picks(
    logits: list[float], settings: SamplingSettings, u: float
) -> None:
    probabilities = law(np.array(logits, dtype=np.float32), settings)
    where = interval(probabilities, pick_inverse_cdf(probabilities, u))
    assert where.low <= u < where.high


@pytest.mark.parametrize(
    ("probabilities", "token", "expected"),
    [
        ([0.5, 0.25, 0.25], 0, (0.0, 0.5)),
        ([0.5, 0.25, 0.25], 2, (0.75, 1.0)),
        ([0.0, 1.0, 0.0], 1, (0.0, 1.0)),
        ([0.0, 1.0, 0.0], 0, (0.0, 0.0)),
        ([0.0, 1.0, 0.0], 2, (1.0, 1.0)),
        ([0.1] * 10, 9, (0.8999999999999999, 1.0)),  # the sum of the masses is 0.9999999999999999
    ],
)
def test_ends(probabilities: list[float], token: int, expected: tuple[float, float]) -> None:
    assert interval(np.array(probabilities), token) == Interval(*expected)


@given(
    st.lists(logits_st.filter(lambda row: len(row) >= 4).map(lambda row: row[:4]), min_size=1, max_size=4), settings_st
)
def test_batched_laws_are_those_of_sampling(rows: list[list[float]], settings: SamplingSettings) -> None:
    logits = np.array(rows, dtype=np.float32)
    found = laws(torch.from_numpy(logits), settings).numpy()
    for row, ours in zip(logits, found, strict=True):
        np.testing.assert_allclose(ours, law(row, settings), atol=1e-14)


@pytest.mark.parametrize("top_k", [0, 7])
def test_batched_laws_of_wide_vocabularies(top_k: int) -> None:
    logits = np.random.default_rng(0).normal(0, 3, (5, 1000)).astype(np.float32).round(1)
    for top_p, min_p in ((0.9, 0.0), (1.0, 0.02), (0.5, 0.1)):
        settings = SamplingSettings(temperature=0.7, top_k=top_k, top_p=top_p, min_p=min_p)
        found = laws(torch.from_numpy(logits), settings).numpy()
        expected = np.stack([law(row, settings) for row in logits])
        assert ((found > 0) == (expected > 0)).all()
        np.testing.assert_allclose(found, expected, atol=1e-14)


@given(logits_st, settings_st, st.floats(0.0, 1.0, exclude_max=True))
def test_batched_intervals_and_picks_agree(logits: list[float], settings: SamplingSettings, v: float) -> None:
    own = laws(torch.tensor([logits] * len(logits)), settings)
    tokens = torch.arange(len(logits))
    where = intervals_of(own, tokens)
    for token in range(len(logits)):
        expected = interval(own[token].numpy(), token)
        assert (float(where.low[token]), float(where.high[token])) == pytest.approx(expected, abs=1e-15)
        assert bool(where.possible[token]) == (expected.high > expected.low)
    u = places(where, torch.full_like(where.low, v))
    assert ((u >= 0) & (u < 1)).all()
    assert torch.equal(picks(own, u)[where.possible], tokens[where.possible])


def test_many_rows_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, u = torch.randn(23, 11, generator=generator), torch.rand(23, generator=generator, dtype=torch.float64)
    plain = SamplingSettings(temperature=1.0)
    whole = picked_tokens(logits, u, plain), token_intervals(logits, torch.arange(23) % 11, plain)
    monkeypatch.setattr("betoken.training.intervals._CHUNK", 44)
    assert torch.equal(picked_tokens(logits, u, plain), whole[0])
    parts = token_intervals(logits, torch.arange(23) % 11, plain)
    assert torch.equal(parts.low, whole[1].low) and torch.equal(parts.high, whole[1].high)


def test_beta_places_stay_inside() -> None:
    v = spread(np.random.default_rng(0), (20000,), 0.1)
    where = Intervals(torch.full((20000,), 0.3, dtype=torch.float64), torch.full((20000,), 0.4, dtype=torch.float64))
    u = places(where, torch.from_numpy(v))
    assert ((u >= 0.3) & (u < 0.4)).all()
    assert (v < 0.01).mean() > 0.2 < (v > 0.99).mean()  # the ends are seen more often
    assert abs(spread(np.random.default_rng(0), (20000,), 1.0).mean() - 0.5) < 0.01


def test_boxes_of_numbers_are_the_law_of_texts() -> None:
    """The fact that PTP rests on: the numbers that pick a text fill a box whose volume is the text's probability,
    the boxes of all texts tile the cube, and the law of the next token is the same all over a box."""
    generator = np.random.default_rng(1)
    table = {past: laws_of(generator.integers(1, 9, 3).tolist()) for past in itertools.product(range(3), repeat=2)}
    start = (0, 1)
    total = 0.0
    for text in itertools.product(range(3), repeat=3):
        past, probability, volume, corners = start, 1.0, 1.0, []
        for token in text:
            where = interval(table[past], token)
            probability *= table[past][token]
            volume *= where.high - where.low
            corners.append(where)
            past = (past[1], token)
        assert volume == pytest.approx(probability, abs=1e-15)
        total += volume
        for u in [*itertools.product(*((place(w, 0.0), place(w, 1.0)) for w in corners))]:
            past = start
            for number, token in zip(u, text, strict=True):
                assert pick_inverse_cdf(table[past], number) == token
                past = (past[1], token)
    assert total == pytest.approx(1.0, abs=1e-14)
