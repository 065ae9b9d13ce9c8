"""The relaxed rules: strict settings, exceptions, each rule by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from betoken.decode import Request
from betoken.noise import uniform
from betoken.sampling import law
from betoken.state import SamplingSettings, State, StopSettings
from betoken.testing import DrawingDrafter, ToyTarget, check_verifier, plain_tokens
from betoken.testing.running import decode
from betoken.tree import RowTree, TokenTree
from betoken.verifiers import VERIFIERS
from betoken.verifiers.asd import Asd
from betoken.verifiers.lenience import Lenience
from betoken.verifiers.relaxed import Fuzzy, Mars, TopKDelta, Typical, divergence
from scored_trees import make_row, score

STRICT = [
    Asd(budget=0),
    Asd(gate=0),
    Asd(cap=0),
    Asd(budget=0, gate=2.0, variant=2),
    Asd(cap=0, gate=2.0, variant=2),
    TopKDelta(k=1),
    Mars(theta=1.0),
    Fuzzy(threshold=0.0),
    Lenience(lenience=1.0),
]


@pytest.mark.parametrize("verifier", STRICT, ids=repr)
def test_strict_settings_are_lossless(verifier) -> None:
    assert verifier.lossless
    check_verifier(lambda: verifier, draws=400)


@pytest.mark.parametrize("name", ["asd", "typical", "topk-delta", "lenience", "mars", "fuzzy"])
def test_relaxed_settings_keep_the_contract_and_say_so(name: str) -> None:
    verifier = VERIFIERS[name]()
    assert not verifier.lossless
    assert not verifier.exact
    check_verifier(VERIFIERS[name])


# (verifier, temperature, drafter that gives it a chance to relax)
RELAXED = [
    (Asd(gate=2.0, cap=3), 0.0),
    (Asd(gate=2.0, cap=3), 0.9),
    (Typical(), 0.9),
    (TopKDelta(), 0.0),
    (TopKDelta(), 0.9),
    (Lenience(0.3), 0.0),
    (Lenience(0.3), 0.9),
    (Mars(0.2), 0.0),
    (Fuzzy(0.5), 0.0),
    (Fuzzy(0.5, divergence="tv"), 0.9),
]


@pytest.mark.parametrize(("verifier", "temperature"), RELAXED, ids=repr)
def test_relaxed_rows_report_their_exceptions_and_strict_rows_beside_them_have_none(verifier, temperature) -> None:
    target = ToyTarget(6, seed=3, sharpness=1.0)
    drafter = DrawingDrafter(depth=4, width=1)
    drafter.start(target)
    sampling, stop = SamplingSettings(temperature, seed=8), StopSettings(max_new_tokens=40, ignore_eos=True)
    requests = [Request([n // 2, 1], sampling, stop, sample=n // 2, budget=0 if n % 2 else None) for n in range(12)]
    rows = decode(target, drafter, verifier, requests, 5)
    for row, request in zip(rows[1::2], requests[1::2], strict=True):
        assert row.new_tokens == plain_tokens(target, request)
        assert row.ledger.exceptions == []
    relaxed = [row for row in rows[::2] if row.ledger.exceptions]
    assert relaxed
    for row in relaxed:
        for one in row.ledger.exceptions:
            text = row.tokens[: len(row.prompt) + one.position]
            z = target.next_logits(text).astype(np.float64)
            p = law(target.next_logits(text), SamplingSettings(temperature or 1.0))
            assert row.new_tokens[one.position] == one.chosen
            assert one.chosen != one.preferred or (isinstance(verifier, Lenience) and temperature > 0)
            difference = (
                z[one.preferred] - z[one.chosen] if temperature == 0 else math.log(p[one.preferred] / p[one.chosen])
            )
            assert one.regret == pytest.approx(max(0.0, difference), abs=1e-5)
            if temperature == 0:
                assert one.preferred == int(np.argmax(z))
        if isinstance(verifier, Asd):
            assert row.ledger.spent <= verifier.budget + 1e-6
    everything = [e.position for row in relaxed for e in row.ledger.exceptions]
    assert len(everything) > 3


@pytest.mark.parametrize(
    ("verifier", "drawn", "logits", "token", "passes"),
    [
        (TopKDelta(k=2, delta=0.2), None, np.log([0.5, 0.35, 0.15]), 1, True),
        (TopKDelta(k=2, delta=0.1), None, np.log([0.5, 0.35, 0.15]), 1, False),
        (TopKDelta(k=2, delta=0.6), None, np.log([0.5, 0.35, 0.15]), 2, False),
        (Lenience(0.5), None, np.log([0.5, 0.3, 0.2]), 1, True),
        (Lenience(0.5), None, np.log([0.5, 0.3, 0.2]), 2, False),
        (Mars(0.9), None, [10.0, 9.5, 9.4], 1, True),
        (Mars(0.9), None, [10.0, 9.5, 9.4], 2, False),
        (Mars(0.9), None, [10.0, 8.9, 1.0], 1, False),
        (Mars(0.9), None, [-1.0, -1.05, -9.0], 1, False),
        (Fuzzy(0.11, "tv"), [0.5, 0.3, 0.2], np.log([0.6, 0.2, 0.2]), 1, True),
        (Fuzzy(0.09, "tv"), [0.5, 0.3, 0.2], np.log([0.6, 0.2, 0.2]), 1, False),
        (Fuzzy(9.0), None, np.log([0.6, 0.2, 0.2]), 1, False),
        (Typical(), None, np.log([0.5, 0.3, 0.2]), 1, False),
    ],
    ids=repr,
)
def test_greedy_rules_by_hand(verifier, drawn, logits, token, passes) -> None:
    tree = RowTree.chain(1, [token])
    if drawn is not None:
        tree.laws[0] = np.array(drawn)
    stacked = TokenTree.stack([tree])
    scores = score(stacked, [[list(logits), [0.0, 0.0, 1.0]]])
    path = verifier.verify(stacked, scores, State((make_row(ends=()),))).rows[0].path
    assert path == ((0, 1) if passes else (0,))


def test_typical_acceptance_by_hand() -> None:
    """exp(-entropy) of (0.5, 0.3, 0.2) is 0.357: with delta 0.7 the bar is 0.25, or epsilon if that is lower."""
    tree = TokenTree.stack([RowTree.chain(1, [1]), RowTree.chain(1, [2])])
    z = [np.log([0.5, 0.3, 0.2]).tolist(), [0.0, 0.0, 1.0]]
    rows = tuple(make_row(b, sampling=SamplingSettings(1.0, seed=1), ends=()) for b in range(2))
    for row in rows:
        row.sample = next(n for n in range(99) if uniform(1, n, 0) < 0.5)
    for verifier, lengths in ((Typical(1.0, 0.7), [2, 1]), (Typical(0.1, 0.7), [2, 2]), (Typical(1.0, 0.9), [1, 1])):
        verdict = verifier.verify(tree, score(tree, [z, z]), State(rows))
        assert [len(one.path) for one in verdict.rows] == lengths


def test_divergences() -> None:
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.25, 0.5])
    assert divergence(p, q, "tv") == pytest.approx(0.5)
    assert divergence(p, q, "kl") == pytest.approx(math.log(2))
    assert divergence(q, p, "kl") == math.inf
    assert divergence(p, q, "js") == pytest.approx(divergence(q, p, "js"))
    assert divergence(p, p, "js") == 0.0
