"""Integer products on AVX2, without VNNI: the same sums in more steps and with half as many registers.

A tile of 8 rows needs 32 registers of sums, twice what AVX2 has. So rows go two by two over a channel block, in pieces
of inputs that stay in the first cache for all of them, and add to sums in memory.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from betoken.models.native.emit import (
    ADDRESS,
    I8,
    I32,
    I64,
    LANES,
    V16I,
    Builder,
    Value,
    at,
    call,
    int8_step,
    loop,
    put,
    splat,
)

PIECE = 384
"""Turns of four inputs that all rows share before the next ones: 48 kB of weights."""

_V32B, _V8I, _V16S = ir.VectorType(I8, 32), ir.VectorType(I32, 8), ir.VectorType(ir.IntType(16), 16)


def dot4_avx2(b: Builder, total: Value, inputs: Value, weights: Value) -> Value:
    """The same sums on AVX2 from signed inputs: |x| * (w with the sign of x) cannot saturate (2 * 127 * 127)."""
    x = b.bitcast(splat(b, inputs, _V8I), _V32B)
    magnitude = call(b, "llvm.abs.v32i8", _V32B, [x, ir.Constant(ir.IntType(1), 0)])
    ones = ir.Constant(_V16S, [ir.IntType(16)(1)] * 16)
    halves = []
    for half in range(2):
        lanes = ir.Constant(ir.VectorType(I32, 8), [I32(half * 8 + lane) for lane in range(8)])
        w = b.bitcast(b.shuffle_vector(weights, ir.Constant(V16I, ir.Undefined), lanes), _V32B)
        signed = call(b, "llvm.x86.avx2.psign.b", _V32B, [w, x])
        pairs = call(b, "llvm.x86.avx2.pmadd.ub.sw", _V16S, [magnitude, signed])
        halves.append(call(b, "llvm.x86.avx2.pmadd.wd", _V8I, [pairs, ones]))
    joined = b.shuffle_vector(
        halves[0], halves[1], ir.Constant(ir.VectorType(I32, LANES), [I32(lane) for lane in range(LANES)])
    )
    return b.add(total, joined)


def int8_added(rows: int) -> Any:
    """Adds `rows` inputs [K] times one channel block to sums [rows][32] int32.

    Arguments: inputs, bytes between two rows, weights, first turn of four inputs, end of the turns, sums.
    """

    @intrinsic
    def tile(typing: Any, x: Any, stride: Any, w: Any, begin: Any, end: Any, out: Any) -> Any:
        def generate(context: Any, b: Builder, signature: Any, arguments: Any) -> Value:
            x, stride, w, begin, end, out = arguments
            bases = [b.add(x, b.mul(stride, I64(row))) for row in range(rows)]

            def body(index: Value, sums: list[Value]) -> list[Value]:
                return int8_step(b, dot4_avx2, bases, w, index, sums)

            places = [b.add(out, I64(number * 4 * LANES)) for number in range(2 * rows)]
            before = [at(b, place, V16I, 4) for place in places]
            for place, value in zip(places, loop(b, begin, end, before, body), strict=True):
                put(b, value, place)
            return context.get_dummy_value()

        return types.void(ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS), generate

    return tile
