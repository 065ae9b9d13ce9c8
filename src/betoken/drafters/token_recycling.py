"""Token recycling (arXiv 2408.08696): the next draft from what the target last thought after each token.

A table holds the top-k successors of every token that was scored, accepted or not. The draft is a tree of fixed shape
filled from the table; a budget smaller than the shape takes its best part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from betoken.drafters.growth import Draft, Growing, Memory, Scored
from betoken.drafters.offers import Acceptance, Offer
from betoken.drafters.pool import Trie
from betoken.errors import InputError
from betoken.state import Row
from betoken.tree import RowTree


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


def top(logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Ids of the k largest of each row of logits [W, V], largest first: [W, k].

    The k largest lie in the k blocks with the largest maxima, so most of the vocabulary is read once and not sorted.
    """
    rows, vocabulary = logits.shape
    k = min(k, vocabulary)
    stride = max(1, vocabulary // 64)  # block c holds the ids c, c + stride, c + 2 stride, ...
    whole = 64 * stride if vocabulary >= 64 else vocabulary
    if whole < 64 * k or stride < k:
        order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        return order.astype(np.int64)
    blocks = logits[:, :whole].reshape(rows, 64, stride)
    best = np.argpartition(-blocks.max(axis=1), k - 1, axis=1)[:, :k]
    ids = (best[:, None, :] + stride * np.arange(64)[None, :, None]).reshape(rows, -1)
    rest = np.broadcast_to(np.arange(whole, vocabulary), (rows, vocabulary - whole))
    ids = np.concatenate([ids, rest], axis=1)
    order = np.argsort(-np.take_along_axis(logits, ids, axis=1), axis=1, kind="stable")[:, :k]
    return np.take_along_axis(ids, order, axis=1)
