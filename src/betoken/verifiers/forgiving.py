"""The walk that the relaxed rules share, with its exceptions.

It goes down the tree along the token that plain decoding would pick (`replay`); where that token was not drafted, the
acceptable candidate of least regret is taken instead and noted as an exception, with its regret in log-probability.
As in `asd`, a mismatch is never accepted if it or the target's pick is an end token, nor a token that the row's
settings rule out. A request whose budget is 0 gets plain decoding's tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from betoken.errors import InputError
from betoken.models.target import Scores
from betoken.sampling import Law, Logits, adjust, law, pick
from betoken.state import Relaxation, Row, SamplingSettings, State
from betoken.tree import TokenTree
from betoken.verifiers.replay import follow
from betoken.verifiers.verifier import RowVerdict, Verdict

_UNTEMPERED = SamplingSettings(temperature=1.0)


@dataclass(frozen=True)
class Opinion:
    """What is known at one node when a drafted token is judged there."""

    adjusted: Logits
    """[V] logits after everything that comes before the temperature."""
    settings: SamplingSettings
    drawn: Law | None
    """[V] law the drafts were drawn from, if they were drawn."""

    @classmethod
    def of(cls, tree: TokenTree, scores: Scores, row: Row, b: int, node: int) -> Opinion:
        """What the target says after a node of row `b`."""
        drafted = [int(tree.tokens[b, above]) for above in tree.path(b, node)[1:]]
        return cls(adjust(scores.logits(b, node), row, drafted), row.sampling, tree.laws[b].get(node))

    @cached_property
    def favourite(self) -> int:
        """The target's most probable token."""
        return int(np.argmax(self.adjusted))

    @cached_property
    def law(self) -> Law:
        """[V] the target's law; greedy rows are judged at temperature 1."""
        return law(self.adjusted, _UNTEMPERED if self.settings.greedy else self.settings)

    def regret(self, chosen: int, preferred: int) -> float:
        """Difference of log-probabilities, at least 0."""
        return max(0.0, float(np.log(self.law[preferred]) - np.log(self.law[chosen])))


Test = Callable[[Opinion, int], bool]
"""Whether a drafted token that is not the target's pick passes."""


def forgive(tree: TokenTree, scores: Scores, state: State, passes: Test) -> Verdict:
    """The verdicts of a rule that judges one drafted token at a time."""
    return Verdict(tuple(forgive_row(tree, scores, row, b, passes) for b, row in enumerate(state.rows)))


def forgive_row(tree: TokenTree, scores: Scores, row: Row, b: int, passes: Test) -> RowVerdict:
    """The same for one row."""
    if row.ledger.budget == 0:
        return follow(tree, scores, row, b)
    path = [0]
    drafted: list[int] = []
    exceptions: list[Relaxation] = []
    while True:
        node = Opinion.of(tree, scores, row, b, path[-1])
        position = row.generated + len(drafted)
        preferred = pick(node.adjusted, row, position)
        child = tree.child(b, path[-1], preferred)
        if child is None and preferred not in row.end_ids and not (drafted and drafted[-1] in row.end_ids):
            child = _least_regret(tree, row, b, path[-1], preferred, node, passes)
            if child is not None:
                chosen = int(tree.tokens[b, child])
                exceptions.append(Relaxation(position, chosen, preferred, node.regret(chosen, preferred)))
        if child is None:
            return RowVerdict(tuple(path), preferred, tuple(exceptions))
        path.append(child)
        drafted.append(int(tree.tokens[b, child]))


def _least_regret(
    tree: TokenTree, row: Row, b: int, parent: int, preferred: int, node: Opinion, passes: Test
) -> int | None:
    found = [
        (node.regret(token, preferred), child)
        for child in tree.children(b, parent)
        if (token := int(tree.tokens[b, child])) not in row.end_ids and node.law[token] > 0 and passes(node, token)
    ]
    return min(found)[1] if found else None


def within(name: str, value: float, low: float, high: float) -> None:
    """Raises InputError unless low <= value <= high."""
    if not low <= value <= high:
        raise InputError(f"{name} must be between {low:g} and {high:g}, not {value}")
