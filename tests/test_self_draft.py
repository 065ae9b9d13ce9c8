"""Self-Draft: branches and n-grams on a trace worked by hand, and the promises of every drafter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from betoken.decode import Request
from betoken.drafters.self_draft import SelfDraft
from betoken.errors import InputError
from betoken.state import StopSettings
from betoken.testing import ToyTarget, check_drafter, plain_tokens
from betoken.tree import Role
from growing_toys import Ruled, Stepper, ragged_requests, run_batch, trie_of


def alternating(text: Sequence[int]) -> int:
    """+1 after an even number of tokens, +10 after an odd one."""
    return (text[-1] + (1 if len(text) % 2 == 0 else 10)) % 100


def test_branches_grow_slide_and_feed_the_pool_as_worked_by_hand() -> None:
    """Two branches of three tokens, trigrams, a prompt of the one token 50."""
    drafter = SelfDraft(branches=2, length=3, n=3)
    run = Stepper(Ruled(alternating), drafter, [50])
    memory = drafter._memories[run.row.id]
    assert memory.branches == [[], [50]]

    run.step()  # the empty branch starts with what the target says after the pending token
    assert memory.branches == [[60], [50, 51]]
    tree = run.step()
    assert trie_of(tree, Role.PROBE) == {60: {}, 50: {51: {}}}
    assert memory.branches == [[60, 70], [50, 51, 52]]
    assert memory.pool.get(50) == [(51, 52)]
    run.step()
    assert memory.branches == [[60, 70, 80], [51, 52, 53]]  # the full branch lost its first token
    assert memory.pool.get(51) == [(52, 53)]
    assert memory.pool.get(60) == [(70, 80)]
    assert memory.pool.get(70) == []
    assert drafter.growing(run.row) == [{60: {70: {80: {}}}}, {51: {52: {53: {}}}}]


def test_branches_see_the_committed_text_and_themselves_alone() -> None:
    run = Stepper(ToyTarget(30, seed=1), SelfDraft(), list(range(1, 30)))
    for _ in range(5):
        tree = run.step()
    probes = [node for node in range(1, tree.counts[0]) if tree.roles[0, node] == Role.PROBE]
    tops = {int(tree.path(0, node)[1]) for node in probes}
    assert len(tops) >= 5
    assert all(tree.parents[0, top] == 0 for top in tops)


def test_a_branch_that_reaches_an_end_token_starts_anew() -> None:
    drafter = SelfDraft(branches=3)
    run = Stepper(Ruled(lambda text: 0 if text[-1] in (7, 9) else 5), drafter, [7, 9])
    run.step()  # both branches from the prompt, 7 or 7 9 or 9, are followed by the end token
    branches = drafter._memories[run.row.id].branches
    assert all(branch in ([7], [9], [7, 9], []) for branch in branches)
    assert not any(0 in branch for branch in branches)


def test_candidates_come_from_an_n_gram_file(tmp_path: Path) -> None:
    file = tmp_path / "grams.txt"
    file.write_text("50 60 61\n50 60 62 63\n")
    drafter = SelfDraft(ngram_file=str(file))
    assert drafter.shares_state
    run = Stepper(Ruled(alternating), drafter, [50])
    tree = run.step()
    assert trie_of(tree, Role.CANDIDATE) == {60: {61: {}, 62: {63: {}}}}
    assert run.row.new_tokens == [60, 61, 71]
    file.write_text("50\n")
    with pytest.raises(InputError, match="single token"):
        SelfDraft(ngram_file=str(file))
    with pytest.raises(InputError, match="cannot read"):
        SelfDraft(ngram_file=str(tmp_path / "missing"))


@settings(max_examples=15, deadline=None)
@given(most=st.integers(1, 50), seed=st.integers(0, 1000), n=st.integers(2, 5))
def test_a_ragged_batch_with_jumping_budgets_is_plain_decoding(most: int, seed: int, n: int) -> None:
    target = ToyTarget(12, seed=seed)
    requests = ragged_requests()
    got, trees = run_batch(SelfDraft(n=n), target, requests, most, seed)
    assert got == [plain_tokens(target, request) for request in requests]
    assert max(int(tree.counts.max()) for tree in trees) <= most


def test_a_small_budget_still_fills_the_pool() -> None:
    """Five nodes hold one branch of four tokens, whose oldest tokens make room."""
    drafter = SelfDraft()
    run = Stepper(Ruled(alternating), drafter, [50, 51, 52], nodes=5)
    for _ in range(12):
        run.step()
    assert any(drafter._memories[run.row.id].pool.get(key) for key in range(100))


def test_nothing_survives_a_request_unless_the_pool_is_shared() -> None:
    target = ToyTarget(12, seed=4)
    request = Request([1, 2, 3, 4, 5], stop=StopSettings(max_new_tokens=30, ignore_eos=True))
    for drafter, same in ((SelfDraft(), True), (SelfDraft(shared_pool=True), False)):
        _, first = run_batch(drafter, target, [request], 40)
        _, second = run_batch(drafter, target, [request], 40)
        assert ([tree.tokens.tolist() for tree in first] == [tree.tokens.tolist() for tree in second]) is same
        assert drafter.shares_state is not same


def test_wrong_settings_are_refused_with_a_reason() -> None:
    with pytest.raises(InputError, match="no n-gram fits"):
        SelfDraft(n=8)
    with pytest.raises(InputError, match="branches must be at least 1"):
        SelfDraft(branches=0)


def test_conformance() -> None:
    check_drafter(SelfDraft, max_nodes=20)
