"""ASD against a slow reference written from its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from betoken.decode import Decoder, Request
from betoken.errors import InputError
from betoken.noise import uniform
from betoken.registry import create
from betoken.state import Ledger, Relaxation, SamplingSettings, State, StopSettings
from betoken.testing import DrawingDrafter, RandomTreeDrafter, ToyTarget
from betoken.testing.running import decode
from betoken.tree import Role, RowTree, TokenTree
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers import VERIFIERS
from betoken.verifiers.asd import Asd, accepted
from betoken.verifiers.relaxed import Mars, TopKDelta
from scored_trees import EOS, make_row, score


def slow_chain(logits, draft, left, budget, gate, cap, variant, ends):
    """Section 2 of methods, one position after the other: (accepted, [(position, regret)])."""
    total, count, exceptions = 0.0, 0, []
    for i, token in enumerate(draft):
        z = [float(np.float32(value)) for value in logits[i]]
        best = z.index(max(z))
        if i > 0 and draft[i - 1] in ends:
            return i, exceptions
        if token == best:
            continue
        if budget == 0 or cap == 0 or (variant == 1 and gate == 0) or token in ends or best in ends:
            return i, exceptions
        regret = max(0.0, max(z) - z[token])
        weight = len(draft) - i if variant == 1 else (len(draft) - i) / len(draft)
        headroom = variant == 1 or total < left
        slack = 1e-9 if variant == 1 else 0.0
        if regret / weight > gate or not headroom or total + regret > left + slack or count + 1 > cap:
            return i, exceptions
        total, count = total + regret, count + 1
        exceptions.append((i, regret))
    return len(draft), exceptions


def random_case(rng):
    """A block whose numbers meet the limits exactly, now and then: everything is a multiple of a quarter."""
    size, depth = int(rng.integers(2, 6)), int(rng.integers(0, 7))
    logits = rng.integers(0, 6, size=(depth + 1, size)) / 4
    draft = [int(np.argmax(logits[i])) if rng.random() < 0.5 else int(rng.integers(size)) for i in range(depth)]
    return logits, draft


def random_settings(rng):
    return Asd(
        budget=float(rng.choice([0, 0.25, 0.5, 1, 2, 8])),
        gate=float(rng.choice([0, 0.125, 0.25, 0.5, 2])),
        cap=int(rng.integers(0, 4)),
        variant=int(rng.integers(1, 3)),
    )


def test_ten_thousand_blocks_against_the_slow_reference() -> None:
    """1250 batches of 8 rows, both variants, mixed ledgers, end tokens and requests that ask for no relaxation."""
    rng = np.random.default_rng(1)
    relaxed = 0
    for _ in range(1250):
        asd = random_settings(rng)
        trees, logits, rows = [], [], []
        for b in range(8):
            z, draft = random_case(rng)
            budget = None if rng.random() < 0.7 else asd.budget * float(rng.choice([0, 0.5, 1]))
            spent = float(rng.choice([0, 0.25, 0.5]))
            trees.append(RowTree.chain(1, draft))
            logits.append(z.tolist())
            rows.append(make_row(b, spent=spent, budget=budget, ends=(EOS,) if rng.random() < 0.7 else ()))
        width = max(z.shape[-1] for z in map(np.array, logits))
        padded = [[[*node, *([-50.0] * (width - len(node)))] for node in one] for one in logits]
        tree = TokenTree.stack(trees)
        verdict = asd.verify(tree, score(tree, padded), State(tuple(rows)))
        for b, row in enumerate(rows):
            budget = asd.budget if row.ledger.budget is None else row.ledger.budget
            draft = trees[b].tokens[1:]
            left = max(0.0, budget - row.ledger.spent)
            kept, exceptions = slow_chain(padded[b], draft, left, budget, asd.gate, asd.cap, asd.variant, row.end_ids)
            found = verdict.rows[b]
            if any(token in row.end_ids for token in draft[:kept]):
                # What follows an accepted end token is never committed.
                ended = next(i for i, token in enumerate(draft) if token in row.end_ids) + 1
                assert found.path[: ended + 1] == tuple(range(ended + 1))
                continue
            assert found.path == tuple(range(kept + 1))
            assert found.bonus == int(np.argmax(np.float32(padded[b][kept])))
            assert [(e.position, e.regret) for e in found.exceptions] == exceptions
            relaxed += len(exceptions)
    assert relaxed > 500


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_trees_take_the_best_feasible_leaf_path(seed: int) -> None:
    rng = np.random.default_rng(seed)
    asd = random_settings(rng)
    tree = RowTree.under(1)
    for _ in range(int(rng.integers(0, 10))):
        parent, token = int(rng.integers(len(tree))), int(rng.integers(4))
        role = Role.PROBE if rng.random() < 0.2 else Role.CANDIDATE
        if tree.roles[parent] != Role.PROBE and tree.child(parent, token) is None:
            tree.add(token, parent, role)
    logits = rng.integers(0, 5, size=(len(tree), 4)) / 4
    stacked, row = TokenTree.stack([tree]), make_row(spent=0.25, ends=(9,))
    best = []
    for leaf in range(len(tree)):
        if stacked.children(0, leaf) or tree.roles[leaf] == Role.PROBE:
            continue
        path = stacked.path(0, leaf)
        along, draft = logits[path], [tree.tokens[node] for node in path[1:]]
        left = max(0.0, asd.budget - 0.25)
        kept, spent = slow_chain(along, draft, left, asd.budget, asd.gate, asd.cap, asd.variant, (9,))
        best.append((-kept, sum(r for _, r in spent), tuple(path[: kept + 1])))
    found = asd.verify(stacked, score(stacked, [logits]), State((row,))).rows[0]
    longest, regret, _ = min(best)
    assert len(found.path) - 1 == -longest
    assert sum(e.regret for e in found.exceptions) == pytest.approx(regret)
    assert found.path in {path for n, r, path in best if (n, r) == (longest, regret)}


def test_the_tolerance_is_variant_1_s_alone() -> None:
    def kept(left, variant):
        one = np.array([[0.5]]), np.array([[True]]), np.array([1]), np.array([left])
        return accepted(*one, 1.0, 1, variant)[0].tolist()

    assert kept(0.5 - 5e-10, 1) == [1]
    assert kept(0.5 - 5e-10, 2) == [0]
    assert kept(0.5 - 2e-9, 1) == [0]
    assert kept(0.5, 2) == [1]


def test_exact_ties_pass_in_variant_2_at_gate_0_only() -> None:
    tree = TokenTree.stack([RowTree.chain(1, [2])])
    scores, state = score(tree, [[[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]]), State((make_row(),))
    assert Asd(gate=0.0, variant=1).verify(tree, scores, state).rows[0].path == (0,)
    assert Asd(gate=0.0, variant=2).verify(tree, scores, state).rows[0].path == (0, 1)
    assert not Asd(gate=0.0, variant=2).lossless


def test_end_tokens_are_neither_forgiven_nor_skipped() -> None:
    asd, state = Asd(budget=99, gate=99, cap=9), State((make_row(),))
    tree = TokenTree.stack([RowTree.chain(1, [EOS])])
    assert asd.verify(tree, score(tree, [[[0.9, 1.0], [1.0, 0.0]]]), state).rows[0].path == (0,)
    tree = TokenTree.stack([RowTree.chain(1, [1])])
    assert asd.verify(tree, score(tree, [[[1.0, 0.9], [1.0, 0.0]]]), state).rows[0].bonus == EOS
    tree = TokenTree.stack([RowTree.chain(1, [EOS, 1])])
    assert len(asd.verify(tree, score(tree, [[[1.0, 0.9], [0.9, 1.0], [0, 1.0]]]), state).rows[0].path) == 2


def test_asd_sampling_prefers_what_replay_picks() -> None:
    sampling = SamplingSettings(1.0, seed=5)
    tree = TokenTree.stack([RowTree.chain(1, [1])])
    z = np.log(np.array([[0.4, 0.6], [0.5, 0.5]]))
    row = make_row(sampling=sampling, ends=())
    row.sample = next(n for n in range(99) if uniform(5, n, 0) < 0.4)
    (one,) = Asd(gate=1).verify(tree, score(tree, [z.tolist()]), State((row,))).rows[0].exceptions
    assert (one.position, one.chosen, one.preferred, one.regret) == (0, 1, 0, 0.0)


def test_only_committed_exceptions_are_charged() -> None:
    row = make_row(ends=(7,))
    row.commit([3, 7, 4], [Relaxation(0, 3, 2, 0.5), Relaxation(2, 4, 2, 1.0)])
    assert row.ledger.spent == 0.5
    row.commit([5])
    row.finish_reason = None
    row.commit([5, 6], [Relaxation(2, 5, 2, 0.25)])
    row.end(2)
    assert row.ledger.spent == 0.5


def test_the_ledger_is_the_request_s_and_lasts_over_its_steps() -> None:
    target, drafter = ToyTarget(6, seed=3, sharpness=1.0), RandomTreeDrafter(1)
    drafter.start(target)
    decoder = Decoder(target, drafter, Asd(budget=1.5, gate=2.0, cap=2), FixedNodes(9))
    rows = [decoder.admit(Request([n, 2], stop=StopSettings(60, ignore_eos=True))) for n in range(4)]
    while any(row.finish_reason is None for row in rows):
        before = {row.id: row.ledger.spent for row in rows}
        for advance in decoder.step():
            new = sum(e.regret for e in advance.verdict.exceptions)
            assert advance.row.ledger.spent <= before[advance.row.id] + new + 1e-9
            assert len(advance.verdict.exceptions) <= 2
    assert all(0 < row.ledger.spent <= 1.5 + 1e-9 for row in rows)


def test_budgets_and_settings_are_checked() -> None:
    with pytest.raises(InputError, match="above the verifier's budget"):
        Asd(budget=1).check(State((make_row(budget=2.0),)))
    with pytest.raises(InputError, match="has no budget"):
        Mars().check(State((make_row(budget=2.0),)))
    with pytest.raises(InputError, match="budget must be at least 0"):
        Ledger(-1.0)
    for bad in (lambda: Asd(budget=-1), lambda: Asd(gate=math.inf), lambda: Mars(theta=2), lambda: TopKDelta(k=0)):
        with pytest.raises(InputError):
            bad()
    assert create("verifier", VERIFIERS, "asd", {"variant": "2", "budget": "2.0625"}) == Asd(2.0625, variant=2)
    with pytest.raises(InputError, match=r"must be 1 \| 2"):
        create("verifier", VERIFIERS, "asd", {"variant": "3"})


def test_relaxing_pays() -> None:
    """Fewer forwards than strict decoding of the same code."""
    target, drafter = ToyTarget(8, seed=1, sharpness=0.5), DrawingDrafter(depth=4)
    drafter.start(target)
    requests = [Request([n], stop=StopSettings(50, ignore_eos=True)) for n in range(4)]
    steps = [
        sum(row.steps for row in decode(target, drafter, Asd(budget, gate=1.0), requests, 5)) for budget in (0.0, 8.0)
    ]
    assert steps[1] < steps[0]
