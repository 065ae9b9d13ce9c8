"""The parts of a layer, compiled. Each thread of the crew calls each of them; barriers stand between them.

A node's numbers depend on its own text alone: rows of a product are independent, attention visits the node's text in
position order on a fixed grid of 16 lanes, and every sum has one order. That is what makes a node's logits
bit-identical however many nodes are scored with it (docs/design/0003-exact-forward.md).
"""

from __future__ import annotations

import numba as nb
import numpy as np

from betoken.models.native import emit
from betoken.models.native.adapters import shrink_node, widen
from betoken.models.native.emit import BLOCK, LANES, TILE, pointer
from betoken.models.native.rounding import ROUND, quantise_row
from betoken.models.native.sums import block_product
from betoken.models.native.views import compiled, floats, integers

F = np.float32
_HALF, _ONE, _ZERO = F(0.5), F(1.0), F(0.0)
_LOG2E, _LN2_HIGH, _LN2_LOW = F(1.44269504088896341), F(0.693359375), F(-2.12194440e-4)
_C5, _C4, _C3 = F(1.9875691500e-4), F(1.3981999507e-3), F(8.3334519073e-3)
_C2, _C1, _C0 = F(4.1665795894e-2), F(1.6666665459e-1), F(5.0000001201e-1)
_LEAST, _MOST = F(-87.0), F(88.0)
_LEAST_HALF = F(2.0**-24)
_STREAM = 1 << 18  # bytes of weights


@compiled
def float_of_half(bits):  # type: ignore[no-untyped-def]
    """The float32 of a finite float16, given as its bits."""
    low = np.int32(bits & 0x7FFF)
    normal = emit.float_of_bits(np.int32((low << 13) + (112 << 23)))
    magnitude = normal if low >= 0x400 else F(low) * _LEAST_HALF
    return -magnitude if bits & 0x8000 else magnitude


@compiled
def embed_rows(model, run, thread):  # type: ignore[no-untyped-def]
    """What each node reads into the residual stream: its token's embedding, or an auxiliary node's own vector."""
    tokens, width = integers(run.tokens, run.nodes), model.hidden
    places = integers(run.auxiliary_at, run.nodes)
    for node in range(thread, run.nodes, run.threads):
        to = floats(run.x + node * model.hidden_padded * 4, width)
        if places[node] >= 0:
            to[:] = floats(run.vectors + places[node] * width * 4, width)
        elif model.half:
            halves = nb.carray(pointer(model.embeddings + tokens[node] * width * 2), width, np.uint16)
            for i in range(width):
                to[i] = float_of_half(halves[i])
        else:
            to[:] = floats(model.embeddings + tokens[node] * width * 4, width)


@compiled
def exp32(x):  # type: ignore[no-untyped-def]
    """exp in float32 by a polynomial (Cephes' coefficients), a zero below -87; the same bits in any lane."""
    bounded = min(max(x, _LEAST), _MOST)
    whole = (bounded * _LOG2E + ROUND) - ROUND
    r = (bounded - whole * _LN2_HIGH) - whole * _LN2_LOW
    p = ((((_C5 * r + _C4) * r + _C3) * r + _C2) * r + _C1) * r + _C0
    value = (p * (r * r) + r) + _ONE
    power = emit.float_of_bits(np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)))
    return value * power if x >= _LEAST else _ZERO


@compiled
def normalise_row(source, weight, width, padded, eps, target):  # type: ignore[no-untyped-def]
    """RMSNorm of one row of `width` float32, zero-padded to `padded`."""
    x, w, out = floats(source, padded), floats(weight, width), floats(target, padded)
    mean = emit.sum_squares(source, padded // LANES) / F(width)
    inverse = _ONE / np.sqrt(mean + eps)
    for i in range(width):
        out[i] = (x[i] * inverse) * w[i]
    for i in range(width, padded):
        out[i] = _ZERO


@compiled
def norm_rows(model, run, thread, weight, product):  # type: ignore[no-untyped-def]
    """Norm of each node's residual into `wide`, made ready for a product."""
    for node in range(thread, run.nodes, run.threads):
        out = run.wide + node * run.wide_stride
        source = run.x + node * model.hidden_padded * 4
        normalise_row(source, weight, model.hidden, model.hidden_padded, model.rms_eps, out)
        quantise_node(model, run, node, out, model.hidden_padded)
        shrink_node(model, run, node, out, product)


@compiled
def quantise_node(model, run, node, source, width):  # type: ignore[no-untyped-def]
    """Quantise one node's input of an int8 product; float32 products read it as it is."""
    if model.int8:
        scales = floats(run.row_scale, run.nodes)
        scales[node] = quantise_row(source, width, run.quantised + node * run.quantised_stride, model.offset)


@compiled
def prepare_rows(model, run, thread, source, stride, width, product):  # type: ignore[no-untyped-def]
    """Make every node's input ready for a product."""
    for node in range(thread, run.nodes, run.threads):
        quantise_node(model, run, node, source + node * stride, width)
        shrink_node(model, run, node, source + node * stride, product)


@compiled
def take(run, phase, chunk):  # type: ignore[no-untyped-def]
    """The next chunk of a phase's work that no thread has taken."""
    return emit.fetch_add(run.counters + phase * 64, chunk)


@compiled
def chunk_of(run, blocks, inputs):  # type: ignore[no-untyped-def]
    """How many channel blocks a thread takes at once.

    Long enough runs of memory to stream, short enough that threads finish together even when one is slowed.
    """
    return max(1, min(blocks // (run.threads * 3), _STREAM // (inputs * BLOCK)))


STORE, ADD = 0, 1


@compiled
def product_rows(model, run, thread, phase, product, x, stride, scales, nodes, out, out_stride, mode):  # type: ignore[no-untyped-def]
    """`nodes` rows times a product's weights into `out`, or added to it."""
    scratch, matrix = run.scratch + thread * run.scratch_stride, product.matrix
    blocks = (matrix.outputs + BLOCK - 1) // BLOCK
    chunk = chunk_of(run, blocks, matrix.inputs)
    tile = floats(scratch, TILE * BLOCK)
    first = take(run, phase, chunk)
    while first < blocks:
        for block in range(first, min(first + chunk, blocks)):
            width = min(BLOCK, matrix.outputs - block * BLOCK)
            for begin in range(0, nodes, TILE):
                rows = min(TILE, nodes - begin)
                block_product(model, matrix, x + begin * stride, stride, scales + begin * 4, rows, block, scratch)
                widen(model, run, product, block, begin, rows, scratch, scratch + TILE * BLOCK * 4)
                for row in range(rows):
                    to = floats(out + (begin + row) * out_stride + block * BLOCK * 4, width)
                    if mode == ADD:
                        for channel in range(width):
                            to[channel] += tile[row * BLOCK + channel]
                    else:
                        for channel in range(width):
                            to[channel] = tile[row * BLOCK + channel]
        first = take(run, phase, chunk)


@compiled
def gate_up_rows(model, run, thread, phase, product, x, stride, out, out_stride):  # type: ignore[no-untyped-def]
    """silu(gate) * up into `out` [nodes, ffn]; the product's blocks are gate, up, gate, up, ..."""
    scratch, matrix = run.scratch + thread * run.scratch_stride, product.matrix
    blocks = matrix.outputs // (2 * BLOCK)
    chunk = chunk_of(run, blocks, matrix.inputs)
    second, third = scratch + TILE * BLOCK * 4, scratch + 2 * TILE * BLOCK * 4
    gate, up = floats(scratch, TILE * BLOCK), floats(second, TILE * BLOCK)
    first = take(run, phase, chunk)
    while first < blocks:
        for block in range(first, min(first + chunk, blocks)):
            for begin in range(0, run.nodes, TILE):
                rows = min(TILE, run.nodes - begin)
                where, scales = x + begin * stride, run.row_scale + begin * 4
                block_product(model, matrix, where, stride, scales, rows, 2 * block, scratch)
                block_product(model, matrix, where, stride, scales, rows, 2 * block + 1, second)
                widen(model, run, product, 2 * block, begin, rows, scratch, third)
                widen(model, run, product, 2 * block + 1, begin, rows, second, third)
                for row in range(rows):
                    to = floats(out + (begin + row) * out_stride + block * BLOCK * 4, BLOCK)
                    for channel in range(BLOCK):
                        g = gate[row * BLOCK + channel]
                        to[channel] = (g / (_ONE + exp32(-g))) * up[row * BLOCK + channel]
        first = take(run, phase, chunk)
