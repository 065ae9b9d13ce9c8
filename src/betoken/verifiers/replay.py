"""Exact verifiers: the path that plain decoding would have taken, token for token.

`greedy` follows the argmax. `replay` picks position k with the number that plain sampling would use there,
u_k = noise(seed, sample, k), so speculation with any drafter gives the same tokens as plain sampling with that seed
(the rule PTP, arXiv 2512.21323 section 3, checks its drafts with).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from betoken.errors import InputError
from betoken.models.target import Scores
from betoken.sampling import adjust, pick
from betoken.state import Row, State
from betoken.tree import TokenTree
from betoken.verifiers.verifier import RowVerdict, Verdict, check_budgets


@dataclass(frozen=True)
class Replay:
    """Follow the token that plain sampling with the row's seed picks; greedy rows follow the argmax."""

    rule: Literal["inverse-cdf", "gumbel"] = "inverse-cdf"
    """How a token is picked from its law and the random numbers of its position."""
    name = "replay"
    lossless = True
    exact = True

    def check(self, state: State) -> None:
        """Raises InputError for a request with a budget other than 0."""
        check_budgets(self.name, state)

    def verify(self, tree: TokenTree, scores: Scores, state: State) -> Verdict:
        """One verdict a row, the same tokens as plain decoding."""
        gumbel = self.rule == "gumbel"
        return Verdict(tuple(follow(tree, scores, row, b, gumbel) for b, row in enumerate(state.rows)))


@dataclass(frozen=True)
class Greedy:
    """Follow the target's argmax; refuses rows with a temperature."""

    name = "greedy"
    lossless = True
    exact = True

    def check(self, state: State) -> None:
        """Raises InputError for a row that samples, or has a budget other than 0."""
        check_budgets(self.name, state)
        for row in state.rows:
            if not row.sampling.greedy:
                raise InputError(
                    f"verifier greedy decodes at temperature 0, not {row.sampling.temperature:g}; use replay"
                )

    def verify(self, tree: TokenTree, scores: Scores, state: State) -> Verdict:
        """One verdict a row, the same tokens as plain greedy decoding."""
        return Verdict(tuple(follow(tree, scores, row, b) for b, row in enumerate(state.rows)))


def follow(tree: TokenTree, scores: Scores, row: Row, b: int, gumbel: bool = False) -> RowVerdict:
    """The path of the tokens that plain decoding picks, and the first picked token that was not drafted."""
    path = [0]
    drafted: list[int] = []
    while True:
        adjusted = adjust(scores.logits(b, path[-1]), row, drafted)
        token = pick(adjusted, row, row.generated + len(drafted), gumbel=gumbel)
        child = tree.child(b, path[-1], token)
        if child is None:
            return RowVerdict(tuple(path), token)
        path.append(child)
        drafted.append(token)
