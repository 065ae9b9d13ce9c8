"""Cache compaction and the reading of a tree, compiled: what happens between two forward passes."""

from __future__ import annotations

import numpy as np

from betoken.models.native.attention import key_block, value_row
from betoken.models.native.emit import LANES
from betoken.models.native.job import PAGE
from betoken.models.native.kernels import compiled, floats


@compiled
def move_slots(table, sources, first, layers, kv_heads, head_padded):  # type: ignore[no-untyped-def]
    """Copy keys and values of slots `sources` (ascending, each at or behind its target) to `first`, first + 1, ..."""
    layer_bytes = 2 * kv_heads * PAGE * head_padded * 4
    for layer in range(layers):
        offset = layer * layer_bytes
        for head in range(kv_heads):
            for index in range(sources.shape[0]):
                source, target = sources[index], first + index
                k_from = key_block(table, offset, head, source, head_padded) + (source % LANES) * 4
                k_to = key_block(table, offset, head, target, head_padded) + (target % LANES) * 4
                taken, given = floats(k_from, head_padded * LANES), floats(k_to, head_padded * LANES)
                for i in range(head_padded):
                    given[i * LANES] = taken[i * LANES]
                v_from = value_row(table, offset, head, source, head_padded, kv_heads)
                v_to = value_row(table, offset, head, target, head_padded, kv_heads)
                floats(v_to, head_padded)[:] = floats(v_from, head_padded)


@compiled
def read_tree(parents, counts, anchors, shifts, lengths, positions, slots, seen, branch_at, branch):  # type: ignore[no-untyped-def]
    """Positions, slots and visible text of each node of B trees, the rows' real nodes one after another.

    Writes [nodes] arrays, and `branch` [sum of depths + nodes] with `branch_at` [nodes + 1]. Slots 0..seen-1 are the
    node's text in order: its cached text and as many ancestors as lie there in order already (all of them in a
    chain); the rest of its ancestors and itself are in `branch`. Returns the entries of `branch`.
    """
    width = parents.shape[1]
    depth, root = np.zeros(width, dtype=np.int64), np.zeros(width, dtype=np.int64)
    offset = np.zeros(width, dtype=np.int64)
    path = np.zeros(width, dtype=np.int64)
    place, entries = 0, 0
    for row in range(parents.shape[0]):
        length = lengths[row]
        for node in range(counts[row]):
            parent = parents[row, node]
            depth[node] = depth[parent] + 1 if parent >= 0 else 0
            root[node] = root[parent] if parent >= 0 else node
            offset[node] = shifts[row, node] + (offset[parent] + 1 if parent >= 0 else 0)
            anchor = anchors[row, root[node]]
            cached = length if anchor < 0 else min(anchor, length)
            positions[place] = max(0, cached + offset[node])
            slots[place] = length + node
            above, steps = node, depth[node]
            while above >= 0:
                path[steps] = above
                steps -= 1
                above = parents[row, above]
            straight = 0
            while straight <= depth[node] and cached == length and path[straight] == straight:
                straight += 1
            seen[place] = cached + straight
            branch_at[place] = entries
            for step in range(straight, depth[node] + 1):
                branch[entries] = length + path[step]
                entries += 1
            place += 1
    branch_at[place] = entries
    return entries
