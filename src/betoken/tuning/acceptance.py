"""What a drafter's claims are worth: acceptance by claimed confidence, learned while decoding runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

_EDGES = (0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.995)
_MIDDLES = (0.02, 0.1, 0.22, 0.4, 0.6, 0.78, 0.9, 0.97, 1.0)
_DEPTHS = 3
_MOODS = 6
_CELLS = len(_MIDDLES) * _DEPTHS * _MOODS
_LEAN = 4.0
"""Trials that the cells of the same claim count for in a cell's estimate."""


class Acceptance:
    """How often a node is right, given that its parent is.

    Counts lie in cells: claimed confidence x depth x mood, where the mood says how the last draft of the row fared
    and whether this one is long (drafters that match text draft longer from longer matches). Old counts fade.
    """

    def __init__(self, *, memory: float = 40.0) -> None:
        """A cell forgets what is more than about `memory` of its trials ago. Starts from the claims, discounted."""
        self.memory = memory
        self._right = [0.0] * _CELLS
        self._tried = [0.0] * _CELLS
        self._broad_right = [2.0 * 0.8 * middle for middle in _MIDDLES]
        self._broad_tried = [2.0] * len(_MIDDLES)

    def narrowed(self, weight: float, *, memory: float) -> Acceptance:
        """A copy that trusts these counts as much as `weight` trials a cell at most: the start of a new request."""
        new = Acceptance(memory=memory)
        new._right, new._tried = _shrunk(self._right, self._tried, weight)
        new._broad_right, new._broad_tried = _shrunk(self._broad_right, self._broad_tried, weight)
        return new

    @staticmethod
    def mood(last: int, nodes: int) -> int:
        """`last`: 0 nothing of the last draft was accepted, 1 some, 2 all of it; `nodes`: size of this tree."""
        return 2 * last + (nodes > 6)

    @staticmethod
    def cell(claim: float, depth: int, mood: int) -> int:
        """The cell of a node, from its claimed confidence and its depth (1: child of the pending token)."""
        band = 0 if depth < 2 else 1 if depth < 5 else 2
        return (bisect_right(_EDGES, claim) * _DEPTHS + band) * _MOODS + mood

    def estimate(self, cell: int) -> float:
        """Estimated probability that a node of this cell is right, given that its parent is.

        A cell with few trials leans on all cells of the same claim.
        """
        claim = cell // (_DEPTHS * _MOODS)
        broad = self._broad_right[claim] / self._broad_tried[claim]
        return (self._right[cell] + _LEAN * broad) / (self._tried[cell] + _LEAN)

    def judge(self, parents: Sequence[int], claims: Sequence[float], last: int) -> tuple[list[float], list[int]]:
        """The probability [N - 1] that each candidate's path is right, and the cells [N] of all nodes.

        `parents`, `claims` [N] of a tree whose node 0 is the pending token; `last` as for `mood`.
        """
        mood = self.mood(last, len(parents))
        depths, path, cells = [0], [1.0], [0]
        known: dict[int, float] = {}
        for parent, claim in zip(parents[1:], claims[1:], strict=True):
            depth = depths[parent] + 1
            cell = (bisect_right(_EDGES, claim) * _DEPTHS + (depth > 1) + (depth > 4)) * _MOODS + mood
            chance = known.get(cell)
            if chance is None:
                chance = known[cell] = self.estimate(cell)
            depths.append(depth)
            cells.append(cell)
            path.append(path[parent] * chance)
        return path[1:], cells

    def learn(self, cell: int, right: bool) -> None:
        """A node of this cell was tried: its parent was right."""
        memory = self.memory
        self._count(self._right, self._tried, cell, right, memory)
        self._count(self._broad_right, self._broad_tried, cell // (_DEPTHS * _MOODS), right, memory)

    @staticmethod
    def _count(rights: list[float], tries: list[float], at: int, right: bool, memory: float) -> None:
        if tries[at] > memory:
            fade = 1.0 - 1.0 / memory
            tries[at] *= fade
            rights[at] *= fade
        tries[at] += 1.0
        rights[at] += right


def _shrunk(rights: Sequence[float], tries: Sequence[float], weight: float) -> tuple[list[float], list[float]]:
    shares = [min(1.0, weight / tried) if tried else 1.0 for tried in tries]
    return (
        [right * share for right, share in zip(rights, shares, strict=True)],
        [tried * share for tried, share in zip(tries, shares, strict=True)],
    )
