"""Weights as the kernels read them: in 8 or 4 bits with a scale per output channel, in blocks of 32 channels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.models.native.emit import BLOCK, LANES
from betoken.models.native.fit4 import Nibbles, fit
from betoken.models.native.nibbles import GROUP, GROUP_BYTES, HEADER

LEVELS = 127


class Packed(NamedTuple):
    """One matrix [N, K] in kernel layout, N padded to 32, K to 16 or, for 4 bits, to 32."""

    weight: NDArray[np.generic]
    """int8 [N/32, K/4, 32, 4], float32 [N/32, K, 32], or uint8 [N/32, K/32, 576] of 4-bit weights (nibbles.py)"""
    scale: NDArray[np.float32]
    """[N] of one level; empty for float32"""
    shift: NDArray[np.int32]
    """[N] 128 * sum over K of the integers: what inputs stored as value + 128 add to each sum; empty for float32"""


def padded(count: int, multiple: int) -> int:
    """`count` rounded up."""
    return -(-count // multiple) * multiple


def to_int8(matrix: torch.Tensor, importance: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Round [N, K] float32 to 127 levels a side per row: int8 [N, K] and the scale [N] of one level.

    `importance` makes no difference here; it is what `to_int4` asks for.
    """
    scale = matrix.abs().amax(dim=1) / LEVELS
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return torch.round(matrix / safe[:, None]).clamp(-LEVELS, LEVELS).to(torch.int8), scale


def pack_int8(matrix: torch.Tensor) -> Packed:
    """A float32 matrix [N, K] for the int8 product."""
    levels, scale = to_int8(matrix)
    levels = _pad(levels, LANES)
    n, k = levels.shape
    blocks = levels.view(n // BLOCK, BLOCK, k // 4, 4).permute(0, 2, 1, 3).contiguous()
    shift = np.zeros(n, dtype=np.int32)
    shift[:] = levels.sum(dim=1, dtype=torch.int32).numpy() * 128
    scales = np.zeros(n, dtype=np.float32)
    scales[: scale.shape[0]] = scale.numpy()
    return Packed(blocks.numpy(), scales, shift)


def to_int4(matrix: torch.Tensor, importance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round [N, K] float32 to 4 bits: the integers that they stand for, int8 [N, K], and the scale [N] of one.

    `importance` [K]: mean square of each input, positive.
    """
    found = _fit(matrix, importance)
    return torch.from_numpy(found.levels[: matrix.shape[0], : matrix.shape[1]]), torch.from_numpy(
        found.scale[: matrix.shape[0]]
    )


def pack_int4(matrix: torch.Tensor, importance: torch.Tensor | None = None) -> Packed:
    """A float32 matrix [N, K] for the product with 4-bit weights; `importance` as in `to_int4`, None for all alike."""
    found = _fit(matrix, torch.ones(matrix.shape[1]) if importance is None else importance)
    n, k = found.nibbles.shape
    groups = k // GROUP
    halves = found.nibbles.reshape(n // BLOCK, 2, BLOCK // 2, groups, GROUP // 4, 4).transpose(1, 0, 3, 4, 2, 5)
    weight = np.empty((n // BLOCK, groups, GROUP_BYTES), dtype=np.uint8)
    weight[:, :, :BLOCK] = found.multipliers.reshape(n // BLOCK, BLOCK, groups).swapaxes(1, 2)
    weight[:, :, BLOCK:HEADER] = found.zeros.astype(np.uint8).reshape(n // BLOCK, BLOCK, groups).swapaxes(1, 2)
    weight[:, :, HEADER:] = (halves[0] | halves[1] << 4).reshape(n // BLOCK, groups, -1)
    return Packed(weight, found.scale, 128 * found.levels.sum(axis=1, dtype=np.int32))


def _fit(matrix: torch.Tensor, importance: torch.Tensor) -> Nibbles:
    """`fit` of the matrix with zeros around it."""
    full = _pad(matrix, GROUP)
    around = torch.ones(full.shape[1])
    around[: importance.shape[0]] = importance
    return fit(full.numpy(), around.numpy(), torch.get_num_threads())


def pack_float32(matrix: torch.Tensor) -> Packed:
    """A float32 matrix [N, K] for the float32 product."""
    full = _pad(matrix, LANES)
    n, k = full.shape
    blocks = full.view(n // BLOCK, BLOCK, k).permute(0, 2, 1).contiguous()
    return Packed(blocks.numpy(), np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.int32))


def interleave(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Gate and up [F, K] as one matrix whose blocks of 32 rows alternate; F is padded to 32 with zero rows."""
    rows = padded(gate.shape[0], BLOCK)
    both = torch.zeros(2, rows, gate.shape[1], dtype=gate.dtype)
    both[0, : gate.shape[0]], both[1, : up.shape[0]] = gate, up
    return both.view(2, rows // BLOCK, BLOCK, -1).transpose(0, 1).reshape(2 * rows, -1)


def _pad(matrix: torch.Tensor, inputs: int) -> torch.Tensor:
    """The matrix with zeros below and beside it, K padded to a multiple of `inputs`."""
    n, k = matrix.shape
    out = torch.zeros(padded(n, BLOCK), padded(k, inputs), dtype=matrix.dtype)
    out[:n, :k] = matrix
    return out
