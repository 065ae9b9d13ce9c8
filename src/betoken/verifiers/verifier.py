"""The contract of a verifier, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from betoken.errors import InputError
from betoken.models.target import Scores
from betoken.state import Relaxation, State
from betoken.tree import TokenTree


@dataclass(frozen=True)
class RowVerdict:
    """What is kept of one row's tree."""

    path: tuple[int, ...]
    """Accepted nodes from the pending token (node 0) down; their keys and values stay in the cache."""
    bonus: int
    """The token that follows the path, picked from the target's own law: the new pending token."""
    exceptions: tuple[Relaxation, ...] = ()
    """Accepted tokens that plain decoding would not have picked."""
    budget: float | None = None
    """Most regret the row may spend in all; None from a verifier that has no budget."""


@dataclass(frozen=True)
class Verdict:
    """What is kept of each row of the batch."""

    rows: tuple[RowVerdict, ...]

    def tokens(self, tree: TokenTree, row: int) -> list[int]:
        """The tokens this verdict commits to a row: the accepted nodes after the pending one, then the bonus."""
        kept = self.rows[row]
        return [int(tree.tokens[row, node]) for node in kept.path[1:]] + [kept.bonus]


class Verifier(Protocol):
    """Keeps one path of each row's tree. A dataclass whose fields are its settings."""

    @property
    def name(self) -> str:
        """Its name in the table and in every report."""

    @property
    def lossless(self) -> bool:
        """Whether the output of this configured instance has the law of plain decoding."""

    @property
    def exact(self) -> bool:
        """Whether it commits the very tokens of plain decoding, whatever was drafted."""

    def check(self, state: State) -> None:
        """Raise InputError if it cannot serve these rows' settings (greedy and temperature 0.8, say)."""

    def verify(self, tree: TokenTree, scores: Scores, state: State) -> Verdict:
        """One verdict a row. Follows candidates only, never a probe; computes a node's law only along the path."""


def check_budgets(name: str, state: State) -> None:
    """For verifiers without a budget. Raises InputError for a request with a budget other than 0."""
    for row in state.rows:
        if row.ledger.budget:
            raise InputError(f"verifier {name} has no budget: leave it out, or use verifier asd, which has one")
