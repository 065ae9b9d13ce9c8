"""Rounds weights to 4 bits: a small multiplier and a zero per group of 32 inputs, one scale per output channel.

A weight becomes scale * (multiplier * nibble - zero); the bracket is an integer of at most 127 levels a side
(nibbles.py). First each group gets the grid of 16 float steps that fits it best, then the channel gets the scale whose
integer multiples come closest to all its groups' grids. Errors are squared and weighted with the mean square of the
input that a weight meets: to first order that is the error of the product. A model that was in 4 bits before keeps
most of its grid this way.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from betoken.models.native.nibbles import GROUP, MOST

F = np.float32
_STEPS = np.array([11, 12, 13, 14, 14.5, 15, 15.5, 16, 17], dtype=np.float32)
"""How many steps the range of a group is tried to have; where they are more than 15, its ends are cut off."""
_SCALES = np.array([0.8, 0.86, 0.92, 0.96, 1.0, 1.04, 1.08, 1.13, 1.18, 1.24, 1.3], dtype=np.float32)
"""Scales tried for a channel, as multiples of the least that reaches its widest group."""
_LEVELS = 127
_ROWS = 64
"""Channels that a thread takes at once."""

_fast = nb.njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"})


class Nibbles(NamedTuple):
    """A matrix [N, K] in 4 bits, K a multiple of 32."""

    nibbles: NDArray[np.uint8]
    """[N, K], 0..15"""
    multipliers: NDArray[np.uint8]
    """[N, K/32], 0..17"""
    zeros: NDArray[np.int16]
    """[N, K/32]"""
    scale: NDArray[np.float32]
    """[N]"""

    @property
    def levels(self) -> NDArray[np.int8]:
        """[N, K]: the int8 weights that they stand for."""
        n, k = self.nibbles.shape
        wide = self.nibbles.reshape(n, -1, GROUP).astype(np.int16)
        return (wide * self.multipliers[:, :, None] - self.zeros[:, :, None]).astype(np.int8).reshape(n, k)


def fit(matrix: NDArray[np.float32], importance: NDArray[np.float32], threads: int) -> Nibbles:
    """Round [N, K] to 4 bits, K a multiple of 32. `importance` [K]: mean square of each input, positive."""
    n, k = matrix.shape
    groups = k // GROUP
    out = Nibbles(
        np.zeros((n, k), np.uint8),
        np.zeros((n, groups), np.uint8),
        np.zeros((n, groups), np.int16),
        np.zeros(n, np.float32),
    )

    def part(begin: int) -> None:
        _fit_rows(matrix, importance, begin, min(begin + _ROWS, n), _STEPS, _SCALES, *out)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, range(0, n, _ROWS)))
    return out


@_fast
def _fit_rows(w, h, begin, end, steps, scales, nibbles, multipliers, zeros, scale):  # type: ignore[no-untyped-def]
    grids = np.empty((w.shape[1] // GROUP, 3), np.float32)
    for n in range(begin, end):
        largest = F(0)
        for i in range(w.shape[1]):
            largest = max(largest, abs(w[n, i]))
        if largest > F(0):
            for g in range(grids.shape[0]):
                _grid(w[n, g * GROUP : (g + 1) * GROUP], h[g * GROUP : (g + 1) * GROUP], steps, grids[g])
            chosen = _channel_scale(w[n], h, grids, largest, scales)
            scale[n] = _round_row(w[n], h, grids, chosen, nibbles[n], multipliers[n], zeros[n])


@_fast
def _grid(w, h, steps, grid):  # type: ignore[no-untyped-def]
    """Step, mean nibble and mean weight of the best float grid of a group [32] into `grid`."""
    low = high = w[0]
    for i in range(GROUP):
        low, high = min(low, w[i]), max(high, w[i])
    all_h = all_hw = all_hww = F(0)
    for i in range(GROUP):
        all_h += h[i]
        all_hw += h[i] * (w[i] - low)
        all_hww += h[i] * (w[i] - low) * (w[i] - low)
    grid[0], grid[1], grid[2] = F(0), F(0), low + all_hw / all_h
    least = F(np.inf)
    for t in range(steps.size):
        step = (high - low) / steps[t]
        if step <= F(0):
            return
        inverse, cut = F(1) / step, max(F(0), F(0.5) * (steps[t] - F(15)))
        hq = hqq = hqw = F(0)
        for i in range(GROUP):
            q = F(np.int32(min(max((w[i] - low) * inverse - cut, F(0)), F(15)) + F(0.5)))
            hq += h[i] * q
            hqq += h[i] * q * q
            hqw += h[i] * q * (w[i] - low)
        spread = all_h * hqq - hq * hq
        if spread > F(0):  # the least squares fit of these nibbles
            slope = (all_h * hqw - hq * all_hw) / spread
            error = all_hww - slope * hqw - (all_hw - slope * hq) / all_h * all_hw
            if error < least and slope > F(0):
                least = error
                grid[0], grid[1] = slope, hq / all_h


@_fast
def _channel_scale(w, h, grids, largest, scales):  # type: ignore[no-untyped-def]
    """The scale of a channel [K] with the least error."""
    pair = np.empty(2, np.int32)
    widest = F(0)
    for g in range(grids.shape[0]):
        widest = max(widest, grids[g, 0])
    least_scale = max(widest / F(MOST), largest / F(_LEVELS))
    least, chosen = F(np.inf), least_scale
    for s in range(scales.size):
        scale, error = least_scale * scales[s], F(0)
        for g in range(grids.shape[0]):
            here, weight = w[g * GROUP : (g + 1) * GROUP], h[g * GROUP : (g + 1) * GROUP]
            error += _best_pair(here, weight, scale, grids[g], 0, pair)
            if error >= least:
                break
        if error < least:
            least, chosen = error, scale
    return chosen


@_fast
def _best_pair(w, h, scale, grid, around, pair):  # type: ignore[no-untyped-def]
    """The best multiplier and zero near a group's float grid into `pair`. Returns the error.

    `around`: how many zeros are tried on either side of the one that keeps the mean.
    """
    least = F(np.inf)
    low = max(1, min(MOST, int(grid[0] / scale)))
    for multiplier in range(low, min(MOST, low + 1) + 1):
        middle = np.int32(np.floor(F(multiplier) * grid[1] - grid[2] / scale + F(0.5)))
        for zero in range(middle - around, middle + around + 1):
            bounded = max(-_LEVELS, min(zero, 15 * multiplier + _LEVELS))
            error = _error(w, h, scale, multiplier, bounded)
            if error < least:
                least = error
                pair[0], pair[1] = multiplier, bounded
    return least


@_fast
def _usable(multiplier, zero):  # type: ignore[no-untyped-def]
    """The least and greatest nibble whose level stays within 127 a side."""
    bottom = max(0, -((_LEVELS - zero) // multiplier))
    return F(bottom), F(min(15, (_LEVELS + zero) // multiplier))


@_fast
def _error(w, h, scale, multiplier, zero):  # type: ignore[no-untyped-def]
    """Weighted squared error of a group [32] on the grid scale * (multiplier * nibble - zero)."""
    bottom, top = _usable(multiplier, zero)
    step, base = scale * F(multiplier), scale * F(zero)
    inverse, shift = F(1) / step, F(zero) / F(multiplier)
    total = F(0)
    for i in range(GROUP):
        q = F(np.int32(min(max(w[i] * inverse + shift, bottom), top) + F(0.5)))
        difference = w[i] - (step * q - base)
        total += h[i] * difference * difference
    return total


@_fast
def _round_row(w, h, grids, scale, nibbles, multipliers, zeros):  # type: ignore[no-untyped-def]
    """Nibbles, multipliers and zeros of a channel [K]. Returns the scale that fits the integers best."""
    pair = np.empty(2, np.int32)
    along = squared = F(0)
    for g in range(grids.shape[0]):
        here, weight = w[g * GROUP : (g + 1) * GROUP], h[g * GROUP : (g + 1) * GROUP]
        _best_pair(here, weight, scale, grids[g], 2, pair)
        multiplier, zero = pair[0], pair[1]
        multipliers[g], zeros[g] = multiplier, zero
        bottom, top = _usable(multiplier, zero)
        inverse, shift = F(1) / (scale * F(multiplier)), F(zero) / F(multiplier)
        for i in range(GROUP):
            q = np.int32(min(max(here[i] * inverse + shift, bottom), top) + F(0.5))
            nibbles[g * GROUP + i] = q
            level = F(multiplier * q - zero)
            along += weight[i] * here[i] * level
            squared += weight[i] * level * level
    return along / squared if squared > F(0) else scale
