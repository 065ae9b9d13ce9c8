"""The product with 4-bit weights: bytes are made of nibbles on the way to the registers, then multiplied as int8.

GROUP = 32 inputs of a channel share a multiplier (0..17) and a zero; a weight is nibble * multiplier - zero, a signed
byte within 127 levels. So the sums are those of an int8 product with one scale per channel, exact in any order.

Layout (a channel block is BLOCK = 32 output channels):
    int4 weights   [N/32][K/32][GROUP_BYTES]: multipliers [32], zeros [32], then [8][16][4] bytes for eight times four
                   consecutive inputs of a channel; a low nibble is one of channel c, the high one of channel 16 + c.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from betoken.models.native.emit import (
    BLOCK,
    I8,
    I32,
    I64,
    LANES,
    V16I,
    Builder,
    Value,
    at,
    dot4_avx2,
    dot4_vnni,
    integer_tile,
    offset,
    prefetch,
    zero,
)

GROUP = 32
HEADER = 2 * BLOCK
"""Bytes of a group's multipliers and zeros."""
GROUP_BYTES = HEADER + GROUP * BLOCK // 2
MOST = 17
"""Largest multiplier: 15 * 17 still fits a byte, so that one 16-bit multiplication serves two nibbles."""

_AHEAD = 4 * GROUP_BYTES
"""How far ahead weights are asked for: with 8 rows a byte is used too slowly for the processor to do it alone."""
_LINE = 64

_V16B, _V64B, _V32S = ir.VectorType(I8, 16), ir.VectorType(I8, 64), ir.VectorType(ir.IntType(16), 32)
_NIBBLES = ir.Constant(_V64B, [I8(15)] * 64)
_FOUR = ir.Constant(_V32S, [ir.IntType(16)(4)] * 32)


def _spread(b: Builder, address: Value, pattern: tuple[int, int, int, int]) -> Value:
    """16 bytes, one a lane, at the places of the lane's four bytes where `pattern` is 0; zeros elsewhere."""
    picks = [I32(lane if place == 0 else 16) for lane in range(LANES) for place in pattern]
    return b.shuffle_vector(at(b, address, _V16B, 16), zero(_V16B), ir.Constant(ir.VectorType(I32, 64), picks))


def _bytes_of(b: Builder, nibbles: Value, multipliers: Value, zeros: Value) -> Value:
    """Weights [16][4] int8 of nibbles [16][4]: two of them, 256 apart, in one multiplication, which cannot carry."""
    product = b.mul(b.bitcast(nibbles, _V32S), multipliers)
    return b.bitcast(b.sub(b.bitcast(product, _V64B), zeros), V16I)


def int4_tile(rows: int, vnni: bool) -> Any:
    """The integer tile of 4-bit weights, in K/32 turns."""
    dot4 = dot4_vnni if vnni else dot4_avx2

    def step(b: Builder, bases: list[Value], w: Value, index: Value, sums: list[Value]) -> list[Value]:
        here = offset(b, w, index, GROUP_BYTES)
        for line in range(0, GROUP_BYTES, _LINE):
            prefetch(b, b.add(here, I64(_AHEAD + line)))
        halves = [b.add(here, I64(LANES * half)) for half in range(2)]
        multipliers = [b.bitcast(_spread(b, half, (0, 1, 0, 1)), _V32S) for half in halves]
        zeros = [_spread(b, b.add(half, I64(BLOCK)), (0, 0, 0, 0)) for half in halves]
        for quad in range(GROUP // 4):
            both = at(b, b.add(here, I64(HEADER + 64 * quad)), _V64B, 64)
            high = b.bitcast(b.lshr(b.bitcast(both, _V32S), _FOUR), _V64B)
            weights = [
                _bytes_of(b, b.and_(nibbles, _NIBBLES), multipliers[half], zeros[half])
                for half, nibbles in enumerate((both, high))
            ]
            new = []
            for row in range(rows):
                inputs = at(b, b.add(offset(b, bases[row], index, GROUP), I64(4 * quad)), I32, 4)
                new += [dot4(b, sums[2 * row + half], inputs, weights[half]) for half in range(2)]
            sums = new
        return sums

    return integer_tile(rows, step)
