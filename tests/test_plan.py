"""What is judged, and how, by price: curves like a GPU's and like a CPU's, and sums done by hand and by simulation."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from betoken.answers.boundaries import spread
from betoken.answers.plan import Rates, Sizes, cheapest, expected_kept, expected_seconds

SUFFIX, PROMPT = Sizes("suffix", 60, 40), Sizes("prompt", 110, 5, again=60)
ENDS = list(range(10, 320, 10))


def flat(nodes: int) -> float:
    """A GPU: a pass over 500 nodes takes little longer than one over one."""
    return 0.020 + 2e-6 * nodes


def linear(nodes: int) -> float:
    """A CPU: most of the time goes by nodes."""
    return 0.020 + 0.006 * nodes


def test_where_nodes_are_free_everything_is_judged_at_once() -> None:
    plan = cheapest([SUFFIX, PROMPT], ["two", "one"], range(32), ENDS, 320, Rates(flat, chunk=4096))
    assert plan.passes == "one" and len(plan.ends) > 20 and plan.layout == "suffix"


def test_where_nodes_are_dear_few_boundaries_are_judged_once_the_answer_is_rejected() -> None:
    plan = cheapest([SUFFIX], ["two", "one"], range(32), ENDS, 320, Rates(linear))
    assert plan.passes == "two" and 1 <= len(plan.ends) <= 5
    short = cheapest([PROMPT], ["two", "one"], range(32), ENDS, 320, Rates(linear))
    assert len(short.ends) > len(plan.ends)  # five tokens a boundary instead of forty


def test_a_layout_pays_for_what_it_reads_again() -> None:
    """Many boundaries want short copies; what is rejected often wants a cache that the target can go on from."""
    half_way = Rates(lambda nodes: 0.100 + 0.001 * nodes, chunk=4096)
    assert cheapest([SUFFIX, PROMPT], ["two", "one"], range(32), ENDS, 320, half_way).layout == "prompt"
    assert cheapest([SUFFIX, PROMPT], ["two", "one"], range(32), ENDS, 320, Rates(linear)).layout == "suffix"


def test_where_a_suffix_is_dearer_than_the_answer_no_prefix_is_judged() -> None:
    plan = cheapest([Sizes("suffix", 60, 200)], ["two", "one"], range(5), [5, 10, 15], 20, Rates(linear))
    assert plan.ends == ()


def test_drafts_that_are_always_accepted_need_no_second_look() -> None:
    sure = Rates(linear, accepts=1.0)
    assert cheapest([SUFFIX], ["one", "two"], [8], ENDS, 320, sure).passes == "two"
    never = Rates(lambda nodes: 0.02 * (1 + nodes // 4096), chunk=4096, accepts=0.0)
    assert cheapest([SUFFIX], ["two", "one"], [8], ENDS, 320, never).passes == "one"


def test_prices_by_hand() -> None:
    rates = Rates(lambda nodes: float(nodes), chunk=100, accepts=0.25)
    sizes, ends = Sizes("suffix", 10, 4), [10, 20]
    kept = (10 * 10 + 20 * 20) / 40
    assert expected_kept(ends, 40) == kept
    assert expected_seconds(sizes, "two", ends, 40, rates) == pytest.approx(10 + 40 + 4 + 0.75 * (8 + 40 - kept))
    assert expected_seconds(sizes, "one", ends, 40, rates) == pytest.approx(10 + 40 + 12 + 0.75 * (40 - kept))
    again = Sizes("prompt", 10, 4, again=6)
    expected = 10 + 40 + 4 + 0.75 * (8 + round(6 + kept) + 40 - kept)
    assert expected_seconds(again, "two", ends, 40, rates) == pytest.approx(expected)
    assert Rates(lambda nodes: 1.0 + nodes, chunk=100).scored(250) == 2 * 101 + 51
    assert Rates(lambda nodes: 1.0 + nodes).scored(0) == 0


@given(st.integers(1, 200), st.sets(st.integers(1, 199), max_size=12))
def test_kept_tokens_are_those_before_a_random_mistake(draft: int, cuts: set[int]) -> None:
    ends = sorted(cut for cut in cuts if cut < draft)
    kept = [max([0, *(end for end in ends if end <= mistake)]) for mistake in range(draft)]
    assert expected_kept(ends, draft) == pytest.approx(sum(kept) / draft)


def test_no_plan_is_cheaper_than_the_cheapest() -> None:
    chance = random.Random(3)
    rates = Rates(lambda nodes: 0.05 + 0.001 * nodes + 1e-6 * nodes**2, chunk=256)
    best = cheapest([SUFFIX, PROMPT], ["two", "one"], range(13), ENDS, 320, rates)
    assert best.expected_s is not None
    for _ in range(50):
        sizes, passes = chance.choice([SUFFIX, PROMPT]), chance.choice(["one", "two"])
        ends = spread(ENDS, chance.randrange(13))
        assert best.expected_s <= expected_seconds(sizes, passes, ends, 320, rates)  # type: ignore[arg-type]
