"""Block verification of chains: Sun et al., arXiv 2403.10444, algorithm 2.

The whole block is judged at once, so a draft that was unlucky at one position can be made up for by the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from betoken.models.target import Scores
from betoken.state import State
from betoken.tree import TokenTree
from betoken.verifiers.drawn import Accept, Draft, Law, judge, odds, residual
from betoken.verifiers.verifier import Verdict, check_budgets


@dataclass(frozen=True)
class Block:
    """Block verification. Same law as plain sampling; on a tree it judges the chain of first children alone."""

    name = "block"
    lossless = True
    exact = False

    def check(self, state: State) -> None:
        """Raises InputError for a request with a budget other than 0."""
        check_budgets(self.name, state)

    def verify(self, tree: TokenTree, scores: Scores, state: State) -> Verdict:
        """One verdict a row; greedy rows follow the argmax."""
        return judge(tree, scores, state, longest)


def longest(draft: Draft, accept: Accept) -> tuple[list[int], Law]:
    """The longest accepted prefix of the chain and the law [V] of the token after it."""
    path = [0]
    stops: list[tuple[Law, Any]] = []  # residual of each node before the last, and the chance to stop there
    reach: Any = 1
    while children := draft.children.get(path[-1]):
        law = draft.target(path[-1])
        _, drawn = next(draft.siblings(path[-1], law))
        left, mass = residual(law, drawn, reach)
        stops.append((left, odds(mass, reach)))
        token = draft.tokens[children[0]]
        reach = min(reach * law[token] / drawn[token], 1)
        path.append(children[0])
    if len(path) == 1 or accept(path[-1], reach):
        return path, draft.target(path[-1])
    for last in range(len(stops) - 1, 0, -1):
        if accept(path[last], stops[last][1]):
            return path[: last + 1], stops[last][0]
    return path[:1], stops[0][0]
