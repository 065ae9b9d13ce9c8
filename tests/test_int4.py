"""Weights of 4 bits: exact products of what they stand for, and a rounding that beats the plain one."""

from __future__ import annotations

import numba as nb
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from betoken.models.native.image import in_memory
from betoken.models.native.isa import isa
from betoken.models.native.nibbles import GROUP_BYTES, int4_tile
from betoken.models.native.pack import pack_int4, to_int4

pytestmark = pytest.mark.skipif(isa() == "none", reason="this processor has no native kernels")


def matrix(seed: int, rows: int, inputs: int) -> torch.Tensor:
    """Rows of different sizes, an outlier, a row and a group of zeros, a constant group."""
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(rows, inputs)) * np.exp(rng.normal(size=(rows, 1)))
    found[rng.integers(rows), rng.integers(inputs)] *= 30
    found[rng.integers(rows)] = 0
    found[rng.integers(rows), :32] = 0
    found[rng.integers(rows), :32] = 0.7
    return torch.from_numpy(found.astype(np.float32))


def unpacked(weight: NDArray[np.generic]) -> NDArray[np.int64]:
    """[N, K] integers of packed blocks [N/32, K/32, 576], byte by byte as nibbles.py lays them out."""
    blocks, groups, _ = weight.shape
    out = np.zeros((blocks * 32, groups * 32), dtype=np.int64)
    for block, group, channel, place in np.ndindex(blocks, groups, 32, 32):
        unit = weight[block, group].astype(int)
        byte = unit[64 + (place // 4) * 64 + (channel % 16) * 4 + place % 4]
        nibble = byte >> 4 if channel >= 16 else byte & 15
        level = (nibble * unit[channel] - unit[32 + channel]) % 256
        out[block * 32 + channel, group * 32 + place] = level - 256 if level > 127 else level
    return out


@pytest.mark.parametrize("vnni", [False, True])
@pytest.mark.parametrize("rows", range(1, 9))
def test_products_are_exact_integers_on_both_instruction_sets(rows: int, vnni: bool) -> None:
    if vnni and isa() != "vnni":
        pytest.skip("this processor has no AVX-512 VNNI")
    tile = int4_tile(rows, vnni)

    @nb.njit
    def run(x, stride, w, groups, out):  # type: ignore[no-untyped-def]
        tile(x, stride, w, groups, out)

    packed = pack_int4(matrix(rows, 32, 90))
    weights = in_memory([("w", packed.weight)])["w"]
    rng = np.random.default_rng(rows)
    x = rng.choice([-127, 127, 5, 0, -1], (rows, 96)).astype(np.int64)
    stored = (x + (128 if vnni else 0)).astype(np.uint8)
    out = np.zeros((rows, 32), dtype=np.int32)
    run(stored.ctypes.data, 96, weights.ctypes.data, 3, out.ctypes.data)
    np.testing.assert_array_equal(out - (packed.shift if vnni else 0), x @ unpacked(packed.weight).T)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(32, 70))
def test_blocks_stand_for_the_levels(seed: int, rows: int, inputs: int) -> None:
    weights = matrix(seed, rows, inputs)
    packed, (levels, scale) = pack_int4(weights), to_int4(weights, torch.ones(inputs))
    assert packed.weight.shape == (-(-rows // 32), -(-inputs // 32), GROUP_BYTES)
    integers = unpacked(packed.weight)
    assert np.abs(integers).max() <= 127, "-128 has no counterpart, and AVX2 negates"
    np.testing.assert_array_equal(integers[:rows, :inputs], levels.numpy())
    assert not integers[rows:].any()
    np.testing.assert_array_equal(packed.shift, 128 * integers.sum(axis=1))
    np.testing.assert_array_equal(packed.scale[:rows], scale.numpy())


def error(weights: torch.Tensor, importance: torch.Tensor) -> float:
    """Weighted squared error of the rounding, as a share of the weighted squares."""
    levels, scale = to_int4(weights, importance)
    difference = (levels.float() * scale[:, None] - weights).square()
    return float((difference * importance).sum() / (weights.square() * importance).sum())


def plain_error(weights: torch.Tensor) -> float:
    """The same of 16 float steps between a group's least and greatest weight, which needs 32 bits a group more."""
    groups = weights.view(weights.shape[0], -1, 32)
    low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    step = (high - low) / 15
    return float((torch.round((groups - low) / step) * step + low - groups).square().sum() / groups.square().sum())


@pytest.mark.parametrize("law", ["normal", "laplace", "uniform"])
def test_the_rounding_is_no_worse_than_the_plain_one_of_float_steps(law: str) -> None:
    rng = np.random.default_rng(0)
    weights = torch.from_numpy(getattr(rng, law)(-1, 1, (128, 512)).astype(np.float32))
    assert error(weights, torch.ones(512)) < 1.02 * plain_error(weights)


def test_weights_that_had_4_bits_before_keep_most_of_their_grid() -> None:
    rng = np.random.default_rng(0)
    step = rng.uniform(0.5, 1.5, (128, 8, 1))
    grid = step * rng.integers(0, 16, (128, 8, 32)) - step * rng.uniform(6, 9, (128, 8, 1))
    weights = torch.from_numpy(grid.astype(np.float32)).reshape(128, 256)
    fresh = float((step**2 / 12).mean() / np.square(grid).mean())
    assert error(weights, torch.ones(256)) < fresh / 5


def test_errors_go_where_inputs_are_small() -> None:
    weights = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    importance = torch.ones(256)
    importance[::8] = 100.0
    (alike, _), (levels, scale) = to_int4(weights, torch.ones(256)), to_int4(weights, importance)
    scale_alike = to_int4(weights, torch.ones(256))[1]

    def important(integers: torch.Tensor, size: torch.Tensor) -> float:
        return float((integers.float() * size[:, None] - weights)[:, ::8].square().sum())

    assert important(levels, scale) < 0.7 * important(alike, scale_alike)


def test_threads_change_nothing() -> None:
    from betoken.models.native.fit4 import fit

    weights, importance = matrix(3, 200, 96).numpy(), np.ones(96, dtype=np.float32)
    for one, other in zip(fit(weights, importance, 1), fit(weights, importance, 3), strict=True):
        np.testing.assert_array_equal(one, other)
