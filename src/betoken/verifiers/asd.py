"""Approximate speculative decoding: forgive near-ties within a budget. arXiv 2608.03447.

The regret of a draft is how much the target prefers its own pick: the difference of their logits (after penalties,
before the temperature) for greedy rows, of their log-probabilities for sampling rows, where the pick is the token that
`replay` would commit. The sampling form is ours, not the paper's. Neither is lossless unless the settings are strict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from betoken.errors import InputError
from betoken.models.target import Scores
from betoken.sampling import adjust, pick
from betoken.state import Relaxation, Row, State
from betoken.tree import Bools, Floats, Ints, TokenTree
from betoken.verifiers.calibration import Calibration, read_calibration
from betoken.verifiers.regrets import Regrets, regrets
from betoken.verifiers.replay import follow
from betoken.verifiers.verifier import RowVerdict, Verdict

TOLERANCE = 1e-9
"""Variant 1 forgives this much rounding in the budget."""


@dataclass(frozen=True)
class Asd:
    """Accept the longest draft whose mismatches are cheap enough. Not lossless, unless budget or cap is 0."""

    budget: float = 8.0
    """Most regret one request may spend, in logits (in nats when sampling). 0 is strict."""
    gate: float = 0.25
    """Most regret of one mismatch per token of draft that hangs on it. 0 is strict in variant 1."""
    cap: int = 2
    """Most mismatches in one step. 0 is strict."""
    variant: Literal[1, 2] = 1
    """1: the gate counts remaining draft tokens. 2: the remaining share of the draft; a mismatch needs budget left."""
    config: str | None = None
    """A file of `betoken calibrate asd`, which gives the four settings above; they must not be set besides."""
    name = "asd"

    def __post_init__(self) -> None:
        if self.config is not None:
            self._take_over(read_calibration(Path(self.config)))
        for name in ("budget", "gate", "cap"):
            if not 0 <= getattr(self, name) < np.inf:
                raise InputError(f"asd: {name} must be a number of at least 0, not {getattr(self, name)}")
        if self.variant not in (1, 2):
            raise InputError(f"asd: variant must be 1 or 2, not {self.variant}")

    def _take_over(self, found: Calibration) -> None:
        """Set the settings of a file on this instance, which nobody has seen yet."""
        for name in ("budget", "gate", "cap", "variant"):
            given, frozen = getattr(self, name), getattr(found, name)
            if given not in (getattr(Asd, name), frozen):
                raise InputError(f"asd: {name} {given} beside config, which says {frozen}: give one of the two")
            object.__setattr__(self, name, frozen)

    @property
    def lossless(self) -> bool:
        """Whether these settings accept no mismatch."""
        return self.budget == 0 or self.cap == 0 or (self.variant == 1 and self.gate == 0)

    @property
    def exact(self) -> bool:
        """The same: strict settings give plain decoding's tokens."""
        return self.lossless

    def check(self, state: State) -> None:
        """Raises InputError for a request that asks for more budget than the verifier allows."""
        for row in state.rows:
            if row.ledger.budget is not None and row.ledger.budget > self.budget:
                raise InputError(f"a budget of {row.ledger.budget:g} is above the verifier's budget {self.budget:g}")

    def verify(self, tree: TokenTree, scores: Scores, state: State) -> Verdict:
        """One verdict a row; strict rows get plain decoding's tokens, also beside relaxed ones."""
        relaxed = [b for b, row in enumerate(state.rows) if not self.lossless and self._allowed(row) > 0]
        chosen: dict[int, RowVerdict] = {}
        if relaxed:
            limits = np.array([self._allowed(row) - row.ledger.spent for row in state.rows])
            chosen = self._choose(tree, scores, state, relaxed, limits)
        verdicts = (chosen.get(b) or follow(tree, scores, row, b) for b, row in enumerate(state.rows))
        return Verdict(
            tuple(replace(one, budget=self._allowed(row)) for one, row in zip(verdicts, state.rows, strict=True))
        )

    def _allowed(self, row: Row) -> float:
        return self.budget if row.ledger.budget is None else min(self.budget, row.ledger.budget)

    def _choose(
        self, tree: TokenTree, scores: Scores, state: State, relaxed: list[int], left: Floats
    ) -> dict[int, RowVerdict]:
        """The best feasible path of each relaxed row: the longest, then the one of least regret, then the first."""
        found = regrets(tree, scores, state, relaxed, np.maximum(left, 0.0) + TOLERANCE)
        owner, paths, lengths = _leaf_paths(tree, relaxed)
        nodes = np.maximum(paths, 0)
        regret, missed = found.regret[owner[:, None], nodes], found.missed[owner[:, None], nodes]
        kept, spent = accepted(regret, missed, lengths, left[owner], self.gate, self.cap, self.variant)
        verdicts = {}
        for b in relaxed:
            own = np.flatnonzero(owner == b)
            best = own[np.lexsort((own, spent[own], -kept[own]))[0]]
            path = (0, *paths[best, : kept[best]].tolist())
            verdicts[b] = _verdict(tree, scores, state.rows[b], b, path, found)
        return verdicts


def accepted(
    regret: Floats, missed: Bools, lengths: Ints, left: Floats, gate: float, cap: int, variant: int
) -> tuple[Ints, Floats]:
    """How much of each of P drafted paths is accepted: ([P] tokens, [P] regret they cost).

    `regret` [P, D] and `missed` [P, D] say what each drafted token costs and whether it is a mismatch, `lengths` [P]
    how many tokens each path has, `left` [P] the budget left. Section 2 of the paper; variant 2 is its second release.
    """
    depth = np.arange(regret.shape[1])
    inside = depth < lengths[:, None]
    hanging = np.where(inside, lengths[:, None] - depth, 1).astype(np.float64)
    if variant == 2:
        hanging /= np.maximum(lengths[:, None], 1)
    totals = np.cumsum(np.where(missed & inside, regret, 0.0), axis=1)
    if variant == 1:
        affordable = totals <= np.maximum(left, 0.0)[:, None] + TOLERANCE
    else:
        before = np.pad(totals, ((0, 0), (1, 0)))[:, :-1]
        affordable = (before < left[:, None]) & (totals <= left[:, None])
    relaxed = (regret / hanging <= gate) & affordable & (np.cumsum(missed, axis=1) <= cap)
    kept = np.cumprod(inside & (~missed | relaxed), axis=1).sum(axis=1)
    spent = np.pad(totals, ((0, 0), (1, 0)))[np.arange(len(kept)), kept]
    return kept, spent


def _leaf_paths(tree: TokenTree, rows: list[int]) -> tuple[Ints, Ints, Ints]:
    """The drafted paths from the root to each leaf: rows [P], nodes [P, D] without the root padded by -1, lengths [P].

    A row without candidates has one path of length 0.
    """
    owner: list[int] = []
    paths: list[list[int]] = []
    for b in rows:
        todo = [0]
        while todo:
            node = todo.pop()
            below = tree.children(b, node)
            todo += below[::-1]
            if not below:
                owner.append(b)
                paths.append(tree.path(b, node)[1:])
    lengths = np.array([len(path) for path in paths], dtype=np.int64)
    padded = np.full((len(paths), int(lengths.max())), -1, dtype=np.int64)
    for index, path in enumerate(paths):
        padded[index, : len(path)] = path
    return np.array(owner, dtype=np.int64), padded, lengths


def _verdict(tree: TokenTree, scores: Scores, row: Row, b: int, path: tuple[int, ...], found: Regrets) -> RowVerdict:
    """The verdict that keeps `path`; the token after it is the target's own pick and costs nothing."""
    drafted = [int(tree.tokens[b, node]) for node in path[1:]]
    exceptions = tuple(
        Relaxation(row.generated + depth, drafted[depth], int(found.preferred[b, parent]), float(found.regret[b, node]))
        for depth, (parent, node) in enumerate(pairwise(path))
        if found.missed[b, node]
    )
    bonus = pick(adjust(scores.logits(b, path[-1]), row, drafted), row, row.generated + len(drafted))
    return RowVerdict(path, bonus, exceptions)
