"""A token tree as the tensors that one forward pass in torch takes: tokens, positions, mask, wanted nodes."""

from __future__ import annotations

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
    wanted: torch.Tensor
    """[W] places of the wanted nodes in the flattened [B * N]."""
    index: NDArray[np.int64]
    """[B, N] on the host: place of each node among the wanted ones, -1 elsewhere."""
    inputs: torch.Tensor
    """[A] float64 inputs of the auxiliary nodes, the probes that have no token."""
    auxiliary: torch.Tensor
    """[A] their places in the flattened [B * N]."""
    auxiliary_wanted: torch.Tensor
    """Places of those that are wanted among the wanted nodes."""

    @classmethod
    def of(
        cls,
        tree: TokenTree,
        window: Window,
        vocab_size: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        always_mask: bool = False,
        student: bool = False,
    ) -> TreeBatch:
        """`always_mask`: give a mask even where every node sees every column; `student`: there is one.

        Raises InputError for a token outside the vocabulary, BetokenError for auxiliary inputs without a student.
        """
        auxiliary = ~np.isnan(tree.inputs.ravel())
        if auxiliary.any() and not student:
            raise BetokenError("this target has no student for probes with auxiliary inputs (u): attach one first")
        if tree.tokens.min() < 0 or tree.tokens.max() >= vocab_size:
            raise InputError(f"the tree has a token id outside 0..{vocab_size - 1}")
        lengths = np.array(window.lengths, dtype=np.int64)
        index = np.full(tree.tokens.shape, -1, dtype=np.int64)
        wanted = np.flatnonzero(tree.wanted)
        index.flat[wanted] = np.arange(wanted.size)

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
            wanted=placed(wanted),
            index=index,
            inputs=placed(tree.inputs.ravel()[auxiliary]),
            auxiliary=placed(np.flatnonzero(auxiliary)),
            auxiliary_wanted=placed(np.flatnonzero(auxiliary[wanted])),
        )


def visible(tree: TokenTree, lengths: NDArray[np.int64], span: int) -> NDArray[np.bool_]:
    """[B, N, span] whether a node sees a column of its row: cached positions first, then the row's nodes.

    Padding sees the cache and itself: nothing reads it, and a softmax over nothing would be nan.
    """
    seen = np.arange(span) < tree.visible_cache(lengths)[:, :, None]
    nodes = tree.ancestors | np.eye(tree.width, dtype=np.bool_)
    for row, length in enumerate(lengths.tolist()):
        seen[row, :, length : length + tree.width] = nodes[row]
    return seen
