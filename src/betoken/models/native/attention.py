"""Rotary positions, the cache write, and attention over a node's own text, compiled."""

from __future__ import annotations

import numpy as np

from betoken.models.native import emit, kernels
from betoken.models.native.emit import LANES
from betoken.models.native.job import PAGE
from betoken.models.native.kernels import _ZERO, F, exp32
from betoken.models.native.views import compiled, floats, integers

_keys_1, _keys_2, _keys_3, _keys_4 = (emit.key_scores(heads) for heads in (1, 2, 3, 4))
_keys_5, _keys_6, _keys_7, _keys_8 = (emit.key_scores(heads) for heads in (5, 6, 7, 8))
_values_1, _values_2, _values_4, _values_8 = (emit.value_sums(lanes) for lanes in (1, 2, 4, 8))
_MINUS_INF = F(-np.inf)


@compiled
def key_block(table, layer_offset, head, slot, head_padded):  # type: ignore[no-untyped-def]
    """Address of the 16-key block [head_padded][16] that holds a slot."""
    page = integers(table, slot // PAGE + 1)[slot // PAGE]
    within = head * PAGE * head_padded + (slot % PAGE) // LANES * LANES * head_padded
    return page + layer_offset + within * 4


@compiled
def value_row(table, layer_offset, head, slot, head_padded, kv_heads):  # type: ignore[no-untyped-def]
    """Address of the value [head_padded] of a slot; values stand behind all keys of the layer."""
    page = integers(table, slot // PAGE + 1)[slot // PAGE]
    within = (kv_heads + head) * PAGE * head_padded + (slot % PAGE) * head_padded
    return page + layer_offset + within * 4


@compiled
def rotate(source, norm, eps, scale, cos, sin, width, padded, scratch, target, step):  # type: ignore[no-untyped-def]
    """Optional norm and rotary position of one head; writes every `step`-th float32 of `target`, zero-padded."""
    if norm:
        copied = floats(scratch, padded)
        given = floats(source, width)
        copied[:width] = given
        copied[width:] = _ZERO
        kernels.normalise_row(scratch, norm, width, padded, eps, scratch)
        source = scratch
    x, out = floats(source, width), floats(target, padded * step)
    half = width // 2
    c, s = floats(cos, half), floats(sin, half)
    for i in range(half):
        first, second = x[i], x[i + half]
        out[i * step] = (first * c[i] - second * s[i]) * scale
        out[(i + half) * step] = (second * c[i] + first * s[i]) * scale
    for i in range(width, padded):
        out[i * step] = _ZERO


@compiled
def place_rows(model, run, thread, layer, q_norm, k_norm, wide):  # type: ignore[no-untyped-def]
    """Queries of each node, and its key and value into the cache. Work is split by (node, kv head)."""
    group = model.heads // model.kv_heads
    width, padded = model.head_dim, model.head_padded
    scratch = run.scratch + thread * run.scratch_stride
    positions, slots = integers(run.position, run.nodes), integers(run.slot, run.nodes)
    tables = integers(run.table, run.nodes)
    for task in range(thread, run.nodes * model.kv_heads, run.threads):
        node, kv = task // model.kv_heads, task % model.kv_heads
        source = wide + node * run.wide_stride
        cos = run.cos + positions[node] * (width // 2) * 4
        sin = run.sin + positions[node] * (width // 2) * 4
        for head in range(kv * group, (kv + 1) * group):
            to = run.queries + (node * model.heads + head) * padded * 4
            x = source + head * width * 4
            rotate(x, q_norm, model.rms_eps, model.query_scale, cos, sin, width, padded, scratch, to, 1)
        offset = layer * model.layer_bytes
        block = key_block(tables[node], offset, kv, slots[node], padded)
        x = source + (model.heads + kv) * width * 4
        to = block + (slots[node] % LANES) * 4
        rotate(x, k_norm, model.rms_eps, F(1.0), cos, sin, width, padded, scratch, to, LANES)
        v = floats(value_row(tables[node], offset, kv, slots[node], padded, model.kv_heads), padded)
        v[:width] = floats(source + (model.heads + model.kv_heads + kv) * width * 4, width)
        v[width:] = _ZERO


@compiled
def score_blocks(heads, q, q_stride, table, layer_offset, kv, padded, begin, end, scores, stride):  # type: ignore[no-untyped-def]
    """Scores of up to 8 heads against every slot of the blocks that begin..end touches."""
    pairs = padded // 2
    for block in range(begin // LANES, (end + LANES - 1) // LANES):
        k = key_block(table, layer_offset, kv, block * LANES, padded)
        to = scores + block * LANES * 4
        if heads == 1:
            _keys_1(q, q_stride, k, pairs, to, stride)
        elif heads == 2:
            _keys_2(q, q_stride, k, pairs, to, stride)
        elif heads == 3:
            _keys_3(q, q_stride, k, pairs, to, stride)
        elif heads == 4:
            _keys_4(q, q_stride, k, pairs, to, stride)
        elif heads == 5:
            _keys_5(q, q_stride, k, pairs, to, stride)
        elif heads == 6:
            _keys_6(q, q_stride, k, pairs, to, stride)
        elif heads == 7:
            _keys_7(q, q_stride, k, pairs, to, stride)
        else:
            _keys_8(q, q_stride, k, pairs, to, stride)


@compiled
def add_values(p, v, stride, keys, padded, sums):  # type: ignore[no-untyped-def]
    """sums [padded] += weights [keys] times values [keys][padded], key by key."""
    done, lanes = 0, padded // LANES
    while done < lanes:
        here, to, left = v + done * LANES * 4, sums + done * LANES * 4, lanes - done
        if left >= 8:
            _values_8(p, here, stride, keys, to)
            done += 8
        elif left >= 4:
            _values_4(p, here, stride, keys, to)
            done += 4
        elif left >= 2:
            _values_2(p, here, stride, keys, to)
            done += 2
        else:
            _values_1(p, here, stride, keys, to)
            done += 1


@compiled
def soften(scores, count):  # type: ignore[no-untyped-def]
    """Scores [count] to weights exp(score - max), zero-padded to whole lanes. Returns their sum."""
    blocks = (count + LANES - 1) // LANES
    s = floats(scores, blocks * LANES)
    for i in range(count, blocks * LANES):
        s[i] = _MINUS_INF
    largest = emit.max_plain(scores, blocks)
    for i in range(blocks * LANES):
        s[i] = exp32(s[i] - largest)
    return emit.sum_plain(scores, blocks)


@compiled
def attend(model, run, node, kv, first, heads, layer, scratch):  # type: ignore[no-untyped-def]
    """Attention of up to 8 heads of one kv head for one node: its cached text, then its ancestors, then itself."""
    padded, stride = model.head_padded, run.scores_stride
    table = integers(run.table, run.nodes)[node]
    slot = integers(run.slot, run.nodes)[node]
    length = integers(run.length, run.nodes)[node]
    seen = integers(run.seen, run.nodes)[node]
    ends = integers(run.branch_at, run.nodes + 1)
    begin, end = ends[node], ends[node + 1]
    branch = integers(run.branch, max(end, 1))
    offset = layer * model.layer_bytes
    q = run.queries + (node * model.heads + first) * padded * 4
    score_blocks(heads, q, padded * 4, table, offset, kv, padded, 0, seen, scratch, stride)
    if end > begin:
        low = max(length, seen) // LANES * LANES
        score_blocks(heads, q, padded * 4, table, offset, kv, padded, low, slot + 1, scratch, stride)
    count = seen + end - begin
    sums = scratch + heads * stride
    for head in range(heads):
        scores = scratch + head * stride
        s = floats(scores, slot + LANES + 1)
        for index in range(begin, end):
            # An ancestor's slot never lies before its place in the text, so this moves scores down, in order.
            s[seen + index - begin] = s[branch[index]]
        total = soften(scores, count)
        acc = floats(sums, padded)
        acc[:] = _ZERO
        for page in range(0, seen, PAGE):
            v = value_row(table, offset, kv, page, padded, model.kv_heads)
            add_values(scores + page * 4, v, padded * 4, min(PAGE, seen - page), padded, sums)
        for index in range(begin, end):
            v = value_row(table, offset, kv, branch[index], padded, model.kv_heads)
            add_values(scores + (seen + index - begin) * 4, v, padded * 4, 1, padded, sums)
        width = model.head_dim
        to = floats(run.attended + (node * model.attn_padded + (first + head) * width) * 4, width)
        for i in range(width):
            to[i] = acc[i] / total


@compiled
def attend_rows(model, run, thread, layer, phase):  # type: ignore[no-untyped-def]
    """Attention of every node. Threads take (node, kv head) one by one."""
    group = model.heads // model.kv_heads
    scratch = run.scratch + thread * run.scratch_stride
    tasks = run.nodes * model.kv_heads
    task = kernels.take(run, phase, 1)
    while task < tasks:
        node, kv = task // model.kv_heads, task % model.kv_heads
        done = 0
        while done < group:
            heads = min(8, group - done)
            attend(model, run, node, kv, kv * group + done, heads, layer, scratch)
            done += heads
        task = kernels.take(run, phase, 1)
