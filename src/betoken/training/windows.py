"""Branches of auxiliary nodes over a text: where they start, and the token tree that says what they see.

Node q of a branch with start s sees the tokens before s, its branch's earlier nodes and itself, has position
s + q - 1 and belongs to token s + q: a root with anchor s and shift -1. Nodes are ordered by q first, so that the
nodes of one depth of all branches stand together: [B, L, C] flattened is [B, L * C].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.models.batch import visible
from betoken.tree import WHOLE_CACHE, Role, TokenTree

Ints = NDArray[np.int64]


def cut_points(generator: np.random.Generator, first: Ints, lengths: Ints, window: int, cuts: int) -> Ints:
    """[B, C] starts of branches, uniform over those whose whole window is in the text.

    `first` [B]: earliest token that may be predicted, at least 1; `lengths` [B]: tokens of each row. A row offers
    `first` alone if no whole window fits; it repeats starts only where it has fewer than `cuts`.
    """
    starts = np.zeros((len(first), cuts), dtype=np.int64)
    for row, (low, length) in enumerate(zip(first.tolist(), lengths.tolist(), strict=True)):
        choices = max(length - window - low + 1, 1)
        starts[row] = low + generator.choice(choices, cuts, replace=choices < cuts)
    return np.sort(starts, axis=1)


def window_tree(starts: Ints, window: int) -> TokenTree:
    """The auxiliary branches of a batch: roots with anchor s and shift -1, L nodes deep. `starts`: [B, C]."""
    rows, cuts = starts.shape
    nodes = cuts * window
    shape = (rows, nodes)
    parents = np.arange(-cuts, nodes - cuts, dtype=np.int64)
    parents[:cuts] = -1
    anchors = np.full(shape, WHOLE_CACHE, dtype=np.int64)
    anchors[:, :cuts] = starts
    shifts = np.zeros(shape, dtype=np.int64)
    shifts[:, :cuts] = -1
    return TokenTree(
        tokens=np.zeros(shape, dtype=np.int64),
        parents=np.tile(parents, (rows, 1)),
        roles=np.full(shape, Role.PROBE, dtype=np.int8),
        anchors=anchors,
        shifts=shifts,
        confidence=np.ones(shape),
        inputs=np.full(shape, np.nan),
        wanted=np.ones(shape, dtype=np.bool_),
        laws=tuple({} for _ in range(rows)),
    )


@dataclass(frozen=True)
class Windows:
    """Branches over a batch of B rows of N tokens."""

    starts: torch.Tensor
    """[B, C]"""
    index: torch.Tensor
    """[B, L, C] text index of the token that each node belongs to, at most N - 1."""
    inside: torch.Tensor
    """[B, L, C] whether that token exists."""
    mask: torch.Tensor
    """[B, 1, L * C, N + L * C] whether a node sees a column: text first, then nodes."""
    positions: torch.Tensor
    """[B, L * C]"""

    @classmethod
    def over(cls, starts: Ints, window: int, lengths: Ints, columns: int, device: torch.device) -> Windows:
        """`starts`: [B, C]; `lengths`: [B] tokens of each row; `columns`: N."""
        tree = window_tree(starts, window)
        whole = np.full(len(starts), columns, dtype=np.int64)
        seen = visible(tree, whole, columns + tree.width)
        index = starts[:, None, :] + np.arange(window)[None, :, None]
        return cls(
            starts=torch.from_numpy(starts).to(device),
            index=torch.from_numpy(np.minimum(index, columns - 1)).to(device),
            inside=torch.from_numpy(index < lengths[:, None, None]).to(device),
            mask=torch.from_numpy(seen[:, None]).to(device),
            positions=torch.from_numpy(tree.positions(whole)).to(device),
        )

    def of_text(self, values: torch.Tensor) -> torch.Tensor:
        """[B, L, C] what `values` [B, N] says of each node's token."""
        flat = self.index.flatten(1)
        return values.gather(1, flat).view(self.index.shape)
