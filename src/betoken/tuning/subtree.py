"""A part of a token tree, and how probable its nodes are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from betoken.tree import Ints, Role, TokenTree


def may_trim(tree: TokenTree, row: int) -> bool:
    """Whether candidates of this row may be left out by what they are.

    Not where probes ride along: their drafter has split the limit itself and reads the tree by node. Not where the
    candidates were drawn from a law: to score a drawn token only when it looks probable would bend the law of what
    rejection sampling commits. The limit, set before the draft, is the only lever there.
    """
    return not tree.laws[row] and not tree.probes(row)


def subtree(tree: TokenTree, keep: Sequence[Sequence[int]]) -> TokenTree:
    """The nodes `keep` [B][K_b] of each row: increasing indices, node 0 among them, each with its parent."""
    if tree.batch == 1:
        return _single(tree, list(keep[0]))
    width = max(len(nodes) for nodes in keep)
    at = np.zeros((tree.batch, width), dtype=np.int64)
    real = np.zeros((tree.batch, width), dtype=np.bool_)
    parents = np.full((tree.batch, width), -1, dtype=np.int64)
    laws = []
    for b, nodes in enumerate(keep):
        new = {old: index for index, old in enumerate(nodes)}
        at[b, : len(nodes)] = nodes
        real[b, : len(nodes)] = True
        old_parents = tree.parents[b].tolist()
        parents[b, : len(nodes)] = [new[old_parents[old]] if old_parents[old] >= 0 else -1 for old in nodes]
        laws.append({new[parent]: law for parent, law in tree.laws[b].items() if parent in new})

    def taken(values: NDArray[np.generic], padding: float) -> NDArray[np.generic]:
        return np.where(real, np.take_along_axis(values, at, axis=1), np.array(padding, dtype=values.dtype))

    return TokenTree(
        tokens=_ints(taken(tree.tokens, 0)),
        parents=parents,
        roles=taken(tree.roles, Role.PADDING).astype(np.int8, copy=False),
        anchors=_ints(taken(tree.anchors, -1)),
        shifts=_ints(taken(tree.shifts, 0)),
        confidence=taken(tree.confidence, 0.0).astype(np.float64, copy=False),
        inputs=taken(tree.inputs, np.nan).astype(np.float64, copy=False),
        wanted=taken(tree.wanted, False).astype(np.bool_, copy=False),
        laws=tuple(laws),
    )


def _single(tree: TokenTree, keep: list[int]) -> TokenTree:
    """`subtree` of one row, which every step of a single request may need."""
    first = len(keep) == keep[-1] + 1  # the first nodes of the tree, as of any chain: no copies
    at: slice | list[int] = slice(0, len(keep)) if first else keep
    parents = tree.parents[:, at]
    laws = tree.laws[0]
    if not first:
        new = {old: index for index, old in enumerate(keep)} | {-1: -1}
        parents = np.array([[new[parent] for parent in parents[0].tolist()]], dtype=np.int64)
        laws = {new[parent]: law for parent, law in laws.items() if parent in new}
    return TokenTree(
        tokens=tree.tokens[:, at],
        parents=parents,
        roles=tree.roles[:, at],
        anchors=tree.anchors[:, at],
        shifts=tree.shifts[:, at],
        confidence=tree.confidence[:, at],
        inputs=tree.inputs[:, at],
        wanted=tree.wanted[:, at],
        laws=(laws,),
    )


def _ints(values: NDArray[np.generic]) -> Ints:
    return values.astype(np.int64, copy=False)
