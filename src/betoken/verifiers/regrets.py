"""What each drafted token costs: how much the target prefers its own pick there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from betoken.models.target import Scores
from betoken.sampling import adjust, draw, law
from betoken.state import Row, State
from betoken.tree import Bools, Floats, Ints, Role, TokenTree


@dataclass(frozen=True)
class Regrets:
    """The target's opinion of the candidates of a batch."""

    preferred: Ints
    """[B, N] what plain decoding would pick after each node that has candidates below; -1 elsewhere."""
    missed: Bools
    """[B, N] candidates that are not what plain decoding would pick."""
    regret: Floats
    """[B, N] how much the target prefers its pick, never negative; inf for a mismatch that must not be accepted."""


def regrets(tree: TokenTree, scores: Scores, state: State, rows: list[int], most: Floats) -> Regrets:
    """Regrets of the candidates of some rows. What lies below a regret above `most` [B] may be left at inf.

    A mismatch is not acceptable where it or the target's pick is an end token, nor anything below an end token.
    """
    shape = tree.tokens.shape
    found = Regrets(np.full(shape, -1), np.ones(shape, dtype=np.bool_), np.full(shape, np.inf))
    simple = np.zeros(tree.batch, dtype=np.bool_)
    for b in rows:
        simple[b] = _is_simple(state.rows[b])
        if not simple[b]:
            _node_by_node(tree, scores, state.rows[b], b, float(most[b]), found)
    _all_at_once(tree, scores, simple, found)
    for b in rows:
        _protect_ends(tree, state.rows[b], b, found)
    return found


def _is_simple(row: Row) -> bool:
    """Whether every node's preference can be read off its logits as they are."""
    settings = row.sampling
    ban = row.generated < row.stop.min_new_tokens and bool(row.end_ids)
    return settings.greedy and not (settings.logit_bias or settings.needs_history or ban)


def _all_at_once(tree: TokenTree, scores: Scores, simple: Bools, found: Regrets) -> None:
    """The `simple` [B] rows, by a few gathers on the device."""
    rows, nodes = np.nonzero((tree.roles == Role.CANDIDATE) & simple[:, None])
    parents, tokens = tree.parents[rows, nodes], tree.tokens[rows, nodes]
    best = scores.argmax[rows, parents]
    found.preferred[rows, parents] = best
    found.missed[rows, nodes] = tokens != best
    found.regret[rows, nodes] = np.maximum(scores.at(rows, parents, best) - scores.at(rows, parents, tokens), 0.0)


def _node_by_node(tree: TokenTree, scores: Scores, row: Row, b: int, most: float, found: Regrets) -> None:
    """One row whose laws depend on its settings; parents come before children."""
    found.regret[b, 0] = 0.0
    for node in range(int(tree.counts[b])):
        below = tree.children(b, node)
        if not below or found.regret[b, node] > most:
            continue
        drafted = [int(tree.tokens[b, above]) for above in tree.path(b, node)[1:]]
        adjusted = adjust(scores.logits(b, node), row, drafted)
        if row.sampling.greedy:
            values = adjusted.astype(np.float64)
            best = int(np.argmax(adjusted))
        else:
            probabilities = law(adjusted, row.sampling)
            best = draw(probabilities, row, row.generated + len(drafted))
            with np.errstate(divide="ignore"):
                values = np.log(probabilities)
        tokens = tree.tokens[b, below]
        found.preferred[b, node] = best
        found.missed[b, below] = tokens != best
        found.regret[b, below] = np.maximum(values[best] - values[tokens], 0.0)


def _protect_ends(tree: TokenTree, row: Row, b: int, found: Regrets) -> None:
    ends = np.array(sorted(row.end_ids), dtype=np.int64)
    candidates = np.flatnonzero(tree.roles[b] == Role.CANDIDATE)
    if not (ends.size and candidates.size):
        return
    parents = tree.parents[b, candidates]
    ended = np.isin(tree.tokens[b, parents], ends) & (parents > 0)
    missed = found.missed[b, candidates] | ended
    ends_here = np.isin(tree.tokens[b, candidates], ends) | np.isin(found.preferred[b, parents], ends)
    found.missed[b, candidates] = missed
    found.regret[b, candidates[ended | (missed & ends_here)]] = np.inf
