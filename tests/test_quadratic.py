"""The allocation of nodes to branches against enumeration of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from betoken.drafters.quadratic import Shape, best_shape, full_shape, gains

shares = st.floats(0, 1).map(lambda value: round(value, 2))


def expected_tokens(shape: Shape, confidence: Sequence[float], runs: Sequence[float]) -> float:
    """Right drafts of this step and the next, from the definition: one outcome at a time."""
    total = 0.0
    for right in range(shape.drafts + 1):
        chance = prod(confidence[:right]) * (1.0 if right == shape.drafts else 1.0 - confidence[right])
        size = shape.branches[right] if right < len(shape.branches) else 0
        total += chance * (right + sum(runs[k - 1] for k in range(1, size)))
    return total


@given(
    confidence=st.lists(shares, max_size=3),
    runs=st.lists(shares, min_size=1, max_size=3).map(lambda values: sorted(values, reverse=True)),
    data=st.data(),
    nodes=st.integers(1, 8),
)
def test_no_other_shape_brings_more(
    confidence: list[float], runs: list[float], data: st.DataObject, nodes: int
) -> None:
    length = len(runs) + 1
    longest = [data.draw(st.integers(0, length)) for _ in range(len(confidence) + 1)]
    best = best_shape(confidence, gains(runs, length), longest, nodes)
    assert best.nodes <= nodes
    assert len(best.branches) == best.drafts + 1
    assert all(size <= most for size, most in zip(best.branches, longest, strict=False))
    for drafts in range(min(len(confidence), nodes) + 1):
        for branches in product(*(range(most + 1) for most in longest[: drafts + 1])):
            shape = Shape(drafts, branches)
            if shape.nodes <= nodes:
                tokens = expected_tokens(shape, confidence, runs)
                assert expected_tokens(best, confidence, runs) >= tokens - 1e-9


def test_gains_are_flat_and_then_rise() -> None:
    assert gains([0.5, 0.25], 3).tolist() == [0.0, 0.0, 0.5, 0.75]
    assert gains([0.5, 0.25], 5).tolist() == [0.0, 0.0, 0.5, 0.75, 0.75, 0.75]
    assert gains([0.5, 0.25], 1).tolist() == [0.0, 0.0]


def test_sure_drafts_leave_all_nodes_to_the_last_branch_and_hopeless_ones_are_left_out() -> None:
    gain = gains([0.9, 0.8, 0.7], 4)
    assert best_shape([1.0, 1.0], gain, [4, 4, 4], 20) == Shape(2, (0, 0, 4))
    assert best_shape([0.0, 1.0], gain, [4, 4, 4], 20) == Shape(0, (4,))
    assert best_shape([], gain, [4], 1) == Shape(0, (0,))


@pytest.mark.parametrize(
    ("drafts", "nodes", "shape"),
    [
        (0, 100, Shape(0, (4,))),
        (3, 100, Shape(3, (4, 4, 4, 4))),
        (3, 19, Shape(3, (4, 4, 4, 4))),
        (3, 18, Shape(2, (3, 3, 3))),
        (1, 19, Shape(1, (4, 4))),
        (3, 5, Shape(1, (2, 2))),
        (3, 4, Shape(3, ())),
    ],
)
def test_full_quadratic_shrinks_its_length_to_fit(drafts: int, nodes: int, shape: Shape) -> None:
    assert full_shape(drafts, 4, nodes) == shape
    assert shape.nodes <= nodes
