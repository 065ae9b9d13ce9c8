"""A token tree as the tensors that one forward pass in torch takes: tokens, positions, mask, auxiliary inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.errors import BetokenError, InputError
from betoken.models.cache import Window
from betoken.tree import TokenTree


@dataclass(frozen=True)
class TreeBatch:
    """B trees of N nodes over a cache window of S columns, on the device."""

    tokens: torch.Tensor
    """[B, N] int64"""
    positions: torch.Tensor
    """[B, N] int64"""
    mask: torch.Tensor | None
    """[B, 1, N, S] added to the attention scores: 0 where a node sees a column, -inf elsewhere. None: all see all."""
    inputs: torch.Tensor
    """[A] float64 inputs of the auxiliary nodes, the probes that have no token."""
    auxiliary: torch.Tensor
    """[A] their places in the flattened [B * N]."""
    auxiliary_wanted: torch.Tensor
    """Places of those that are wanted among the wanted nodes."""

    @classmethod
    def of(
        cls, tree: TokenTree, window: Window, *, device: torch.device, dtype: torch.dtype, always_mask: bool = False
    ) -> TreeBatch:
        """`always_mask`: give a mask even where every node sees every column."""
        auxiliary = ~np.isnan(tree.inputs.ravel())
        lengths = np.array(window.lengths, dtype=np.int64)

        def placed(array: NDArray[np.int64] | NDArray[np.bool_] | NDArray[np.float64]) -> torch.Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        seen = visible(tree, lengths, window.span)
        mask = None
        if always_mask or not seen.all():
            hidden = placed(~seen[:, None])
            mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
        return cls(
            tokens=placed(tree.tokens),
            positions=placed(tree.positions(lengths)),
            mask=mask,
            inputs=placed(tree.inputs.ravel()[auxiliary]),
            auxiliary=placed(np.flatnonzero(auxiliary)),
            auxiliary_wanted=placed(np.flatnonzero(auxiliary[np.flatnonzero(tree.wanted)])),
        )


@dataclass(frozen=True)
class Outputs:
    """What leaves a pass over B rows and N nodes, or a few more of both in a padded one."""

    last: torch.Tensor
    """[B, N, X] of each node: the logits, or the state before the output layer."""
    hidden: Mapping[int, torch.Tensor]
    """Layer number -> states [B, N, H] that were asked for."""

    def wanted(self, tree: TokenTree, columns: NDArray[np.int64] | None = None) -> torch.Tensor:
        """[W, X] of the nodes that the tree wants, a copy. `columns`: the only nodes that `last` has."""
        rows, nodes = np.nonzero(tree.wanted)
        if columns is not None:
            nodes = np.searchsorted(columns, nodes)
        places = torch.from_numpy(rows * self.last.shape[1] + nodes).to(self.last.device, non_blocking=True)
        return self.last.flatten(0, 1)[places]

    def states(self, tree: TokenTree) -> dict[int, torch.Tensor]:
        """The states of the tree's own rows and nodes."""
        return {layer: states[: tree.batch, : tree.width] for layer, states in self.hidden.items()}


def check_tree(tree: TokenTree, vocab_size: int, *, student: bool = False) -> None:
    """Raises InputError for a token outside the vocabulary, BetokenError for auxiliary inputs without a student."""
    if not student and not np.isnan(tree.inputs).all():
        raise BetokenError("this target has no student for probes with auxiliary inputs (u): attach one first")
    if tree.tokens.min() < 0 or tree.tokens.max() >= vocab_size:
        raise InputError(f"the tree has a token id outside 0..{vocab_size - 1}")


def index_of(tree: TokenTree) -> NDArray[np.int64]:
    """[B, N] place of each node among the wanted ones, -1 elsewhere."""
    index = np.full(tree.wanted.shape, -1, dtype=np.int64)
    index[tree.wanted] = np.arange(np.count_nonzero(tree.wanted))
    return index


def visible(tree: TokenTree, lengths: NDArray[np.int64], span: int) -> NDArray[np.bool_]:
    """[B, N, span] whether a node sees a column of its row: cached positions first, then the row's nodes.

    Padding sees the cache and itself: nothing reads it, and a softmax over nothing would be nan.
    """
    seen = np.arange(span) < tree.visible_cache(lengths)[:, :, None]
    nodes = tree.ancestors | np.eye(tree.width, dtype=np.bool_)
    for row, length in enumerate(lengths.tolist()):
        seen[row, :, length : length + tree.width] = nodes[row]
    return seen
