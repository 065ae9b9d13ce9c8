"""A world of 3 words in which verification rules are enumerated exactly, with rational numbers.

Every draw of the drafter, every acceptance and every final draw is enumerated with its exact
probability, over two consecutive steps whose second draft depends on everything that happened in the first. If e runs
over the texts that may come out, with probability w(e), and P is plain sampling, then continuing each e plainly gives
plain sampling's law exactly when, for every endless text f, the sum of w(e) / P(e) over its beginnings e is 1.
"""

from __future__ import annotations

import random
from collections import defaultdict
from fractions import Fraction

import numpy as np

from betoken.tree import Role, RowTree, TokenTree
from betoken.verifiers import block, rejection, traversal
from betoken.verifiers.drawn import Draft

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
