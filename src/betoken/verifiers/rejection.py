"""Speculative sampling: accept a draft with min(1, p/q), else try the next sibling against what is left of p.

Chains: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318. Trees whose siblings were drawn without
replacement: SpecInfer, arXiv 2305.09781, with the draft law renormalised as siblings are used up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from betoken.models.target import Scores
from betoken.state import State
from betoken.tree import TokenTree
from betoken.verifiers.drawn import Accept, Draft, Law, judge, residual
from betoken.verifiers.verifier import Verdict, check_budgets


@dataclass(frozen=True)
class Rejection:
    """Speculative sampling from the root down, chains and trees. Same law as plain sampling, not the same tokens."""

    name = "rejection"
    lossless = True
    exact = False

    def check(self, state: State) -> None:
        """Raises InputError for a request with a budget other than 0."""
        check_budgets(self.name, state)

    def verify(self, tree: TokenTree, scores: Scores, state: State) -> Verdict:
        """One verdict a row; greedy rows follow the argmax."""
        return judge(tree, scores, state, walk)


def walk(draft: Draft, accept: Accept) -> tuple[list[int], Law]:
    """The accepted path and the law [V] of the token after it."""
    path = [0]
    while True:
        law = draft.target(path[-1])
        chosen = None
        for child, drawn in draft.siblings(path[-1], law):
            token = draft.tokens[child]
            if accept(child, ratio(law[token], drawn[token])):
                chosen = child
                break
            law, _ = residual(law, drawn)
        if chosen is None:
            return path, law
        path.append(chosen)


def ratio(target: Any, drawn: Any) -> Any:
    """min(1, p / q) of a token that was drawn, so q > 0."""
    return min(target / drawn, 1)
