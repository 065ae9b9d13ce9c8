"""rejection, block and traversal keep the law of plain sampling: exact enumeration with rational numbers.

Vocabulary of 3 words. Every draw of the drafter, every acceptance and every final draw is enumerated with its exact
probability, over two consecutive steps whose second draft depends on everything that happened in the first. If e runs
over the texts that may come out, with probability w(e), and P is plain sampling, then continuing each e plainly gives
plain sampling's law exactly when, for every endless text f, the sum of w(e) / P(e) over its beginnings e is 1.
"""

from __future__ import annotations

import random
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest

from betoken.decode import Request
from betoken.noise import Stream, uniforms
from betoken.state import SamplingSettings, StopSettings
from betoken.testing import DrawingDrafter, ToyTarget, check_verifier, plain_tokens
from betoken.testing.running import decode
from betoken.tree import Role, RowTree, TokenTree
from betoken.verifiers import VERIFIERS, block, rejection, traversal
from betoken.verifiers.drawn import Draft, odds, residual

V = 3
RULES = {"rejection": rejection.walk, "block": block.longest, "traversal": traversal.climb}

# Nodes in order: (parent, how). "drawn": from the parent's law without replacement; "fixed": a function of the text;
# "unless0": drawn, but only if the parent's token is not 0 (draft length depends on the draft); "probe".
CHAINS = {
    "depth1": [(0, "drawn")],
    "depth2": [(0, "drawn"), (1, "drawn")],
    "depth3": [(0, "drawn"), (1, "drawn"), (2, "drawn")],
    "fixed3": [(0, "fixed"), (1, "fixed"), (2, "fixed")],
    "mixed3": [(0, "drawn"), (1, "fixed"), (2, "drawn")],
    "adaptive": [(0, "drawn"), (1, "unless0"), (2, "drawn")],
    "probed": [(0, "probe"), (0, "drawn"), (2, "probe"), (2, "fixed"), (2, "probe")],
    "empty": [],
}
TREES = {
    "siblings": [(0, "drawn"), (0, "drawn")],
    "all": [(0, "drawn"), (0, "drawn"), (0, "drawn")],
    "fixed": [(0, "fixed"), (0, "fixed"), (1, "fixed"), (2, "fixed")],
    "below": [(0, "drawn"), (0, "drawn"), (1, "drawn"), (1, "drawn")],
    "both": [(0, "drawn"), (0, "drawn"), (1, "fixed"), (2, "drawn")],
    "three": [(0, "fixed"), (0, "fixed"), (1, "drawn"), (1, "drawn"), (3, "fixed")],
    "probes": [(0, "probe"), (0, "drawn"), (0, "drawn"), (2, "probe"), (2, "drawn"), (3, "probe"), (4, "fixed")],
}


def rational(*key) -> np.ndarray:
    """A law with small denominators that depends on the key; a third of them have a zero."""
    dice = random.Random(repr(key))
    weights = [dice.randint(1, 6) for _ in range(V)]
    if dice.random() < 1 / 3:
        weights[dice.randrange(V)] = 0
    return np.array([Fraction(w, sum(weights)) for w in weights], dtype=object)


class Choices:
    """One run through all random choices: as scripted at first, then the first possible one each time."""

    def __init__(self, script):
        self.script, self.chance, self.at, self.others = list(script), Fraction(1), 0, []

    def __call__(self, weights) -> int:
        possible = [i for i, w in enumerate(weights) if w > 0]
        if self.at == len(self.script):
            self.others += [[*self.script, other] for other in possible[1:]]
            self.script.append(possible[0])
        index = self.script[self.at]
        self.at += 1
        self.chance *= weights[index]
        return index


def enumerate_runs(run):
    """Every outcome of `run(choose)` with its probability; choose(weights) returns an index."""
    law = defaultdict(Fraction)
    scripts = [[]]
    while scripts:
        choose = Choices(scripts.pop())
        law[run(choose)] += choose.chance
        scripts += choose.others
    assert sum(law.values()) == 1
    return law


class World:
    """A target, a drafter and a rule, all exact. `text` starts with nothing committed but a pending word."""

    def __init__(self, rule, shape, *, seed=0, make=Draft, agree=False):
        self.rule, self.shape, self.seed, self.make, self.agree = rule, shape, seed, make, agree

    def target(self, text):
        return rational("target", self.seed, text)

    def draft_law(self, text, memory):
        if self.agree:
            return self.target(text)
        law = rational("draft", self.seed, text, memory)
        # Siblings need a law with support enough for all of them.
        return law if min(law) > 0 else (law + np.array([Fraction(1, V)] * V)) / 2

    def grow(self, text, memory, choose):
        tree = RowTree.under(text[-1])
        index, texts, drawn = {0: 0}, {0: text}, defaultdict(list)
        for at, (parent, how) in enumerate(self.shape, start=1):
            if parent not in index or (how == "unless0" and texts[parent][-1] == 0):
                continue
            node, above = index[parent], texts[parent]
            law = self.draft_law(above, memory)
            if how == "probe":
                tree.add(int(np.argmax(self.target(above))), node, Role.PROBE)
                continue
            if how == "fixed":
                token = (random.Random(repr((above, memory))).randrange(V) + len(drawn[node])) % V
            else:
                left = law.copy()
                left[drawn[node]] = 0
                if left.sum() == 0:
                    continue
                token = choose(list(left / left.sum()))
                tree.laws[node] = law
            drawn[node].append(token)
            index[at], texts[at] = tree.add(token, node), (*above, token)
        return TokenTree.stack([tree])

    def step(self, text, memory):
        """Law of (text after the step, what the drafter remembers)."""

        def run(choose):
            tree = self.grow(text, memory, choose)
            at = [text[:-1] + tuple(int(tree.tokens[0, n]) for n in tree.path(0, node)) for node in range(tree.width)]
            children = {node: tree.children(0, node) for node in range(tree.width)}
            draft = self.make(tree.tokens[0].tolist(), children, tree.laws[0], lambda node: self.target(at[node]))
            path, law = self.rule(draft, lambda node, chance: choose([1 - chance, chance]) == 1)
            bonus = choose(list(law))
            return (*at[path[-1]], bonus), (tuple(tree.tokens[0].tolist()[:3]), len(path))

        return enumerate_runs(run)

    def is_exact(self, steps=2):
        texts = {((0,), ()): Fraction(1)}
        for _ in range(steps):
            after = defaultdict(Fraction)
            for (text, memory), chance in texts.items():
                for outcome, more in self.step(text, memory).items():
                    after[outcome] += chance * more
            texts = after
        weights = defaultdict(Fraction)
        for (text, _), chance in texts.items():
            weights[text] += chance
        return self.balanced(weights)

    def balanced(self, weights):
        """Whether w(e) / P(e) sums to 1 along every possible continuation, and nothing impossible comes out."""
        begun = {text[:n] for text in weights for n in range(1, len(text))}
        todo = [((0,), Fraction(1), Fraction(0))]
        while todo:
            text, plain, total = todo.pop()
            if plain == 0:
                if text in weights or text in begun:
                    return False
                continue
            total += weights.get(text, 0) / plain
            if text in begun:
                todo += [((*text, t), plain * chance, total) for t, chance in enumerate(self.target(text))]
            elif total != 1:
                return False
        return True


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
