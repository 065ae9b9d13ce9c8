"""Token recycling (arXiv 2408.08696): the next draft from what the target last thought after each token.

A table holds the top-k successors of every token that was scored, accepted or not. The draft is a tree of fixed shape
filled from the table; a budget smaller than the shape takes its best part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from betoken.drafters.growth import Draft, Growing, Memory, Scored
from betoken.drafters.offers import Acceptance, Offer
from betoken.drafters.pool import Trie
from betoken.errors import InputError
from betoken.state import Row
from betoken.tree import RowTree

_BLOCK = 64
"""Tokens of the vocabulary that are looked at together."""


@dataclass
class _Memory(Memory):
    table: dict[int, list[int]]
    """Token -> its successors, most likely first."""


@dataclass
class TokenRecycling(Growing[_Memory]):
    """Table of last-seen successors, tree of fixed shape. All nodes are candidates; each of them is read."""

    successors: int = 8
    """How many successors a token keeps."""
    size: int = 80
    """Candidates of the whole shape."""
    from_text: bool = False
    """Whether the table starts with the prompt's own pairs of tokens; else it starts empty."""
    name = "token-recycling"

    def __post_init__(self) -> None:
        """Raises InputError for sizes below 1."""
        for key in ("successors", "size"):
            if getattr(self, key) < 1:
                raise InputError(f"token-recycling: {key} must be at least 1, not {getattr(self, key)}")
        self._shared: dict[int, list[int]] = {}

    def _remember(self, row: Row) -> _Memory:
        table = self._shared if self.shared_pool else {}
        if self.from_text:
            for token, after in zip(row.tokens, row.tokens[1:], strict=False):
                known = [one for one in table.get(token, ()) if one != after]
                table[token] = [after, *known][: self.successors]
        return _Memory(Acceptance(((0.4,),)), table)

    def _grows(self, memory: _Memory) -> list[Trie]:
        return []

    def _draft(self, memory: _Memory, row: Row, limit: int) -> RowTree:
        tokens, nodes, offered = [row.pending], [0], memory.offered
        for slot in static_tree(self.size, self.successors):
            parent = nodes[slot.parent]
            known = memory.table.get(tokens[parent], []) if parent >= 0 else []
            if slot.rank >= len(known) or (parent and tokens[parent] in row.end_ids):
                nodes.append(-1)  # nothing to put there, nor below
                continue
            rate = memory.acceptance.rate(0, slot.depth, slot.rank)
            reach = rate * (offered[parent - 1].reach if parent else 1.0)
            offered.append(Offer(known[slot.rank], parent, 0, slot.depth, slot.rank, rate, reach))
            nodes.append(len(tokens))
            tokens.append(known[slot.rank])
            if len(tokens) == limit:
                break
        draft = Draft(row.pending, limit)
        draft.offer(offered)
        return draft.tree

    def _learn(self, memory: _Memory, scored: Scored) -> None:
        successors = top(scored.logits, self.successors).tolist()
        for node in (*range(len(scored.tokens)), *scored.path):  # what was accepted has the last word
            memory.table[scored.tokens[node]] = successors[node]


class Slot(NamedTuple):
    """A place of the static tree."""

    parent: int
    """Place of its parent, counted from 1; 0 is the pending token."""
    rank: int
    depth: int


@cache
def static_tree(size: int, successors: int) -> tuple[Slot, ...]:
    """The `size` places with the smallest product of (rank + 1), each level below the first counting 1.25 more.

    That is close to the published tree, found by search on a sample. Places stand in the order of that product, so
    any first part of them is a tree, and the best one of its size.
    """
    out: list[Slot] = []
    heap = [(float(rank + 1), 0, Slot(0, rank, 0)) for rank in range(successors)]
    serial = 0
    while len(out) < size:
        cost, _, slot = heappop(heap)
        out.append(slot)
        for rank in range(successors):
            serial += 1
            heappush(heap, (cost * 1.25 * (rank + 1), serial, Slot(len(out), rank, slot.depth + 1)))
    return tuple(out)


@nb.njit(nogil=True, cache=True, fastmath={"nnan", "nsz"})  # else the maximum of a block is not vectorised
def top(logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Ids of the k largest of each row of logits [W, V], largest first, of equals the smaller id first: [W, k].

    Compiled: one pass that looks closer only where a block of the vocabulary holds one of the largest so far. A sort
    or a partition of the vocabulary takes as long as a good part of a small model's forward pass.
    """
    rows, vocabulary = logits.shape
    k = min(k, vocabulary)
    ids = np.zeros((rows, k), np.int64)
    values = np.empty(k, np.float32)
    for row in range(rows):
        values[:] = -np.inf
        known = 0
        for start in range(0, vocabulary, _BLOCK):
            end = min(start + _BLOCK, vocabulary)
            highest = logits[row, start]
            for token in range(start + 1, end):
                highest = max(highest, logits[row, token])
            if known == k and highest <= values[k - 1]:
                continue
            for token in range(start, end):
                value = logits[row, token]
                if known == k and value <= values[k - 1]:
                    continue
                at = min(known, k - 1)
                known = min(known + 1, k)
                while at > 0 and values[at - 1] < value:
                    values[at], ids[row, at] = values[at - 1], ids[row, at - 1]
                    at -= 1
                values[at], ids[row, at] = value, token
    return ids
