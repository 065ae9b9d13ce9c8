"""The matrix products of a forward pass alone, to time them: same weights, shapes, threads and order, no meaning.

What a pass takes longer than its products is what norms, rotary angles, attention, quantisation, the barriers between
them and Python cost.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from betoken.models.native import kernels
from betoken.models.native.crew import barrier
from betoken.models.native.emit import pointer
from betoken.models.native.forward import PHASES
from betoken.models.native.job import LAYER
from betoken.models.native.kernels import ADD, STORE
from betoken.models.native.target import NativeTarget
from betoken.models.native.views import compiled, integers


@compiled
def layer_products(model, run, thread, number, layer, control):  # type: ignore[no-untyped-def]
    """Those of one layer, each after a barrier."""
    phase, nodes, scales, stride = number * PHASES, run.nodes, run.row_scale, run.wide_stride
    x_stride = model.hidden_padded * 4
    if model.int8:
        given, given_stride, out = run.quantised, run.quantised_stride, run.wide
        attended, attended_stride, inner, inner_stride = given, given_stride, given, given_stride
    else:
        given, given_stride, out = run.wide, stride, run.wide + stride // 2
        attended, attended_stride, inner, inner_stride = run.attended, model.attn_padded * 4, out, stride
    kernels.product_rows(model, run, thread, phase, layer.qkv, given, given_stride, scales, nodes, out, stride, STORE)
    barrier(control, run.threads)
    kernels.product_rows(
        model, run, thread, phase + 2, layer.out, attended, attended_stride, scales, nodes, run.x, x_stride, ADD
    )
    barrier(control, run.threads)
    kernels.gate_up_rows(model, run, thread, phase + 3, layer.gate_up, given, given_stride, out, stride)
    barrier(control, run.threads)
    kernels.product_rows(
        model, run, thread, phase + 4, layer.down, inner, inner_stride, scales, nodes, run.x, x_stride, ADD
    )
    barrier(control, run.threads)


@compiled
def products_part(control, thread, models, runs):  # type: ignore[no-untyped-def]
    """What one thread does of them."""
    model, run = models[0], runs[0]
    count = model.num_layers
    layers = nb.carray(pointer(model.layers), count, LAYER)
    if thread == 0:
        integers(run.counters, (count * PHASES + 1) * 8)[:] = 0
    barrier(control, run.threads)
    for number in range(count):
        layer_products(model, run, thread, number, layers[number], control)
    if model.int8:
        given, stride = run.quantised, run.quantised_stride
    else:
        given, stride = run.wide, run.wide_stride
    width = model.head.matrix.outputs * 4
    phase = count * PHASES
    kernels.product_rows(
        model, run, thread, phase, model.head, given, stride, run.row_scale, run.wanted, run.logits, width, STORE
    )
    barrier(control, run.threads)


@compiled
def follow(control, thread, models, runs):  # type: ignore[no-untyped-def]
    """A worker's part of two rounds."""
    for _ in range(2):
        products_part(control, thread, models, runs)


class Timed(NamedTuple):
    """What `time_products` found."""

    seconds: float
    logits: NDArray[np.float32]
    """[nodes, V] of the last pass's final states, which are still in the work space: a check, and nothing else."""


def time_products(target: NativeTarget, nodes: int, clock: Callable[[], float] = perf_counter) -> Timed:
    """Time the products of a pass over `nodes` nodes with all logits wanted.

    The target must have scored that many nodes at once before: its work space is used. Another pass at the same time
    would spoil both.
    """
    models, runs = target.last_pass()
    logits = np.empty((nodes, target.vocab_size), dtype=np.float32)
    logits.fill(0)  # so that its memory is there before the clock starts
    for name, value in (("nodes", nodes), ("wanted", nodes), ("threads", target.threads)):
        runs[0][name] = value
    runs[0]["logits"] = logits.ctypes.data
    control = np.zeros(64, dtype=np.int64)
    address = control.ctypes.data
    with ThreadPoolExecutor(max(1, target.threads - 1)) as others:
        followed = [others.submit(follow, address, number, models, runs) for number in range(1, target.threads)]
        products_part(address, 0, models, runs)  # then all threads are awake, at the barrier of the round that counts
        began = clock()
        products_part(address, 0, models, runs)
        taken = clock() - began
        for one in followed:
            one.result()
    return Timed(taken, logits)
