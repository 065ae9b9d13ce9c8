"""Products of 1 to 8 rows with one block of 32 output channels, for each kind of weights, compiled."""

from __future__ import annotations

import numba as nb
import numpy as np

from betoken.models.native import emit
from betoken.models.native.emit import BLOCK, pointer
from betoken.models.native.isa import VNNI
from betoken.models.native.nibbles import GROUP_BYTES, int4_tile
from betoken.models.native.views import compiled, floats

F = np.float32
_ZERO = F(0.0)

_int8_1, _int8_2, _int8_3, _int8_4 = (emit.int8_tile(rows, VNNI) for rows in (1, 2, 3, 4))
_int8_5, _int8_6, _int8_7, _int8_8 = (emit.int8_tile(rows, VNNI) for rows in (5, 6, 7, 8))
_int4_1, _int4_2, _int4_3, _int4_4 = (int4_tile(rows, VNNI) for rows in (1, 2, 3, 4))
_int4_5, _int4_6, _int4_7, _int4_8 = (int4_tile(rows, VNNI) for rows in (5, 6, 7, 8))
_float_1, _float_2, _float_4, _float_8 = (emit.float_tile(rows) for rows in (1, 2, 4, 8))


@compiled
def int8_sums(x, stride, rows, weight, quads, out):  # type: ignore[no-untyped-def]
    """Sums [rows][32] int32 of one channel block for 1..8 rows."""
    if rows == 8:
        _int8_8(x, stride, weight, quads, out)
    elif rows == 1:
        _int8_1(x, stride, weight, quads, out)
    elif rows == 2:
        _int8_2(x, stride, weight, quads, out)
    elif rows == 3:
        _int8_3(x, stride, weight, quads, out)
    elif rows == 4:
        _int8_4(x, stride, weight, quads, out)
    elif rows == 5:
        _int8_5(x, stride, weight, quads, out)
    elif rows == 6:
        _int8_6(x, stride, weight, quads, out)
    else:
        _int8_7(x, stride, weight, quads, out)


@compiled
def int4_sums(x, stride, rows, weight, groups, out):  # type: ignore[no-untyped-def]
    """The same of 4-bit weights in `groups` groups."""
    if rows == 8:
        _int4_8(x, stride, weight, groups, out)
    elif rows == 1:
        _int4_1(x, stride, weight, groups, out)
    elif rows == 2:
        _int4_2(x, stride, weight, groups, out)
    elif rows == 3:
        _int4_3(x, stride, weight, groups, out)
    elif rows == 4:
        _int4_4(x, stride, weight, groups, out)
    elif rows == 5:
        _int4_5(x, stride, weight, groups, out)
    elif rows == 6:
        _int4_6(x, stride, weight, groups, out)
    else:
        _int4_7(x, stride, weight, groups, out)


@compiled
def float_sums(x, stride, rows, weight, inputs, out):  # type: ignore[no-untyped-def]
    """Sums [rows][32] float32 of one channel block for 1..8 rows, in pieces of FLOAT_SPLIT inputs."""
    sums = floats(out, rows * BLOCK)
    sums[:] = _ZERO
    for begin in range(0, inputs, emit.FLOAT_SPLIT):
        end = min(begin + emit.FLOAT_SPLIT, inputs)
        row = 0
        while row < rows:
            here, to, left = x + row * stride, out + row * BLOCK * 4, rows - row
            if left >= 8:
                _float_8(here, stride, weight, begin, end, to)
                row += 8
            elif left >= 4:
                _float_4(here, stride, weight, begin, end, to)
                row += 4
            elif left >= 2:
                _float_2(here, stride, weight, begin, end, to)
                row += 2
            else:
                _float_1(here, stride, weight, begin, end, to)
                row += 1


@compiled
def block_product(model, matrix, x, stride, scales, rows, block, scratch):  # type: ignore[no-untyped-def]
    """Outputs [rows][32] float32 of one channel block, bias included, at `scratch`."""
    if matrix.groups:
        int4_sums(x, stride, rows, matrix.weight + block * matrix.groups * GROUP_BYTES, matrix.groups, scratch)
    elif model.int8:
        int8_sums(x, stride, rows, matrix.weight + block * matrix.inputs * BLOCK, matrix.inputs // 4, scratch)
    else:
        float_sums(x, stride, rows, matrix.weight + block * matrix.inputs * BLOCK * 4, matrix.inputs, scratch)
    out = floats(scratch, rows * BLOCK)
    if model.int8:
        sums = nb.carray(pointer(scratch), rows * BLOCK, np.int32)
        row_scale = floats(scales, rows)
        scale = floats(matrix.scale + block * BLOCK * 4, BLOCK)
        shift = nb.carray(pointer(matrix.shift + block * BLOCK * 4), BLOCK, np.int32)
        for row in range(rows):
            s = row_scale[row]
            for channel in range(BLOCK):
                total = np.int32(sums[row * BLOCK + channel] - shift[channel])
                out[row * BLOCK + channel] = (F(total) * s) * scale[channel]
    if matrix.bias:
        bias = floats(matrix.bias + block * BLOCK * 4, BLOCK)
        for row in range(rows):
            for channel in range(BLOCK):
                out[row * BLOCK + channel] += bias[channel]
