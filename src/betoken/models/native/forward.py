"""One forward pass over the nodes of all rows: every thread of the crew runs `forward_part`."""

from __future__ import annotations

import numba as nb

from betoken.models.native import emit, kernels
from betoken.models.native.attention import attend_rows, place_rows
from betoken.models.native.crew import STALLS, await_job, barrier
from betoken.models.native.emit import pointer
from betoken.models.native.job import LAYER
from betoken.models.native.kernels import ADD, STORE
from betoken.models.native.views import compiled, floats, integers

PHASES = 5
"""Work counters a layer uses; the output layer uses one more."""


@compiled
def layer_part(model, run, thread, number, layer, control):  # type: ignore[no-untyped-def]
    """One transformer layer."""
    threads, nodes, phase = run.threads, run.nodes, number * PHASES
    wide, wide_stride = run.wide, run.wide_stride
    x, x_stride = run.x, model.hidden_padded * 4
    if model.int8:
        given, given_stride = run.quantised, run.quantised_stride
    else:
        given, given_stride = wide, wide_stride
    scales = run.row_scale
    kernels.norm_rows(model, run, thread, layer.attn_norm, layer.qkv)
    barrier(control, threads)
    # Float products read `wide`, so they write to the half of it that lies behind their inputs.
    half = wide if model.int8 else wide + wide_stride // 2
    kernels.product_rows(
        model, run, thread, phase, layer.qkv, given, given_stride, scales, nodes, half, wide_stride, STORE
    )
    barrier(control, threads)
    place_rows(model, run, thread, number, layer.q_norm, layer.k_norm, half)
    barrier(control, threads)
    attend_rows(model, run, thread, number, phase + 1)
    barrier(control, threads)
    attended, attended_stride = run.attended, model.attn_padded * 4
    if model.int8 or run.auxiliary:
        kernels.prepare_rows(model, run, thread, attended, attended_stride, model.attn_padded, layer.out)
        barrier(control, threads)
    if model.int8:
        attended, attended_stride = given, given_stride
    kernels.product_rows(
        model, run, thread, phase + 2, layer.out, attended, attended_stride, scales, nodes, x, x_stride, ADD
    )
    barrier(control, threads)
    kernels.norm_rows(model, run, thread, layer.mlp_norm, layer.gate_up)
    barrier(control, threads)
    kernels.gate_up_rows(model, run, thread, phase + 3, layer.gate_up, given, given_stride, half, wide_stride)
    barrier(control, threads)
    half_stride = wide_stride
    if model.int8 or run.auxiliary:
        kernels.prepare_rows(model, run, thread, half, half_stride, model.ffn_padded, layer.down)
        barrier(control, threads)
    if model.int8:
        half, half_stride = given, given_stride
    kernels.product_rows(model, run, thread, phase + 4, layer.down, half, half_stride, scales, nodes, x, x_stride, ADD)
    barrier(control, threads)


@compiled
def copy_hidden(model, run, thread, number):  # type: ignore[no-untyped-def]
    """Hand out the residual stream that enters a layer, where it was asked for."""
    if run.hidden_out == 0:
        return
    place = integers(run.hidden_at, number + 1)[number]
    if place >= 0:
        for node in range(thread, run.nodes, run.threads):
            to = floats(run.hidden_out + (place * run.nodes + node) * model.hidden * 4, model.hidden)
            to[:] = floats(run.x + node * model.hidden_padded * 4, model.hidden)


@compiled
def head_part(model, run, thread, phase, control):  # type: ignore[no-untyped-def]
    """Final norm and output layer of the wanted nodes."""
    nodes = integers(run.wanted_nodes, max(1, run.wanted))
    for place in range(thread, run.wanted, run.threads):
        out = run.wide + place * run.wide_stride
        source = run.x + nodes[place] * model.hidden_padded * 4
        kernels.normalise_row(source, model.final_norm, model.hidden, model.hidden_padded, model.rms_eps, out)
        kernels.quantise_node(model, run, place, out, model.hidden_padded)
    barrier(control, run.threads)
    if model.int8:
        given, stride = run.quantised, run.quantised_stride
    else:
        given, stride = run.wide, run.wide_stride
    width = model.head.matrix.outputs * 4
    kernels.product_rows(
        model, run, thread, phase, model.head, given, stride, run.row_scale, run.wanted, run.logits, width, STORE
    )
    barrier(control, run.threads)


@compiled
def forward_part(control, thread, models, runs):  # type: ignore[no-untyped-def]
    """What one thread does of a pass."""
    model, run = models[0], runs[0]
    count = model.num_layers
    layers = nb.carray(pointer(model.layers), count, LAYER)
    kernels.embed_rows(model, run, thread)  # of the nodes that this thread then norms: no barrier in between
    for number in range(count):
        copy_hidden(model, run, thread, number)
        layer_part(model, run, thread, number, layers[number], control)
    copy_hidden(model, run, thread, count)
    if run.wanted:
        head_part(model, run, thread, count * PHASES, control)
    # Nobody may leave while another still reads the job.
    barrier(control, run.threads)


@compiled
def lead(control, threads, models, runs, logits, hidden, shown_models, shown_runs):  # type: ignore[no-untyped-def]
    """Thread 0: put the job where the workers look, announce it unless it does it alone, and do its part.

    `logits`, `hidden`: what the pass writes. Returns how often a thread had to sleep at a barrier.
    """
    shown_models[0], shown_runs[0] = models[0], runs[0]
    run, stalls = shown_runs[0], integers(control + STALLS * 8, 1)
    run.threads, run.logits = threads, logits.ctypes.data
    run.hidden_out = hidden.ctypes.data if hidden.size else 0
    integers(run.counters, (models[0].num_layers * PHASES + 1) * 8)[:] = 0
    stalls[0] = 0
    if threads > 1:
        emit.fetch_add(control, 1)
    forward_part(control, 0, shown_models, shown_runs)
    return stalls[0]


@compiled
def serve(control, number, models, runs):  # type: ignore[no-untyped-def]
    """A worker: wait for jobs and do its part of each, until the crew stops."""
    done = 0
    while await_job(control, done):
        done += 1
        forward_part(control, number, models, runs)
