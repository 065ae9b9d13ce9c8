"""Inner loops that numba cannot express, written as LLVM IR through numba's `intrinsic`.

Each works on raw addresses. Sums run in a fixed order that does not depend on how many rows share the pass, and
products are multiplied and added in two roundings (never fused), so that plain numpy can repeat every bit
(tests/native_reference.py).

Layouts (a lane block is LANES = 16 values; a channel block is BLOCK = 32 output channels):
    int8 weights      [N/32][K/4][32][4]   four consecutive inputs of one channel side by side
    float32 weights   [N/32][K][32]
    keys              [positions/16][head_dim][16]
    values            [positions][head_dim]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
BLOCK = 32
TILE = 8
"""Most rows that one pass over a channel block serves: two vectors of sums a row must fit the registers."""
FLOAT_SPLIT = 128
"""Inputs after which a float32 product adds its running sum to the total: shorter chains round less."""

I8, I32, I64, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
V16I, V16F = ir.VectorType(I32, LANES), ir.VectorType(F32, LANES)
V32B, V8I, V16S = ir.VectorType(I8, 32), ir.VectorType(I32, 8), ir.VectorType(ir.IntType(16), 16)

Builder = Any
Value = Any
ADDRESS = types.intp


def at(b: Builder, address: Value, kind: ir.Type, align: int) -> Value:
    """Load a value of `kind` from an address."""
    value = b.load(b.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def put(b: Builder, value: Value, address: Value, align: int = 4) -> None:
    """Store a value at an address."""
    b.store(value, b.inttoptr(address, value.type.as_pointer())).align = align


def splat(b: Builder, scalar: Value, kind: ir.VectorType) -> Value:
    """A vector whose lanes are all `scalar`."""
    blank = ir.Constant(kind, ir.Undefined)
    one = b.insert_element(blank, scalar, I32(0))
    return b.shuffle_vector(one, blank, ir.Constant(ir.VectorType(I32, kind.count), [I32(0)] * kind.count))


def zero(kind: ir.Type) -> Value:
    """The zero of a type."""
    return ir.Constant(kind, None)


def offset(b: Builder, base: Value, index: Value, stride: int) -> Value:
    """base + index * stride."""
    return b.add(base, b.mul(index, I64(stride)))


def loop(b: Builder, begin: Value, end: Value, carried: list[Value], body: Callable[..., list[Value]]) -> list[Value]:
    """`for i in range(begin, end)` with carried values; runs at least once. Returns the last carried values."""
    entry = b.block
    head, done = b.append_basic_block("loop"), b.append_basic_block("done")
    b.branch(head)
    b.position_at_end(head)
    index = b.phi(I64)
    index.add_incoming(begin, entry)
    phis = []
    for value in carried:
        phi = b.phi(value.type)
        phi.add_incoming(value, entry)
        phis.append(phi)
    new = body(index, phis)
    following = b.add(index, I64(1))
    index.add_incoming(following, b.block)
    for phi, value in zip(phis, new, strict=True):
        phi.add_incoming(value, b.block)
    b.cbranch(b.icmp_signed("<", following, end), head, done)
    b.position_at_end(done)
    return new


def _call(b: Builder, name: str, result: ir.Type, arguments: list[Value]) -> Value:
    kind = ir.FunctionType(result, [value.type for value in arguments])
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), arguments)


def prefetch(b: Builder, address: Value) -> None:
    """Ask for a cache line that will be read; the address need not be valid."""
    where = b.inttoptr(address, I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [where.type, I32, I32, I32])
    read, keep, data = I32(0), I32(3), I32(1)
    b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0"), [where, read, keep, data])


def dot4_vnni(b: Builder, total: Value, inputs: Value, weights: Value) -> Value:
    """total[16] + sums of four products; `inputs` unsigned bytes (the value + 128) broadcast, `weights` signed."""
    return _call(b, "llvm.x86.avx512.vpdpbusd.512", V16I, [total, splat(b, inputs, V16I), weights])


def dot4_avx2(b: Builder, total: Value, inputs: Value, weights: Value) -> Value:
    """The same sums on AVX2 from signed inputs: |x| * (w with the sign of x) cannot saturate (2 * 127 * 127)."""
    x = b.bitcast(splat(b, inputs, V8I), V32B)
    magnitude = _call(b, "llvm.abs.v32i8", V32B, [x, ir.Constant(ir.IntType(1), 0)])
    ones = ir.Constant(V16S, [ir.IntType(16)(1)] * 16)
    halves = []
    for half in range(2):
        lanes = ir.Constant(ir.VectorType(I32, 8), [I32(half * 8 + lane) for lane in range(8)])
        w = b.bitcast(b.shuffle_vector(weights, ir.Constant(V16I, ir.Undefined), lanes), V32B)
        signed = _call(b, "llvm.x86.avx2.psign.b", V32B, [w, x])
        pairs = _call(b, "llvm.x86.avx2.pmadd.ub.sw", V16S, [magnitude, signed])
        halves.append(_call(b, "llvm.x86.avx2.pmadd.wd", V8I, [pairs, ones]))
    joined = b.shuffle_vector(
        halves[0], halves[1], ir.Constant(ir.VectorType(I32, LANES), [I32(lane) for lane in range(LANES)])
    )
    return b.add(total, joined)


Step = Callable[[Builder, list[Value], Value, Value, list[Value]], list[Value]]
"""Emits one turn of an integer product: addresses of the inputs and of the weights, the turn, sums -> sums."""


def integer_tile(rows: int, step: Step) -> Any:
    """`rows` activations [K] times one channel block: sums [rows][32] int32 (inputs, stride, weights, turns, out)."""

    @intrinsic
    def tile(typing: Any, x: Any, stride: Any, w: Any, turns: Any, out: Any) -> Any:
        def generate(context: Any, b: Builder, signature: Any, arguments: Any) -> Value:
            x, stride, w, turns, out = arguments
            bases = [b.add(x, b.mul(stride, I64(row))) for row in range(rows)]

            def body(index: Value, sums: list[Value]) -> list[Value]:
                return step(b, bases, w, index, sums)

            sums = loop(b, I64(0), turns, [zero(V16I)] * (2 * rows), body)
            for number, value in enumerate(sums):
                put(b, value, b.add(out, I64(number * 4 * LANES)))
            return context.get_dummy_value()

        return types.void(ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS), generate

    return tile


def int8_tile(rows: int, vnni: bool) -> Any:
    """The integer tile of 8-bit weights, in K/4 turns."""
    dot4 = dot4_vnni if vnni else dot4_avx2

    def step(b: Builder, bases: list[Value], w: Value, index: Value, sums: list[Value]) -> list[Value]:
        here = offset(b, w, index, 4 * BLOCK)
        weights = [at(b, b.add(here, I64(64 * half)), V16I, 64) for half in range(2)]
        new = []
        for row in range(rows):
            inputs = at(b, offset(b, bases[row], index, 4), I32, 4)
            new += [dot4(b, sums[2 * row + half], inputs, weights[half]) for half in range(2)]
        return new

    return integer_tile(rows, step)


def float_tile(rows: int) -> Any:
    """Adds `rows` inputs [K] times one channel block to totals [rows][32] float32, for inputs begin..end."""

    @intrinsic
    def tile(typing: Any, x: Any, stride: Any, w: Any, begin: Any, end: Any, out: Any) -> Any:
        def generate(context: Any, b: Builder, signature: Any, arguments: Any) -> Value:
            x, stride, w, begin, end, out = arguments
            bases = [b.add(x, b.mul(stride, I64(row))) for row in range(rows)]

            def body(index: Value, sums: list[Value]) -> list[Value]:
                here = offset(b, w, index, 4 * BLOCK)
                weights = [at(b, b.add(here, I64(64 * half)), V16F, 64) for half in range(2)]
                new = []
                for row in range(rows):
                    inputs = splat(b, at(b, offset(b, bases[row], index, 4), F32, 4), V16F)
                    new += [b.fadd(sums[2 * row + half], b.fmul(inputs, weights[half])) for half in range(2)]
                return new

            sums = loop(b, begin, end, [zero(V16F)] * (2 * rows), body)
            for number, value in enumerate(sums):
                where = b.add(out, I64(number * 4 * LANES))
                put(b, b.fadd(at(b, where, V16F, 4), value), where)
            return context.get_dummy_value()

        return types.void(ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS), generate

    return tile


def key_scores(heads: int) -> Any:
    """Queries [heads][D] of one group against 16 keys [D][16]: scores [heads][.] float32 (even inputs + odd ones).

    Arguments: queries, bytes between two heads' queries, keys, D/2, out, bytes between two heads' scores.
    """

    @intrinsic
    def block(typing: Any, q: Any, q_stride: Any, k: Any, pairs: Any, out: Any, out_stride: Any) -> Any:
        def generate(context: Any, b: Builder, signature: Any, arguments: Any) -> Value:
            q, q_stride, k, pairs, out, out_stride = arguments
            bases = [b.add(q, b.mul(q_stride, I64(head))) for head in range(heads)]

            def body(index: Value, sums: list[Value]) -> list[Value]:
                here = offset(b, k, index, 8 * LANES)
                keys = [at(b, b.add(here, I64(4 * LANES * odd)), V16F, 64) for odd in range(2)]
                new = []
                for head in range(heads):
                    where = offset(b, bases[head], index, 8)
                    for odd in range(2):
                        one = splat(b, at(b, b.add(where, I64(4 * odd)), F32, 4), V16F)
                        new.append(b.fadd(sums[2 * head + odd], b.fmul(one, keys[odd])))
                return new

            sums = loop(b, I64(0), pairs, [zero(V16F)] * (2 * heads), body)
            for head in range(heads):
                both = b.fadd(sums[2 * head], sums[2 * head + 1])
                put(b, both, b.add(out, b.mul(out_stride, I64(head))))
            return context.get_dummy_value()

        return types.void(ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS), generate

    return block


def value_sums(lanes: int) -> Any:
    """Adds weights [keys] times values [keys][D] to sums [16 * lanes], key by key.

    Arguments: weights, values, bytes between two keys' values, number of keys, sums.
    """

    @intrinsic
    def block(typing: Any, p: Any, v: Any, stride: Any, keys: Any, out: Any) -> Any:
        def generate(context: Any, b: Builder, signature: Any, arguments: Any) -> Value:
            p, v, stride, keys, out = arguments
            sums = [at(b, b.add(out, I64(4 * LANES * lane)), V16F, 4) for lane in range(lanes)]

            def body(index: Value, sums: list[Value]) -> list[Value]:
                weight = splat(b, at(b, offset(b, p, index, 4), F32, 4), V16F)
                row = b.add(v, b.mul(index, stride))
                return [
                    b.fadd(total, b.fmul(weight, at(b, b.add(row, I64(4 * LANES * lane)), V16F, 4)))
                    for lane, total in enumerate(sums)
                ]

            for lane, total in enumerate(loop(b, I64(0), keys, sums, body)):
                put(b, total, b.add(out, I64(4 * LANES * lane)))
            return context.get_dummy_value()

        return types.void(ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS), generate

    return block


def _across(b: Builder, lanes: Value, join: Callable[[Value, Value], Value]) -> Value:
    """Reduce 16 lanes: halves with halves, in one fixed order."""
    width = LANES
    while width > 1:
        width //= 2
        blank = ir.Constant(lanes.type, ir.Undefined)
        picks = [[I32(first + lane) for lane in range(width)] for first in (0, width)]
        halves = [b.shuffle_vector(lanes, blank, ir.Constant(ir.VectorType(I32, width), pick)) for pick in picks]
        lanes = join(*halves)
    return b.extract_element(lanes, I32(0))


def _lane_sum(product: bool) -> Any:
    @intrinsic
    def total(typing: Any, x: Any, blocks: Any) -> Any:
        def generate(context: Any, b: Builder, signature: Any, arguments: Any) -> Value:
            x, blocks = arguments

            def body(index: Value, sums: list[Value]) -> list[Value]:
                value = at(b, offset(b, x, index, 4 * LANES), V16F, 4)
                return [b.fadd(sums[0], b.fmul(value, value) if product else value)]

            return _across(b, loop(b, I64(0), blocks, [zero(V16F)], body)[0], b.fadd)

        return types.float32(ADDRESS, ADDRESS), generate

    return total


sum_squares = _lane_sum(product=True)
"""Sum of squares of 16 * blocks floats: 16 lanes, then halves added to halves. Arguments: address, blocks >= 1."""
sum_plain = _lane_sum(product=False)
"""Sum of 16 * blocks floats in the same order."""


def _lane_max(magnitude: bool) -> Any:
    @intrinsic
    def largest(typing: Any, x: Any, blocks: Any) -> Any:
        def generate(context: Any, b: Builder, signature: Any, arguments: Any) -> Value:
            x, blocks = arguments

            def larger(left: Value, right: Value) -> Value:
                return b.select(b.fcmp_ordered(">", left, right), left, right)

            def body(index: Value, sums: list[Value]) -> list[Value]:
                value = at(b, offset(b, x, index, 4 * LANES), V16F, 4)
                return [larger(_call(b, "llvm.fabs.v16f32", V16F, [value]) if magnitude else value, sums[0])]

            least = zero(V16F) if magnitude else ir.Constant(V16F, [F32(float("-inf"))] * LANES)
            return _across(b, loop(b, I64(0), blocks, [least], body)[0], larger)

        return types.float32(ADDRESS, ADDRESS), generate

    return largest


max_abs = _lane_max(magnitude=True)
"""Largest magnitude of 16 * blocks floats. Arguments: address, blocks >= 1."""
max_plain = _lane_max(magnitude=False)
"""Largest of 16 * blocks floats."""


@intrinsic
def float_of_bits(typing: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def generate(context: Any, b: Builder, signature: Any, arguments: Any) -> Value:
        return b.bitcast(arguments[0], F32)

    return types.float32(types.int32), generate


@intrinsic
def fetch_add(typing: Any, address: Any, amount: Any) -> Any:
    """Atomically add to the int64 at an address; returns what stood there before."""

    def generate(context: Any, b: Builder, signature: Any, arguments: Any) -> Value:
        return b.atomic_rmw("add", b.inttoptr(arguments[0], I64.as_pointer()), arguments[1], "seq_cst")

    return types.int64(ADDRESS, types.int64), generate


@intrinsic
def load_atomic(typing: Any, address: Any) -> Any:
    """Atomically read the int64 at an address."""

    def generate(context: Any, b: Builder, signature: Any, arguments: Any) -> Value:
        return b.load_atomic(b.inttoptr(arguments[0], I64.as_pointer()), "seq_cst", 8)

    return types.int64(ADDRESS), generate


@intrinsic
def pause(typing: Any) -> Any:
    """Tell the core that this is a waiting loop."""

    def generate(context: Any, b: Builder, signature: Any, arguments: Any) -> Value:
        _call(b, "llvm.x86.sse2.pause", ir.VoidType(), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def sleep_us(typing: Any, microseconds: Any) -> Any:
    """Give the core to somebody else for at least this long (libc's usleep)."""

    def generate(context: Any, b: Builder, signature: Any, arguments: Any) -> Value:
        _call(b, "usleep", I32, [b.trunc(arguments[0], I32)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """An address as the pointer that `numba.carray` takes."""

    def generate(context: Any, b: Builder, signature: Any, arguments: Any) -> Value:
        return b.inttoptr(arguments[0], I8.as_pointer())

    return types.voidptr(ADDRESS), generate
