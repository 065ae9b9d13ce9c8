"""Traversal verification of trees, from the leaves up: Weng et al., arXiv 2505.12398.

A leaf is accepted with the chance to have come that far; a rejected leaf is cut off, and what the target has left at
its parent is judged again. On a chain this is block verification.
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
class Traversal:
    """Traversal verification of chains and trees. Same law as plain sampling, not the same tokens."""

    name = "traversal"
    lossless = True
    exact = False

    def check(self, state: State) -> None:
        """Raises InputError for a request with a budget other than 0."""
        check_budgets(self.name, state)

    def verify(self, tree: TokenTree, scores: Scores, state: State) -> Verdict:
        """One verdict a row; greedy rows follow the argmax."""
        return judge(tree, scores, state, climb)


def climb(draft: Draft, accept: Accept) -> tuple[list[int], Law]:
    """The path to the first accepted leaf and the law [V] of the token after it."""
    found = _under(draft, accept, 0, 1)
    assert found is not None  # the root is reached with certainty, so it is never cut off
    return found


def _under(draft: Draft, accept: Accept, node: int, reach: Any) -> tuple[list[int], Law] | None:
    """The accepted path from `node` down and the law after it; None if the node is cut off.

    `reach` is the chance p with which the node is to be kept, given the draft so far.
    """
    law = draft.target(node) if draft.children.get(node) else None
    if law is not None:
        for child, drawn in draft.siblings(node, law):
            token = draft.tokens[child]
            found = _under(draft, accept, child, min(reach * law[token] / drawn[token], 1))
            if found is not None:
                return [node, *found[0]], found[1]
            law, mass = residual(law, drawn, reach)
            reach = odds(mass, reach)
    if node == 0 or accept(node, reach):
        return [node], draft.target(node) if law is None else law
    return None
