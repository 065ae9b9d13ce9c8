"""Inputs of integer products, compiled."""

from __future__ import annotations

import numba as nb
import numpy as np

from betoken.models.native import emit
from betoken.models.native.emit import LANES, pointer
from betoken.models.native.nibbles import GROUP
from betoken.models.native.views import compiled, floats

F = np.float32
_ZERO, _LEVELS = F(0.0), F(127.0)
ROUND = F(12582912.0)
"""1.5 * 2**23: adding and subtracting it rounds to the nearest integer, halves to even."""


@compiled
def quantise_row(source, width, target, offset):  # type: ignore[no-untyped-def]
    """Round `width` float32 to 127 levels a side; bytes are level + offset. Returns the size of one level.

    Zeros follow up to a whole group of inputs: weights of 4 bits may not be zero there.
    """
    x, whole = floats(source, width), (width + GROUP - 1) // GROUP * GROUP
    out = nb.carray(pointer(target), whole, np.uint8)
    largest = emit.max_abs(source, width // LANES)
    inverse = _LEVELS / largest if largest > _ZERO else _ZERO
    shift = np.int32(offset)
    for i in range(width):
        out[i] = np.uint8(np.int32((x[i] * inverse + ROUND) - ROUND) + shift)
    for i in range(width, whole):
        out[i] = np.uint8(shift)
    return largest / _LEVELS
