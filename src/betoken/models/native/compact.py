"""Cache compaction, compiled."""

from __future__ import annotations

from betoken.models.native.attention import key_block, value_row
from betoken.models.native.emit import LANES
from betoken.models.native.job import PAGE
from betoken.models.native.views import compiled, floats


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
