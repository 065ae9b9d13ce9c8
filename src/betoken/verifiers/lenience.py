"""Lenience (Leviathan et al., arXiv 2211.17192, appendix A.5): speculative sampling that favours the draft."""

from __future__ import annotations

from dataclasses import dataclass, replace

from betoken.models.target import Scores
from betoken.state import Relaxation, Row, State
from betoken.tree import TokenTree
from betoken.verifiers.drawn import Accept, Draft, Law, sample
from betoken.verifiers.forgiving import Opinion, forgive_row, within
from betoken.verifiers.rejection import walk
from betoken.verifiers.verifier import RowVerdict, Verdict, check_budgets


@dataclass(frozen=True)
class Lenience:
    """Accept with min(1, p / (lenience q)); greedy rows: p(x) >= lenience max p. Not lossless, unless lenience is 1."""

    lenience: float = 0.5
    """In (0, 1]; 1 is strict: `rejection` for rows that sample, the argmax for greedy ones."""
    name = "lenience"
    exact = False

    def __post_init__(self) -> None:
        within("lenience", self.lenience, 1e-9, 1.0)

    @property
    def lossless(self) -> bool:
        """Whether the draft is not favoured."""
        return self.lenience == 1.0

    def check(self, state: State) -> None:
        """Raises InputError for a request with a budget other than 0."""
        check_budgets(self.name, state)

    def verify(self, tree: TokenTree, scores: Scores, state: State) -> Verdict:
        """One verdict a row."""
        return Verdict(tuple(self._row(tree, scores, row, b) for b, row in enumerate(state.rows)))

    def _row(self, tree: TokenTree, scores: Scores, row: Row, b: int) -> RowVerdict:
        if row.sampling.greedy or row.ledger.budget == 0:
            return forgive_row(tree, scores, row, b, self._passes)
        forgiven: list[tuple[int, Opinion]] = []

        def rule(draft: Draft, accept: Accept) -> tuple[list[int], Law]:
            def lenient(node: int, chance: float) -> bool:
                if accept(node, chance) or not accept(node, chance / self.lenience):
                    return accept(node, chance)
                opinion = Opinion.of(tree, scores, row, b, int(tree.parents[b, node]))
                if {int(tree.tokens[b, node]), opinion.favourite} & row.end_ids:
                    return False
                forgiven.append((node, opinion))
                return True

            return walk(draft, lenient)

        verdict = sample(tree, scores, row, b, rule)
        return replace(verdict, exceptions=tuple(_exception(tree, row, b, *one) for one in forgiven))

    def _passes(self, node: Opinion, token: int) -> bool:
        return self.lenience < 1.0 and bool(node.law[token] >= self.lenience * node.law.max())


def _exception(tree: TokenTree, row: Row, b: int, node: int, opinion: Opinion) -> Relaxation:
    """Speculative sampling prefers no token, so an exception is held against the most probable one.

    That can be the chosen token itself, where the draft's law favoured it even more; its regret is 0 then.
    """
    position, chosen = row.generated + int(tree.depths[b, node]) - 1, int(tree.tokens[b, node])
    return Relaxation(position, chosen, opinion.favourite, opinion.regret(chosen, opinion.favourite))
