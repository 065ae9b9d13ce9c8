"""PTP: a trained student reads random numbers and tells the tokens they will pick (arXiv 2512.21323).

The target picks token k with a number u_k that is known beforehand (verifier `replay`). So a branch of auxiliary
nodes whose inputs are u_s, u_{s+1}, ... can say tokens s, s+1, ... in one forward pass, the one that also verifies the
drafts of the step before.

A branch under draft d begins where that draft ends: its first node stands beside draft d + 1, at the same position
(shift -1), and guesses the same token, which the target's own pick replaces. The others are the next drafts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from betoken import noise
from betoken.drafters.drafter import Drafter
from betoken.drafters.quadratic import Shape, best_shape, full_shape, gains
from betoken.errors import InputError
from betoken.models.student import StudentCard, read_student
from betoken.models.target import Scores, TakesStudent, Target
from betoken.sampling import law, pick_inverse_cdf
from betoken.state import Row, SamplingSettings, State
from betoken.tree import START_INPUT, Floats, Role, RowTree, TokenTree
from betoken.verifiers.verifier import Verdict

_UNMEASURED = 0.7
"""Chance of one more right token where a card holds no measured runs."""

_LAW = ("temperature", "top_k", "top_p", "min_p")
_OUTSIDE = (
    "drafter ptp: the student was trained for temperature %g, top_k %d, top_p %g, min_p %g and nothing else; "
    "other answers are exact too, but fewer drafts will be right"
)

log = logging.getLogger("betoken")


class _Guess(NamedTuple):
    token: int
    confidence: float


@dataclass
class _Memory:
    """What is known of one request."""

    numbers: list[float] = field(default_factory=list)
    """u_0, u_1, ... as far as they were needed."""
    drafts: list[_Guess] = field(default_factory=list)
    """Guesses of what follows the pending token."""


@dataclass
class PTP:
    """Drafts with a student that `betoken train ptp` made, under verifier replay (inverse CDF).

    Other verifiers than replay and greedy keep their law, since the drafts depend on no number that they use; but only
    replay picks with the numbers that the student reads.
    """

    student: str = ""
    """The student's folder."""
    mode: Literal["partial", "full", "sequential"] = "partial"
    """`partial`: a branch at each draft, as long as pays within the nodes of the step. `full`: all branches of full
    length, L^2 + L nodes. `sequential`: a pass that only drafts, then one that only verifies; both are forwards."""
    length: int | None = None
    """Most nodes of a branch; none is the window the student was trained with."""
    _card: StudentCard = field(init=False, repr=False)
    _longest: int = field(init=False, repr=False)
    _gains: Floats = field(init=False, repr=False)
    _memories: dict[int, _Memory] = field(default_factory=dict, init=False, repr=False)
    _told: bool = field(default=False, init=False, repr=False)

    name = "ptp"
    hidden_layers = ()
    shares_state = False

    def __post_init__(self) -> None:
        """Reads the student's card. Raises InputError without one, and for a length that it does not allow."""
        if not self.student:
            raise InputError("drafter ptp needs a student: --set drafter.student=FOLDER (betoken train ptp makes one)")
        self._card = StudentCard.load(Path(self.student))
        self._longest = self._card.window if self.length is None else self.length
        if self.length is not None and not 2 <= self.length <= self._card.window:
            raise InputError(
                f"ptp: length must be from 2 to the student's window, {self._card.window}, not {self.length}"
            )
        self._gains = gains(self._runs, self._longest)

    def start(self, target: Target, draft: Target | None = None) -> None:
        """Reads the student. Raises InputError for one that is broken or of another model."""
        if not isinstance(target, TakesStudent):
            raise InputError(
                f"drafter ptp: {target.name} as {target.dtype} here has no way to take a student; use --dtype float32 "
                "and a model of the Llama family"
            )
        target.attach(read_student(Path(self.student)))

    def admit(self, rows: Sequence[Row]) -> None:
        """Nothing is known yet. Says, once, that a request is outside the law that the student was trained for."""
        for row in rows:
            self._memories[row.id] = _Memory()
            if not self._told and not _within(row.sampling, self._card.law):
                self._told = True
                log.warning(_OUTSIDE, *(getattr(self._card.law, name) for name in _LAW))

    def release(self, rows: Sequence[Row]) -> None:
        """Forget these requests."""
        for row in rows:
            self._memories.pop(row.id, None)

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        """The drafts that are known, and the branches that make the next ones."""
        return TokenTree.stack([self._propose(row, limit) for row, limit in zip(state.rows, nodes, strict=True)])

    def observe(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        """Read the branch under the last accepted node: its tokens are the next drafts."""
        for b, row in enumerate(state.rows):
            kept = verdict.rows[b]
            if kept.bonus < 0 or row.finish_reason is not None:
                continue
            memory, accepted = self._memories[row.id], len(kept.path) - 1
            left = memory.drafts[accepted:]
            memory.drafts = self._read(memory, tree, scores, b, kept.path[-1], row)
            if not memory.drafts and left and left[0].token == kept.bonus:
                memory.drafts = left[1:]  # drafts that there was no room to verify

    @property
    def _runs(self) -> Sequence[float]:
        """P(n' >= 1), ..., n' = run of right tokens from a branch's second node."""
        return self._card.runs or [_UNMEASURED ** (k + 1) for k in range(self._card.window - 1)]

    def _propose(self, row: Row, limit: int) -> RowTree:
        memory = self._memories[row.id]
        shape = self._shape(memory, row, limit - 1) if limit > 1 else Shape(0, ())
        known = memory.drafts[: shape.drafts]
        tree = RowTree.chain(row.pending, [one.token for one in known], [one.confidence for one in known])
        for depth, size in enumerate(shape.branches):
            self._branch(tree, memory, row, depth, size)
        return tree

    def _shape(self, memory: _Memory, row: Row, nodes: int) -> Shape:
        """How many drafts to verify and how long the branches are, of `nodes` nodes, 1 or more."""
        known = self._usable(memory.drafts, row)
        confidence = [one.confidence for one in known]
        longest = [self._room(row, depth) for depth in range(len(known) + 1)]
        if known and known[-1].token in row.end_ids:
            longest[-1] = 0  # nothing follows
        if self.mode == "sequential":
            return Shape(min(len(known), nodes), ()) if known else _all_in_one(longest[0], nodes)
        if self.mode == "full":
            shape = full_shape(len(known), self._longest, nodes)
            sizes = [min(size, most) for size, most in zip(shape.branches, longest, strict=False)]
            return Shape(shape.drafts, tuple(size if size > 1 else 0 for size in sizes))
        shape = best_shape(confidence, self._gains, longest, nodes)
        return shape if shape.nodes else _all_in_one(longest[0], nodes)

    def _usable(self, drafts: Sequence[_Guess], row: Row) -> Sequence[_Guess]:
        """The drafts that can be committed: within the row's room, and none after an end token."""
        reached = drafts[: max(0, min(self._longest - 1, row.room - 1))]
        ends = (place for place, one in enumerate(reached, 1) if one.token in row.end_ids)
        return reached[: next(ends, len(reached))]

    def _room(self, row: Row, depth: int) -> int:
        """Most nodes of the branch at a depth: beyond them nothing could be committed in the next step."""
        return max(0, min(self._longest, row.room - depth - 1))

    def _branch(self, tree: RowTree, memory: _Memory, row: Row, depth: int, size: int) -> None:
        """Add a branch of `size` nodes under draft `depth` (0: the pending token), as training laid it out."""
        node, first = depth, row.generated + depth
        for place in range(size):
            u = self._input(memory, row, first, place)
            node = tree.add(0, node, Role.PROBE, shift=0 if place else -1, u=u, wanted=place > 0)

    def _input(self, memory: _Memory, row: Row, first: int, place: int) -> float:
        """Input of a branch's node: `first` is the new token that its first node guesses."""
        objective = self._card.objective
        if objective == "o-ptp":
            return self._number(memory, row, first + place)
        if objective == "independent" or place == 0:
            return START_INPUT
        return self._number(memory, row, first + place - 1)

    def _number(self, memory: _Memory, row: Row, position: int) -> float:
        """u_k of new token k; the middle of [0, 1) for a greedy row, which draws none."""
        if row.sampling.greedy:
            return 0.5
        while len(memory.numbers) <= position:
            memory.numbers.append(noise.uniform(row.sampling.seed, row.sample, len(memory.numbers)))
        return memory.numbers[position]

    def _read(self, memory: _Memory, tree: TokenTree, scores: Scores, b: int, under: int, row: Row) -> list[_Guess]:
        """What the branch under a node says of the tokens after the one the target has just picked there."""
        nodes = _branch_nodes(tree, b, under)[1:]
        if not nodes:
            return []
        logits = scores.host[scores.index[b, nodes]]
        if self._card.objective not in ("o-ptp", "independent"):
            return self._conditional(memory, logits, row)
        best = logits.argmax(axis=1)
        at_best = logits[np.arange(len(best)), best]
        shares = 1.0 / np.exp(logits - at_best[:, None]).sum(axis=1, dtype=np.float64)
        return [_Guess(int(token), float(one)) for token, one in zip(best, in_turn(shares), strict=True)]

    def _conditional(self, memory: _Memory, logits: np.ndarray, row: Row) -> list[_Guess]:
        """C-PTP: each node tells the law of its token, and the token's own number picks from it."""
        above, out = 1.0, []
        for place, (one, run) in enumerate(zip(logits, self._runs, strict=False)):
            if row.sampling.greedy:
                token = int(one.argmax())
            else:
                token = pick_inverse_cdf(law(one, self._card.law), self._number(memory, row, row.generated + place))
            out.append(_Guess(token, min(1.0, run / above) if above else 0.0))
            above = run
        return out


def in_turn(confidence: Floats) -> Floats:
    """[D] chance of each guess given that those before it are right, from the student's own confidences [D].

    A student says token k without knowing tokens before it: they are in its numbers, if it reads any. So its confidence
    is that of token k whatever came before, and a guess that goes wrong takes the later ones with it. All of k guesses
    are right at most as often as the least sure of them, and about so often: far more often than the product of their
    confidences says.
    """
    reached = np.minimum.accumulate(confidence)
    return reached / np.concatenate([np.ones(1), np.maximum(reached[:-1], 1e-300)])


def _all_in_one(longest: int, nodes: int) -> Shape:
    """One branch under the pending token.

    A single node there brings no draft, but tells a node policy what drafting costs, which has to start somewhere.
    """
    return Shape(0, (min(longest, nodes),))


def _branch_nodes(tree: TokenTree, b: int, under: int) -> list[int]:
    """The auxiliary branch under a node, its first node first; empty if there is none."""
    parents, roles, nodes = tree.parents[b].tolist(), tree.roles[b].tolist(), []
    for node in range(under + 1, int(tree.counts[b])):
        if parents[node] == under and roles[node] == Role.PROBE:
            nodes.append(node)
            under = node
    return nodes


def _within(asked: SamplingSettings, trained: SamplingSettings) -> bool:
    """Whether a request samples from the law that a student was trained for."""
    return replace(asked, seed=trained.seed) == trained


def replaces_weights(drafter: Drafter) -> bool:
    """Whether a drafter brings a student of all weights, which only the torch decoder takes."""
    return isinstance(drafter, PTP) and drafter._card.weights == "full"
