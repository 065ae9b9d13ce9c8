"""Weights as the kernels read them: rounded to int8 per output channel, in blocks of 32 channels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.models.native.emit import BLOCK, LANES

LEVELS = 127


class Packed(NamedTuple):
    """One matrix [N, K] in kernel layout, N padded to 32 and K to 16."""

    weight: NDArray[np.generic]
    """int8 [N/32, K/4, 32, 4] or float32 [N/32, K, 32]"""
    scale: NDArray[np.float32]
    """[N] of one int8 level; empty for float32"""
    shift: NDArray[np.int32]
    """[N] 128 * sum over K of the int8 weights: what inputs stored as value + 128 add to each sum; empty for float32"""


def padded(count: int, multiple: int) -> int:
    """`count` rounded up."""
    return -(-count // multiple) * multiple


def quantise(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round [N, K] float32 to 127 levels a side per row: int8 [N, K] and the scale [N] of one level."""
    scale = matrix.abs().amax(dim=1) / LEVELS
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return torch.round(matrix / safe[:, None]).clamp(-LEVELS, LEVELS).to(torch.int8), scale


def pack_int8(matrix: torch.Tensor) -> Packed:
    """A float32 matrix [N, K] for the int8 product."""
    levels, scale = quantise(matrix)
    levels = _pad(levels)
    n, k = levels.shape
    blocks = levels.view(n // BLOCK, BLOCK, k // 4, 4).permute(0, 2, 1, 3).contiguous()
    shift = np.zeros(n, dtype=np.int32)
    shift[:] = levels.sum(dim=1, dtype=torch.int32).numpy() * 128
    scales = np.zeros(n, dtype=np.float32)
    scales[: scale.shape[0]] = scale.numpy()
    return Packed(blocks.numpy(), scales, shift)


def pack_float32(matrix: torch.Tensor) -> Packed:
    """A float32 matrix [N, K] for the float32 product."""
    full = _pad(matrix)
    n, k = full.shape
    blocks = full.view(n // BLOCK, BLOCK, k).permute(0, 2, 1).contiguous()
    return Packed(blocks.numpy(), np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.int32))


def interleave(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Gate and up [F, K] as one matrix whose blocks of 32 rows alternate; F is padded to 32 with zero rows."""
    rows = padded(gate.shape[0], BLOCK)
    both = torch.zeros(2, rows, gate.shape[1], dtype=gate.dtype)
    both[0, : gate.shape[0]], both[1, : up.shape[0]] = gate, up
    return both.view(2, rows // BLOCK, BLOCK, -1).transpose(0, 1).reshape(2 * rows, -1)


def _pad(matrix: torch.Tensor) -> torch.Tensor:
    n, k = matrix.shape
    out = torch.zeros(padded(n, BLOCK), padded(k, LANES), dtype=matrix.dtype)
    out[:n, :k] = matrix
    return out
