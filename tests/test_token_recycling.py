"""Token recycling: table, shape and selection against brute force, and the promises of every drafter."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from betoken.decode import Request
from betoken.drafters.token_recycling import TokenRecycling, static_tree, top
from betoken.errors import InputError
from betoken.state import StopSettings
from betoken.testing import ToyTarget, check_drafter, plain_tokens
from growing_toys import Stepper, ragged_requests, run_batch


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 4),
    vocabulary=st.integers(1, 2000),
    k=st.integers(1, 12),
)
def test_top_is_the_sorted_top(seed: int, rows: int, vocabulary: int, k: int) -> None:
    """Ties included: quarters make many."""
    logits = np.round(np.random.default_rng(seed).normal(size=(rows, vocabulary)) * 4).astype(np.float32) / 4
    ids = top(logits, k)
    k = min(k, vocabulary)
    assert ids.shape == (rows, k)
    values = np.take_along_axis(logits, ids, axis=1)
    assert (values == -np.sort(-logits, axis=1)[:, :k]).all()
    assert all(len(set(row.tolist())) == k for row in ids)


def test_static_tree_is_the_best_places_by_rank_product() -> None:
    """Brute force over all paths of 8 ranks and up to 5 levels."""
    places = static_tree(80, 8)
    paths: list[tuple[int, ...]] = []
    for slot in places:
        above = paths[slot.parent - 1] if slot.parent else ()
        paths.append((*above, slot.rank))
        assert slot.depth == len(above)
    assert len(set(paths)) == 80

    def cost(path: tuple[int, ...]) -> float:
        return float(np.prod([rank + 1 for rank in path])) * 1.25 ** (len(path) - 1)

    every = sorted(cost(path) for depth in range(1, 6) for path in itertools.product(range(8), repeat=depth))
    costs = [cost(path) for path in paths if len(path) <= 5]
    assert costs == pytest.approx(every[: len(costs)])
    assert static_tree(10, 8) == places[:10]


def test_table_holds_the_last_successors_of_every_scored_token_and_the_tree_is_filled_from_it() -> None:
    target = ToyTarget(12, seed=5)
    drafter = TokenRecycling(successors=3, size=20)
    run = Stepper(target, drafter, [1, 2, 3])
    run.row.end_ids = frozenset()
    table: dict[int, list[int]] = {}
    for _ in range(8):
        text = list(run.row.tokens[:-1])
        tree = run.step()
        for node in range(1, tree.counts[0]):
            token, parent = int(tree.tokens[0, node]), int(tree.parents[0, node])
            assert token in table[int(tree.tokens[0, parent])]
        accepted = len(run.row.tokens) - len(text) - 2
        path = [0]
        while len(path) <= accepted:
            child = tree.child(0, path[-1], run.row.tokens[len(text) + len(path)])
            assert child is not None
            path.append(child)
        for node in (*range(int(tree.counts[0])), *path):
            seen = text + [int(tree.tokens[0, one]) for one in tree.path(0, node)]
            table[seen[-1]] = np.argsort(-target.next_logits(seen), kind="stable")[:3].tolist()
        assert drafter._memories[run.row.id].table == table
    assert run.row.generated > run.row.steps


def test_a_budget_takes_the_first_places_that_can_be_filled() -> None:
    drafter = TokenRecycling()
    run = Stepper(ToyTarget(12, seed=5), drafter, [1, 2, 1, 3, 1, 2], nodes=4)
    memory = drafter._memories[run.row.id]
    memory.table.update({2: [7, 8, 9], 7: [5]})
    tree = run.step()
    assert tree.tokens[0].tolist() == [2, 7, 5, 8]  # costs 1, 1.25, 2; 9 would cost 3
    assert tree.parents[0].tolist() == [-1, 0, 1, 0]


def test_the_prompt_can_start_the_table() -> None:
    drafter = TokenRecycling(from_text=True, successors=2)
    run = Stepper(ToyTarget(12), drafter, [1, 2, 1, 3, 1, 2, 1, 4])
    assert drafter._memories[run.row.id].table == {1: [4, 2], 2: [1], 3: [1]}


@settings(max_examples=15, deadline=None)
@given(most=st.integers(1, 60), seed=st.integers(0, 1000), from_text=st.booleans())
def test_a_ragged_batch_with_jumping_budgets_is_plain_decoding(most: int, seed: int, from_text: bool) -> None:
    target = ToyTarget(12, seed=seed)
    requests = ragged_requests()
    got, trees = run_batch(TokenRecycling(from_text=from_text), target, requests, most, seed)
    assert got == [plain_tokens(target, request) for request in requests]
    assert max(int(tree.counts.max()) for tree in trees) <= most


def test_nothing_survives_a_request_unless_the_pool_is_shared() -> None:
    target = ToyTarget(12, seed=4)
    request = Request([1, 2, 3, 4, 5], stop=StopSettings(max_new_tokens=30, ignore_eos=True))
    for drafter, same in ((TokenRecycling(), True), (TokenRecycling(shared_pool=True), False)):
        _, first = run_batch(drafter, target, [request], 24)
        _, second = run_batch(drafter, target, [request], 24)
        assert ([tree.tokens.tolist() for tree in first] == [tree.tokens.tolist() for tree in second]) is same
        assert drafter.shares_state is not same


def test_wrong_settings_are_refused_with_a_reason() -> None:
    with pytest.raises(InputError, match="successors must be at least 1"):
        TokenRecycling(successors=0)


def test_conformance() -> None:
    check_drafter(TokenRecycling, max_nodes=20)
