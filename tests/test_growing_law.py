"""Drafters that grow their own drafts keep the law of plain sampling, probes in the tree or not: exact enumeration.

The real drafter proposes and learns; every acceptance and every final draw is enumerated with its exact probability
over two steps whose trees depend on what came before.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from betoken.decode import Request
from betoken.drafters.growth import Growing
from betoken.drafters.lookahead import Lookahead
from betoken.drafters.ptd import PTD
from betoken.drafters.self_draft import SelfDraft
from betoken.drafters.token_recycling import TokenRecycling
from betoken.models.target import Scores
from betoken.state import Row, SamplingSettings, State, StopSettings
from betoken.testing import ToyTarget
from betoken.tree import Role
from betoken.verifiers.drawn import Draft
from betoken.verifiers.verifier import RowVerdict, Verdict
from exact_world import RULES, V, World, enumerate_runs, rational
from growing_toys import run_batch
from test_lossless import ends_with_argmax

MAKE: dict[str, Callable[[], Growing]] = {
    "ptd": lambda: PTD(candidates=3, shared_pool=True),
    "ptd-paper": lambda: PTD(preset="paper", seeds=2, depth=3, shared_pool=True),
    "lookahead": lambda: Lookahead(n=3, window=2, grams=1, shared_pool=True),
    "self-draft": lambda: SelfDraft(branches=2, length=2, n=3, shared_pool=True),
    "token-recycling": lambda: TokenRecycling(successors=2, size=5, shared_pool=True),
}


class GrowingWorld(World):
    """A drafter whose pool is warm, a rule, and a target whose laws are rational."""

    def __init__(self, rule, name, *, seed=0, nodes=7):
        super().__init__(rule, [], seed=seed)
        self.nodes, self.roles = nodes, set()
        self.warm = MAKE[name]()
        warming = [Request([0, 1, 2, 1], stop=StopSettings(max_new_tokens=30, ignore_eos=True)) for _ in range(2)]
        run_batch(self.warm, ToyTarget(V, order=2, seed=seed), warming, 12, seed)

    def target(self, text):
        return rational("target", self.seed, text[-2:])

    def run(self, choose, steps):
        """The text after so many steps of decoding."""
        drafter = copy.deepcopy(self.warm)
        row = Row(1, 0, np.array([0]), SamplingSettings(temperature=1.0), StopSettings(50), frozenset(), 1000)
        state = State((row,))
        drafter.admit([row])
        for _ in range(steps):
            tree = drafter.propose(state, [self.nodes])
            self.roles.add(frozenset(tree.roles[0].tolist()))
            at = [(*row.tokens[:-1], *tree.tokens[0, tree.path(0, node)].tolist()) for node in range(tree.width)]
            children = {node: tree.children(0, node) for node in range(tree.width)}
            draft = Draft(tree.tokens[0].tolist(), children, tree.laws[0], lambda node, at=at: self.target(at[node]))
            path, law = self.rule(draft, lambda node, chance: choose([1 - chance, chance]) == 1)
            verdict = Verdict((RowVerdict(tuple(path), choose(list(law))),))
            row.steps += 1
            row.commit(verdict.tokens(tree, 0))
            logits = np.array([self.target(text) for text in at], dtype=np.float32)
            drafter.observe(tree, Scores(logits, np.arange(tree.width)[None]), verdict, state)
        return tuple(row.tokens)

    def is_exact(self, steps=2):
        weights: dict[tuple[int, ...], Fraction] = enumerate_runs(lambda choose: self.run(choose, steps))
        return self.balanced(weights)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", MAKE)
def test_growing_drafters_keep_the_law(name: str, rule: str) -> None:
    world = GrowingWorld(RULES[rule], name)
    assert world.is_exact()
    candidates, probes = ({kind in roles for roles in world.roles} for kind in (Role.CANDIDATE, Role.PROBE))
    assert True in candidates
    if name != "token-recycling":  # which has none
        assert True in probes
        assert any({Role.CANDIDATE, Role.PROBE} <= roles for roles in world.roles)


@pytest.mark.parametrize("name", MAKE)
def test_an_argmax_at_the_end_is_detected(name: str) -> None:
    wrong = ends_with_argmax(RULES["rejection"])
    assert not all(GrowingWorld(wrong, name, seed=seed).is_exact(steps=1) for seed in range(4))
