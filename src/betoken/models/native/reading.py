"""The reading of token trees, compiled: what the forward pass wants to know of each node."""

from __future__ import annotations

import numpy as np

from betoken.models.native.views import compiled, integers

UNKNOWN_TOKEN, TOO_FAR, HAS_INPUT = -1, -2, -3
"""Why a tree cannot be scored: a token id outside the vocabulary, a position beyond the tables, an auxiliary input
without a student."""


@compiled
def read_tree(tokens, parents, roles, anchors, shifts, inputs, wanted, rows, positions, index, models, runs):  # type: ignore[no-untyped-def]
    """Lay out B trees for the pass `runs[0]`, the rows' real nodes one after another.

    `rows` [2, B]: committed positions of each row and the address of its page addresses; `positions`: how many the
    rotary tables have. Slots 0..seen-1 are a node's text in order: its cached text and as many ancestors as lie
    there in order already (all of them in a chain); the rest of its ancestors and itself are in `branch`, which must
    have room for the sum of depths + nodes. Writes the place of each node's logits, or -1, to `index` [B, N]. Returns
    how many nodes' logits are wanted, or why the trees cannot be scored.
    """
    run, size, width = runs[0], tokens.size, tokens.shape[1]
    token, position, slot = integers(run.tokens, size), integers(run.position, size), integers(run.slot, size)
    table, length, seen = integers(run.table, size), integers(run.length, size), integers(run.seen, size)
    branch_at, branch = integers(run.branch_at, size + 1), integers(run.branch, size * (width + 1))
    wanted_nodes, auxiliary_at = integers(run.wanted_nodes, size), integers(run.auxiliary_at, size)
    cached, depth, offset, straight = np.empty((4, width), dtype=np.int64)
    place, asked, entries, auxiliary = 0, 0, 0, 0
    for row in range(tokens.shape[0]):
        committed = rows[0, row]
        for node in range(width):
            index[row, node] = -1
            if roles[row, node] == 0:
                continue
            parent = parents[row, node]
            if parent >= 0:
                cached[node], depth[node] = cached[parent], depth[parent] + 1
                offset[node] = offset[parent] + 1 + shifts[row, node]
                in_order = straight[parent] == depth[node] and node == depth[node]
                straight[node] = straight[parent] + in_order
            else:
                anchor = anchors[row, node]
                cached[node], depth[node] = committed if anchor < 0 else min(anchor, committed), 0
                offset[node] = shifts[row, node]
                straight[node] = node == 0 and cached[node] == committed
            token[place], position[place] = tokens[row, node], max(0, cached[node] + offset[node])
            if token[place] < 0 or token[place] >= models[0].head.matrix.outputs:
                return UNKNOWN_TOKEN
            if position[place] >= positions:
                return TOO_FAR
            auxiliary_at[place] = -1
            if not np.isnan(inputs[row, node]):
                if not models[0].student:
                    return HAS_INPUT
                auxiliary_at[place], auxiliary = auxiliary, auxiliary + 1
            slot[place], table[place], length[place] = committed + node, rows[1, row], committed
            seen[place], branch_at[place] = cached[node] + straight[node], entries
            entry, above = entries + depth[node] + 1 - straight[node], node
            entries, begin = entry, entries
            while entry > begin:
                entry -= 1
                branch[entry], above = committed + above, parents[row, above]
            if wanted[row, node]:
                wanted_nodes[asked], index[row, node] = place, asked
                asked += 1
            place += 1
    branch_at[place] = entries
    run.nodes, run.wanted, run.auxiliary = place, asked, auxiliary
    return asked
