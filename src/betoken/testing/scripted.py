"""Adversarial drafters: one that knows the answer, one that guesses trees with probes, one that draws from laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from betoken.decode import Request
from betoken.errors import InputError
from betoken.models.target import Scores, Target
from betoken.noise import Stream, uniforms
from betoken.sampling import Law, pick_inverse_cdf
from betoken.state import Row, State
from betoken.testing.running import plain_tokens
from betoken.tree import Role, RowTree, TokenTree
from betoken.verifiers.replay import Replay
from betoken.verifiers.verifier import Verdict


@dataclass
class Scripted:
    """What these drafters share: they know their target, and learn nothing from it."""

    _target: Target | None = field(default=None, init=False, repr=False)

    hidden_layers = ()
    shares_state = False

    def start(self, target: Target, draft: Target | None = None) -> None:
        """Remembers the target."""
        self._target = target

    def admit(self, rows: Sequence[Row]) -> None:
        """Nothing yet."""

    def release(self, rows: Sequence[Row]) -> None:
        """Keeps nothing."""

    def observe(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        """Learns nothing."""

    @property
    def target(self) -> Target:
        """What it was started with. Raises InputError before that."""
        if self._target is None:
            raise InputError(f"{type(self).__name__}: call start(target) first")
        return self._target


@dataclass
class OracleDrafter(Scripted):
    """Drafts the row's plain answer, each token spoilt with a fixed probability: always, never, sometimes right."""

    accuracy: float = 1.0
    """Probability that a drafted token is the right one."""
    depth: int = 4
    seed: int = 0
    rule: Literal["inverse-cdf", "gumbel"] = "inverse-cdf"
    """The replay verifier's rule."""
    _answers: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)

    name = "oracle"

    def release(self, rows: Sequence[Row]) -> None:
        """Forget the answers."""
        for row in rows:
            self._answers.pop(row.id, None)

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        """A chain a row."""
        trees = []
        for row, limit in zip(state.rows, nodes, strict=True):
            draft = self._answer(row)[row.generated :][: min(self.depth, limit - 1, row.room - 1)]
            trees.append(RowTree.chain(row.pending, [self._spoil(row, n, t) for n, t in enumerate(draft)]))
        return TokenTree.stack(trees)

    def _answer(self, row: Row) -> list[int]:
        if row.id not in self._answers:
            request = Request(row.prompt.tolist(), row.sampling, row.stop, row.sample)
            self._answers[row.id] = plain_tokens(self.target, request, Replay(self.rule))
        return self._answers[row.id]

    def _spoil(self, row: Row, depth: int, token: int) -> int:
        right = np.random.default_rng((self.seed, len(row.tokens), depth)).random() < self.accuracy
        return token if right else (token + 1) % self.target.vocab_size


@dataclass
class RandomTreeDrafter(Scripted):
    """Random branching candidates, probes below them, and probe roots anchored anywhere in the cache."""

    seed: int = 0
    probes: bool = True

    name = "random-tree"

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        """A tree a row of 1 to `nodes[b]` nodes."""
        return TokenTree.stack([self._grow(row, limit) for row, limit in zip(state.rows, nodes, strict=True)])

    def _grow(self, row: Row, limit: int) -> RowTree:
        rng = np.random.default_rng((self.seed, len(row.tokens)))
        tree = RowTree.under(row.pending)
        for _ in range(int(rng.integers(0, limit))):
            token = int(rng.integers(self.target.vocab_size))
            parent = int(rng.integers(len(tree)))
            kind = rng.random() if self.probes else 1.0
            if kind < 0.15:
                tree.root(token, anchor=int(rng.integers(row.cached + 1)), shift=int(rng.integers(-1, 2)))
            elif kind < 0.35 or tree.roles[parent] == Role.PROBE:
                tree.add(token, parent, Role.PROBE, shift=int(rng.integers(-1, 2)))
            elif tree.child(parent, token) is None:
                tree.add(token, parent, confidence=float(rng.random()))
        return tree


@dataclass
class DrawingDrafter(Scripted):
    """Draws trees of `width` children a node from laws of its own and records the laws, for rejection verifiers."""

    depth: int = 2
    width: int = 1
    seed: int = 0
    """Picks the laws, not the draws: those follow the row's seed."""

    name = "drawing"

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        """A full tree a row, or as much of it, level by level, as fits."""
        return TokenTree.stack([self._grow(row, limit) for row, limit in zip(state.rows, nodes, strict=True)])

    def law(self, token: int) -> Law:
        """[V] law of what this drafter draws after a token."""
        return np.random.default_rng((self.seed, token)).dirichlet(np.ones(self.target.vocab_size))

    def _grow(self, row: Row, limit: int) -> RowTree:
        tree = RowTree.under(row.pending)
        level = [0]
        for depth in range(self.depth):
            below: list[int] = []
            numbers = iter(
                uniforms(
                    row.sampling.seed,
                    row.sample,
                    row.generated + depth,
                    len(level) * self.width,
                    stream=Stream.DRAFT,
                    step=row.steps,
                )
            )
            for node in level:
                law = self.law(tree.tokens[node])
                left = law.copy()
                for _ in range(min(self.width, self.target.vocab_size, limit - len(tree))):
                    tree.laws[node] = law
                    token = pick_inverse_cdf(left / left.sum(), float(next(numbers)))
                    left[token] = 0.0
                    below.append(tree.add(token, node))
            level = below
        return tree
