"""rejection, block and traversal keep the law of plain sampling: proofs by enumeration (exact_world), wrong rules."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from betoken.decode import Request
from betoken.noise import Stream, uniforms
from betoken.state import SamplingSettings, StopSettings
from betoken.testing import DrawingDrafter, ToyTarget, check_verifier, plain_tokens
from betoken.testing.running import decode
from betoken.verifiers import VERIFIERS, block, rejection, traversal
from betoken.verifiers.drawn import Draft, odds, residual
from exact_world import CHAINS, RULES, TREES, V, World, rational

CASES = [(rule, shape) for rule in RULES for shape in CHAINS] + [
    (rule, shape) for rule in ("rejection", "traversal") for shape in TREES
]


@pytest.mark.parametrize(("rule", "shape"), CASES)
def test_two_steps_have_the_law_of_plain_sampling(rule: str, shape: str) -> None:
    assert World(RULES[rule], {**CHAINS, **TREES}[shape]).is_exact()


@pytest.mark.parametrize(("rule", "shape"), CASES)
def test_one_step_has_the_law_of_plain_sampling_under_other_laws(rule: str, shape: str) -> None:
    assert all(World(RULES[rule], {**CHAINS, **TREES}[shape], seed=seed).is_exact(steps=1) for seed in (1, 2, 3))


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_law_equal_to_the_target_s(rule: str) -> None:
    """Everything is accepted, and the case 0/0 is met."""
    world = World(RULES[rule], CHAINS["depth2"], agree=True)
    assert world.is_exact()
    assert {len(text) for text, _ in world.step((0,), ())} == {4}


def test_block_ignores_siblings_and_stays_exact() -> None:
    assert World(block.longest, TREES["below"]).is_exact(steps=1)


def test_block_accepts_more_than_rejection_and_traversal_most() -> None:
    def mean(rule, shape, seed):
        return sum(chance * len(text) for (text, _), chance in World(rule, shape, seed=seed).step((0,), ()).items())

    for seed in range(3):
        chain, tree = CHAINS["depth3"], TREES["below"]
        assert mean(block.longest, chain, seed) >= mean(rejection.walk, chain, seed)
        assert mean(block.longest, chain, seed) == mean(traversal.climb, chain, seed)
        assert mean(traversal.climb, tree, seed) >= mean(rejection.walk, tree, seed)


# ---- wrong rules are detected -------------------------------------------------------------------------------------


def detected(rule, shape, make=Draft) -> bool:
    return not all(World(rule, shape, seed=seed, make=make).is_exact(steps=1) for seed in range(8))


def ends_with_argmax(rule):
    def wrong(draft, accept):
        path, law = rule(draft, accept)
        sure = np.array([Fraction(0)] * V, dtype=object)
        sure[int(np.argmax(law))] = Fraction(1)
        return path, sure

    return wrong


class WithReplacement(Draft):
    """Forgets that siblings are drawn without replacement: the law is not renormalised."""

    def siblings(self, node, target):
        for child, law in super().siblings(node, target):
            yield child, self.laws.get(node, law)


def wrong_traversal(draft, accept, node=0, reach=1):
    """A public version: p <- min(Z / sum M_s', 1) with M_s' what is left of the draft law."""
    law = draft.target(node)
    for child, drawn in draft.siblings(node, law):
        token = draft.tokens[child]
        found = wrong_traversal(draft, accept, child, min(reach * law[token] / drawn[token], 1))
        if found is not None:
            return [node, *found[0]], found[1]
        law, mass = residual(law, drawn, reach)
        left = 1 - drawn[token]
        reach = min(mass / left, 1) if left > 0 else 1
    return ([node], law) if node == 0 or accept(node, reach) else None


@pytest.mark.parametrize("rule", RULES)
def test_argmax_at_the_end_is_detected(rule: str) -> None:
    assert detected(ends_with_argmax(RULES[rule]), CHAINS["depth2"])


@pytest.mark.parametrize("rule", ["rejection", "traversal"])
def test_siblings_without_renormalisation_are_detected(rule: str) -> None:
    assert detected(RULES[rule], TREES["siblings"], WithReplacement)


def test_the_public_traversal_is_right_at_depth_1_and_wrong_from_2_on() -> None:
    assert not detected(wrong_traversal, CHAINS["depth1"])
    assert detected(wrong_traversal, CHAINS["depth2"])
    assert detected(wrong_traversal, TREES["below"])


@pytest.mark.parametrize("module", [rejection, block, traversal])
def test_a_final_draw_from_the_whole_law_is_detected(module, monkeypatch) -> None:
    monkeypatch.setattr(module, "residual", lambda law, drawn, scale=1: (law, residual(law, drawn, scale)[1]))
    assert detected(RULES[module.__name__.rsplit(".", 1)[-1]], CHAINS["depth1"])


@pytest.mark.parametrize("module", [block, traversal])
def test_a_residual_that_forgets_p_is_detected(module, monkeypatch) -> None:
    monkeypatch.setattr(module, "residual", lambda law, drawn, scale=1: residual(law, drawn))
    assert detected(RULES[module.__name__.rsplit(".", 1)[-1]], CHAINS["depth2"])


@pytest.mark.parametrize("module", [block, traversal])
def test_stopping_with_p_instead_of_the_odds_is_detected(module, monkeypatch) -> None:
    monkeypatch.setattr(module, "odds", lambda mass, reach: reach)
    assert detected(RULES[module.__name__.rsplit(".", 1)[-1]], CHAINS["depth2"])


# ---- the same code in float64, through the decoder ----------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_floats_follow_the_rationals(rule: str) -> None:
    for seed in range(40):
        dice = random.Random(seed)
        laws = {node: rational(seed, "q", node) + Fraction(1, 100) for node in range(4)}
        laws = {node: law / law.sum() for node, law in laws.items()}
        targets = [rational(seed, "p", node) for node in range(6)]
        children = {0: [1, 2], 1: [3], 3: [4], 2: [5]}
        tokens = [0, *dice.sample(range(V), 2), *(dice.randrange(V) for _ in range(3))]
        u = [dice.random() for _ in tokens]
        results = []
        for kind in (object, np.float64):
            draft = Draft(tokens, children, {n: q.astype(kind) for n, q in laws.items()}, _typed(targets, kind))
            results.append(RULES[rule](draft, lambda node, chance, u=u: u[node] < chance))
        assert results[0][0] == results[1][0]
        np.testing.assert_allclose(results[1][1], results[0][1].astype(np.float64), atol=1e-12)


def _typed(laws, kind):
    return lambda node: laws[node].astype(kind)


def test_zero_over_zero_is_one() -> None:
    assert odds(Fraction(0), Fraction(1)) == 1
    assert odds(0.0, 0.5) == 0


@pytest.mark.parametrize("name", list(RULES))
def test_decoding_samples_the_target_s_law(name: str) -> None:
    """Answers of three tokens through the decoder, with drawn and deterministic drafts, probes and greedy rows."""
    check_verifier(VERIFIERS[name], draws=500)


@pytest.mark.parametrize("name", list(RULES))
def test_greedy_rows_stay_greedy_among_sampling_rows(name: str) -> None:
    target, stop = ToyTarget(5, seed=2), StopSettings(max_new_tokens=12, ignore_eos=True)
    drafter = DrawingDrafter(depth=3, width=2)
    drafter.start(target)
    requests = [Request([n, 1], SamplingSettings(temperature=t, seed=4), stop) for n, t in enumerate((0.0, 1.0, 0.0))]
    rows = decode(target, drafter, VERIFIERS[name](), requests, 9)
    for n in (0, 2):
        assert rows[n].new_tokens == plain_tokens(target, requests[n])
    assert sum(row.steps for row in rows) < 3 * 12


def test_each_step_has_numbers_of_its_own() -> None:
    first = uniforms(1, 0, 5, 8, stream=Stream.ACCEPT, step=0)
    for other in (
        uniforms(1, 0, 5, 8, stream=Stream.ACCEPT, step=1),
        uniforms(1, 0, 5, 8, stream=Stream.DRAFT, step=0),
        uniforms(1, 0, 5, 8, stream=Stream.RESIDUAL, step=0),
        uniforms(1, 0, 5, 8),
    ):
        assert not np.any(first == other)
