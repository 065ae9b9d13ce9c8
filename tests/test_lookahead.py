"""Lookahead: the window and the pool on a trace worked by hand, and the promises of every drafter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from betoken.decode import Request
from betoken.drafters.lookahead import Lookahead
from betoken.drafters.pool import NgramPool
from betoken.errors import InputError
from betoken.state import StopSettings
from betoken.testing import ToyTarget, check_drafter, plain_tokens
from betoken.tree import Role
from growing_toys import Ruled, Stepper, ragged_requests, run_batch, trie_of


def alternating(text: Sequence[int]) -> int:
    """+1 after an even number of tokens, +10 after an odd one."""
    return (text[-1] + (1 if len(text) % 2 == 0 else 10)) % 100


def test_window_fills_slides_and_feeds_the_pool_as_worked_by_hand() -> None:
    """Trigrams, two columns, a prompt of the one token 50 (so every first guess is 50)."""
    drafter = Lookahead(n=3, window=2, grams=2)
    run = Stepper(Ruled(alternating), drafter, [50])
    memory = drafter._memories[run.row.id]
    assert memory.window == [[50, 50, 50]]  # one row, one column more than the window: it moves up while it fills

    tree = run.step()  # 1, 2, 3 tokens seen: 60, 51, 60
    assert tree.parents[0].tolist() == [-1, 0, 1]
    assert memory.window == [[50, 50], [51, 60]]
    assert memory.pool.get(50) == []

    tree = run.step()  # pending 60 with 2 tokens seen; column 0 is 60 51, column 1 is 50 60
    assert trie_of(tree, Role.SEED) == {50: {}}
    assert trie_of(tree, Role.PROBE) == {50: {60: {}}, 51: {}}
    assert memory.pool.get(60) == [(51, 61)]
    assert memory.pool.get(50) == [(60, 61)]
    assert memory.window == [[51, 60], [61, 61]]

    run.step()  # pending 61 with 3 tokens seen; the new row is 62 (4 seen) and 71 (5 seen)
    assert memory.pool.get(61) == [(61, 62)]
    assert memory.pool.get(60) == [(51, 61), (61, 71)]
    assert memory.window == [[61, 61], [62, 71]]
    assert drafter.growing(run.row) == [{61: {62: {}}}, {61: {71: {}}}]


def test_candidates_are_the_n_grams_of_the_pending_token() -> None:
    """A rule that repeats 1 2 3: once the window has passed through it, whole n-grams are accepted."""
    run = Stepper(Ruled(lambda text: text[-1] % 3 + 1), Lookahead(n=4, window=3), [1, 2, 3])
    for _ in range(4):
        run.step()
    pending = run.row.pending
    tree = run.step()
    a, b, c = (pending % 3 + 1, (pending + 1) % 3 + 1, pending)
    assert trie_of(tree, Role.CANDIDATE) == {a: {b: {c: {}}}}
    assert run.row.new_tokens[-4:] == [a, b, c, a]


def test_the_least_recently_used_n_gram_goes() -> None:
    pool = NgramPool(2)
    for gram in ([7, 1, 2], [7, 3, 4], [7, 1, 2], [7, 1, 5], [8, 1, 1]):
        pool.add(gram)
    assert pool.get(7) == [(1, 2), (1, 5)]
    assert pool.trie(7) == {1: {2: {}, 5: {}}}
    assert pool.get(9) == []


def test_pool_reads_each_n_gram_of_a_text_once_and_none_with_an_end_token() -> None:
    pool = NgramPool(9)
    pool.read([1, 2, 3, 0, 1, 2], 0, 2, frozenset([0]))
    pool.read([1, 2, 3, 0, 1, 2, 4], 6, 2, frozenset([0]))
    assert [pool.get(key) for key in range(5)] == [[], [(2,)], [(3,), (4,)], [], []]


def test_end_tokens_neither_stay_in_the_window_nor_enter_the_pool() -> None:
    drafter = Lookahead()
    run = Stepper(Ruled(lambda text: 0 if text[-1] % 3 == 0 else text[-1] % 20 + 1), drafter, [4, 8, 7, 5])
    for _ in range(3):
        if run.row.finish_reason is None:
            run.step()
    run.row.end_ids = frozenset()  # the answer goes on, what grew is checked
    assert 0 not in {token for line in drafter._memories[run.row.id].window for token in line}
    assert not any(0 in gram for key in range(21) for gram in drafter._memories[run.row.id].pool.get(key))


def test_a_small_budget_cuts_columns_and_a_larger_one_brings_them_back() -> None:
    drafter = Lookahead(n=3, window=4)
    run = Stepper(Ruled(alternating), drafter, [50, 51, 52, 53], nodes=40)
    window = drafter._memories[run.row.id]
    for _ in range(3):
        run.step()
    assert [len(line) for line in window.window] == [4, 4]
    run.policy.nodes = 4
    assert run.step().counts[0] == 4
    assert [len(line) for line in window.window] == [2, 2]
    run.policy.nodes = 1
    run.step()
    assert [len(line) for line in window.window] == [2, 2]
    run.policy.nodes = 40
    run.step()
    assert [len(line) for line in window.window] == [4, 4]


@pytest.mark.parametrize("preset", ["auto", "7b"])
@settings(max_examples=12, deadline=None)
@given(most=st.integers(1, 40), seed=st.integers(0, 1000), from_text=st.booleans())
def test_a_ragged_batch_with_jumping_budgets_is_plain_decoding(
    preset: str, most: int, seed: int, from_text: bool
) -> None:
    target = ToyTarget(12, seed=seed)
    requests = ragged_requests()
    drafter = Lookahead(preset=preset, from_text=from_text)  # type: ignore[arg-type]
    got, trees = run_batch(drafter, target, requests, most, seed)
    assert got == [plain_tokens(target, request) for request in requests]
    assert max(int(tree.counts.max()) for tree in trees) <= most


def test_nothing_survives_a_request_unless_the_pool_is_shared() -> None:
    target = ToyTarget(12, seed=4)
    request = Request([1, 2, 3, 4, 5], stop=StopSettings(max_new_tokens=30, ignore_eos=True))
    for drafter, same in ((Lookahead(), True), (Lookahead(shared_pool=True), False)):
        _, first = run_batch(drafter, target, [request], 24)
        _, second = run_batch(drafter, target, [request], 24)
        assert ([tree.tokens.tolist() for tree in first] == [tree.tokens.tolist() for tree in second]) is same
        assert drafter.shares_state is not same


def test_presets_are_the_published_sizes_and_wrong_settings_are_refused() -> None:
    for preset, most in (("7b", (7 + 7) * 4), ("1b", (20 + 20) * 6)):
        own = Lookahead(preset=preset)._own  # type: ignore[arg-type]
        assert (own.window + own.grams) * (own.n - 1) == most
    with pytest.raises(InputError, match="n must be at least 2"):
        Lookahead(n=1)


@pytest.mark.parametrize("make", [Lookahead, lambda: Lookahead(n=2, from_text=True)])
def test_conformance(make: type[Lookahead]) -> None:
    check_drafter(make, max_nodes=14)
