"""The law and the picking rules against slow references written from their definitions."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from betoken import noise
from betoken.sampling import adjust, law, pick, pick_gumbel, pick_inverse_cdf, pick_softmax
from betoken.state import Row, SamplingSettings, StopSettings

logits_lists = st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 0.5, 1.0, 3.0]), min_size=1, max_size=12)


def law_by_definition(logits: list[float], settings: SamplingSettings) -> list[float]:
    """Sort everything, in plain Python: temperature, top-k, top-p, min-p, ties by id."""
    top = max(logits)
    weight = [math.exp((z - top) / settings.temperature) for z in logits]
    order = sorted(range(len(logits)), key=lambda t: (-logits[t], t))
    if settings.top_k:
        order = order[: settings.top_k]
    total = sum(weight[t] for t in order)
    kept, mass = [], 0.0
    for token in order:
        kept.append(token)
        mass += weight[token] / total
        if mass >= settings.top_p:
            break
    kept = [t for t in kept if weight[t] >= settings.min_p * weight[kept[0]]]
    total = sum(weight[t] for t in kept)
    return [weight[t] / total if t in kept else 0.0 for t in range(len(logits))]


@given(
    logits_lists,
    st.sampled_from([0.5, 1.0, 1.7]),
    st.integers(0, 13),
    st.sampled_from([0.05, 0.31, 0.77, 0.95, 1.0]),
    st.sampled_from([0.0, 0.1, 0.6, 1.0]),
)
def test_law_is_its_definition(logits: list[float], t: float, k: int, p: float, min_p: float) -> None:
    settings = SamplingSettings(temperature=t, top_k=k, top_p=p, min_p=min_p)
    found = law(np.array(logits, dtype=np.float32), settings)
    assert found == pytest.approx(law_by_definition(logits, settings), abs=1e-12)


@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("p", [0.1, 0.9, 0.999999])
def test_partial_selection_equals_a_full_sort_to_the_last_bit(scale: float, p: float) -> None:
    logits = (np.random.default_rng(3).normal(size=20_000) * scale).astype(np.float32)
    weights = np.exp(logits.astype(np.float64) - logits.max())
    weights /= weights.sum()
    order = np.lexsort((np.arange(weights.size), -weights))
    last = int(np.searchsorted(np.cumsum(weights[order]), p))
    full = np.zeros_like(weights)
    full[order[: last + 1]] = weights[order[: last + 1]]
    assert np.array_equal(law(logits, SamplingSettings(temperature=1.0, top_p=p)), full / full.sum())


def test_top_k_comes_before_top_p_and_top_p_before_min_p() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    # top-k 2 leaves 4/7 and 3/7, so p = 0.55 keeps one; taken of the whole law it would keep two.
    assert law(logits, SamplingSettings(1.0, top_k=2, top_p=0.55)).tolist() == [1.0, 0.0, 0.0, 0.0]
    # p = 0.75 of the whole law keeps three, of which min-p 0.45 drops none; min-p first would leave 4/9, 3/9 and 2/9,
    # of which p = 0.75 keeps two.
    assert np.count_nonzero(law(logits, SamplingSettings(1.0, top_p=0.75, min_p=0.45))) == 3


def test_ties_at_the_edges_go_to_the_smaller_id() -> None:
    logits = np.array([1.0, 2.0, 1.0, 1.0], dtype=np.float32)
    assert np.flatnonzero(law(logits, SamplingSettings(1.0, top_k=2))).tolist() == [0, 1]
    assert np.flatnonzero(law(logits, SamplingSettings(1.0, top_k=3))).tolist() == [0, 1, 2]
    assert np.flatnonzero(law(logits, SamplingSettings(1.0, top_p=0.5))).tolist() == [0, 1]
    assert law(np.array([0.0, 1.0, 1.0], dtype=np.float32), SamplingSettings()).tolist() == [0.0, 1.0, 0.0]


def test_banned_tokens_have_no_probability_whatever_is_kept() -> None:
    logits = np.array([1.0, -np.inf, 0.5, -np.inf], dtype=np.float32)
    for settings in (SamplingSettings(1.0), SamplingSettings(1.0, top_k=3), SamplingSettings(1.0, top_p=0.999)):
        found = law(logits, settings)
        assert found[[1, 3]].tolist() == [0.0, 0.0]
        assert found.sum() == pytest.approx(1.0)


def test_inverse_cdf_at_the_edges() -> None:
    probabilities = np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    picks = {0.0: 1, 0.25 - 2**-54: 1, 0.25: 3, 0.5: 3, 0.75: 4, 1.0 - 2**-53: 4}
    assert {u: pick_inverse_cdf(probabilities, u) for u in picks} == picks
    short = probabilities * (1 - 1e-9)  # rounding: the sum stays below u
    assert pick_inverse_cdf(short, 1.0 - 2**-53) == 4
    assert pick_inverse_cdf(np.array([0.3, 0.7, 0.0]) * (1 - 1e-12), 1.0 - 2**-53) == 1


@given(st.integers(0, 10_000))
def test_inverse_cdf_is_the_first_token_whose_sum_passes_u(seed: int) -> None:
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(6, 0.4))
    u = float(rng.random())
    passed = [math.fsum(probabilities[: token + 1]) > u for token in range(6)]
    assert pick_inverse_cdf(probabilities, u) == passed.index(True)


@pytest.mark.parametrize("gumbel", [False, True])
def test_picks_follow_the_law(gumbel: bool) -> None:
    probabilities = np.array([0.1, 0.0, 0.6, 0.3])
    picks: Counter[int] = Counter()
    for position in range(4000):
        if gumbel:
            picks[pick_gumbel(probabilities, noise.gumbels(1, 0, position, 4))] += 1
        else:
            picks[pick_inverse_cdf(probabilities, noise.uniform(1, 0, position))] += 1
    assert picks[1] == 0
    for token, share in enumerate(probabilities):
        assert picks[token] / 4000 == pytest.approx(share, abs=0.03)


def a_row(sampling: SamplingSettings, stop: StopSettings | None = None, new: tuple[int, ...] = ()) -> Row:
    row = Row(0, 0, np.array([1, 2, 2]), sampling, stop or StopSettings(), frozenset({0}), 99)
    row.commit(new)
    return row


def test_penalties_count_committed_and_drafted_tokens() -> None:
    logits = np.array([1.0, 1.0, -1.0, 1.0, 1.0, 1.0], dtype=np.float32)
    row = a_row(SamplingSettings(presence_penalty=0.5, frequency_penalty=0.25), new=(3, 3))
    # The prompt (1, 2, 2) counts for neither; 3 stands twice in the answer, 4 and 3 once each in the draft.
    assert adjust(logits, row, [4, 3]).tolist() == [1.0, 1.0, -1.0, 1.0 - 0.5 - 0.75, 1.0 - 0.75, 1.0]
    row = a_row(SamplingSettings(repetition_penalty=2.0), new=(3,))
    # Repetition looks at prompt, answer and draft: positive logits are divided, negative ones multiplied.
    assert adjust(logits, row, [4]).tolist() == [1.0, 0.5, -2.0, 0.5, 0.5, 1.0]
    assert logits.tolist() == [1.0, 1.0, -1.0, 1.0, 1.0, 1.0]


def test_bias_comes_after_penalties_and_the_end_ban_before_everything() -> None:
    logits = np.array([4.0, 2.0, 0.0], dtype=np.float32)
    settings = SamplingSettings(repetition_penalty=2.0, logit_bias={0: 50.0, 1: 1.0})
    row = a_row(settings, StopSettings(min_new_tokens=2))
    assert adjust(logits, row, []).tolist() == [-np.inf, 2.0, 0.0]
    assert adjust(logits, row, [1]).tolist() == [-np.inf, 2.0, 0.0]
    assert adjust(logits, row, [1, 1])[0] == 54.0


def test_a_row_without_settings_gets_the_logits_themselves() -> None:
    logits = np.zeros(3, dtype=np.float32)
    assert adjust(logits, a_row(SamplingSettings()), [1]) is logits


def test_pick_uses_the_noise_of_its_position() -> None:
    logits = np.random.default_rng(0).normal(size=50).astype(np.float32)
    settings = SamplingSettings(temperature=1.0, seed=11)
    row = a_row(settings)
    for position in range(20):
        u = noise.uniform(11, 0, position)
        assert pick(logits, row, position) == pick_inverse_cdf(law(logits, settings), u)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 5000, 49_152])
@pytest.mark.parametrize(("scale", "temperature"), [(0.0, 1.0), (2.5, 1.5), (4.0, 0.3), (200.0, 0.7)])
def test_a_pick_without_the_law_is_the_pick_of_the_law(size: int, scale: float, temperature: float) -> None:
    """At random numbers, and at the very edges of tokens' intervals, where the last bit decides."""
    rng = np.random.default_rng(size)
    logits = (rng.standard_normal(size) * scale).astype(np.float32)
    logits[rng.random(size) < 0.1] = -np.inf
    logits[rng.integers(size)] = 3.0
    whole = law(logits, SamplingSettings(temperature))
    near = rng.choice(np.cumsum(whole), 12)
    numbers = [0.0, 1.0 - 2.0**-53, *rng.random(12), *near, *np.nextafter(near, 0.0), *np.nextafter(near, 1.0)]
    for u in numbers:
        if u < 1.0:
            assert pick_softmax(logits, temperature, u) == pick_inverse_cdf(whole, u)


def test_the_law_decides_at_the_edges_only(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = (np.random.default_rng(0).standard_normal(49_152) * 2.5).astype(np.float32)
    settings = SamplingSettings(1.5)
    numbers = np.random.default_rng(1).random(50)
    expected = [pick_inverse_cdf(law(logits, settings), u) for u in numbers]
    monkeypatch.setattr("betoken.sampling.law", lambda *_: pytest.fail("not needed"))
    assert [pick_softmax(logits, 1.5, u) for u in numbers] == expected
