"""What `rejection`, `block` and `traversal` share: one row's draft with the laws of both sides, and the randomness.

The rules are written over laws, not floats: the same code runs on float64 arrays in decoding and on object arrays of
`fractions.Fraction` in the tests, which prove each rule by enumerating every outcome exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from betoken import sampling
from betoken.models.target import Scores
from betoken.noise import Stream, uniform, uniforms
from betoken.state import Row, State
from betoken.tree import TokenTree
from betoken.verifiers.replay import follow
from betoken.verifiers.verifier import RowVerdict, Verdict

Law = NDArray[Any]
"""[V] probabilities: float64, or objects that do exact arithmetic."""

Accept = Callable[[int, Any], bool]
"""accept(node, chance): whether a draw that is independent of everything else falls below `chance`."""

Rule = Callable[["Draft", Accept], tuple[list[int], Law]]
"""A verification rule: the accepted path (node 0 first) and the law [V] of the token after it."""


@dataclass(frozen=True)
class Draft:
    """One row's candidates, the law each was drawn from, and the target's law at each node."""

    tokens: Sequence[int]
    """[N] token of each node."""
    children: Mapping[int, Sequence[int]]
    """Node -> its candidate children in the order in which they were drawn; nodes without any may be missing."""
    laws: Mapping[int, Law]
    """Node -> law [V] its children were drawn from, without replacement; a missing entry: deterministic children."""
    target: Callable[[int], Law]
    """Node -> the target's law [V] of the token after it. Called along the visited nodes only."""

    def siblings(self, node: int, target: Law) -> Iterator[tuple[int, Law]]:
        """Each child of `node` with the law [V] it was drawn from, given that the siblings before it were drawn.

        `target` is the target's law at `node`.
        """
        drawn: list[int] = []
        for child in self.children.get(node, ()):
            token = self.tokens[child]
            yield child, _next_law(self.laws.get(node), drawn, token, np.zeros_like(target))
            drawn.append(token)


def _next_law(law: Law | None, drawn: Sequence[int], token: int, zeros: Law) -> Law:
    """`law` without the tokens `drawn`. A child that it cannot have produced counts as deterministic."""
    if law is not None:
        left = law.copy()
        left[list(drawn)] = 0
        if left[token] > 0:
            left /= left.sum()
            return left
    zeros[token] = 1
    return zeros


def residual(target: Law, drawn: Law, scale: Any = 1) -> tuple[Law, Any]:
    """What is left of `scale` times the target's law after the draft's: ((scale p - q)+ normalised [V], its mass).

    Where nothing is left (a case of probability 0) the target's law itself comes back, with mass 0.
    """
    left: Law = np.maximum(scale * target - drawn, 0)
    mass = left.sum()
    return (left / mass, mass) if mass > 0 else (target, mass)


def odds(mass: Any, reach: Any) -> Any:
    """Z / (Z + 1 - p): chance of stopping at a node reached with p whose residual has mass Z. 0/0 is 1."""
    whole = mass + 1 - reach
    return mass / whole if whole > 0 else 1


def judge(tree: TokenTree, scores: Scores, state: State, rule: Rule) -> Verdict:
    """The verdict of a rule for each row; greedy rows follow the argmax."""
    return Verdict(
        tuple(
            follow(tree, scores, row, b) if row.sampling.greedy else sample(tree, scores, row, b, rule)
            for b, row in enumerate(state.rows)
        )
    )


def sample(tree: TokenTree, scores: Scores, row: Row, b: int, rule: Rule) -> RowVerdict:
    """The verdict of a rule for one row that samples."""

    def target(node: int) -> Law:
        drafted = [int(tree.tokens[b, above]) for above in tree.path(b, node)[1:]]
        return sampling.law(sampling.adjust(scores.logits(b, node), row, drafted), row.sampling)

    nodes = int(tree.counts[b])
    draft = Draft(
        tokens=tree.tokens[b].tolist(),
        children={node: tree.children(b, node) for node in range(nodes)},
        laws={node: np.asarray(law, dtype=np.float64) for node, law in tree.laws[b].items()},
        target=target,
    )
    # Fresh numbers each step: block and traversal look at later drafts, so reusing those of a position would bend the
    # law of the next step (docs/design/0002-noise-streams.md).
    key = (row.sampling.seed, row.sample, row.generated)
    u = uniforms(*key, nodes, stream=Stream.ACCEPT, step=row.steps)
    path, law = rule(draft, lambda node, chance: bool(u[node] < chance))
    bonus = sampling.pick_inverse_cdf(law, uniform(*key, stream=Stream.RESIDUAL, step=row.steps))
    return RowVerdict(tuple(path), bonus)
