"""A student's low-rank changes of the products, at auxiliary nodes and nowhere else, compiled (see student.py).

The target's own product runs over all nodes, whatever they are. An auxiliary node's input has gone through `down`
before, when it was made ready for the product, and what `up` makes of that is added to the node's outputs. So the
numbers of all other nodes are those of a pass without a student, bit for bit.
"""

from __future__ import annotations

from betoken.models.native.emit import BLOCK
from betoken.models.native.sums import float_sums
from betoken.models.native.views import compiled, floats, integers


@compiled
def shrink_node(run, node, source, product):  # type: ignore[no-untyped-def]
    """`down` of one node's input of a product, if the node is auxiliary and the student changes the product."""
    if product.rank == 0 or run.auxiliary == 0:
        return
    place = integers(run.auxiliary_at, run.nodes)[node]
    if place < 0:
        return
    low = run.low + place * run.low_stride
    for block in range((product.rank + BLOCK - 1) // BLOCK):
        weight = product.down + block * product.inputs * BLOCK * 4
        float_sums(source, 0, 1, weight, product.inputs, low + block * BLOCK * 4)


@compiled
def widen(run, product, block, begin, rows, out, scratch):  # type: ignore[no-untyped-def]
    """Add `up` to the outputs [rows][32] of one channel block, at those of nodes begin, ... that are auxiliary."""
    if product.rank == 0 or run.auxiliary == 0:
        return
    places, row = integers(run.auxiliary_at, run.nodes), 0
    weight = product.up + block * product.rank * BLOCK * 4
    while row < rows:
        place, count = places[begin + row], 1
        if place >= 0:
            while row + count < rows and places[begin + row + count] >= 0:
                count += 1
            float_sums(run.low + place * run.low_stride, run.low_stride, count, weight, product.rank, scratch)
            to, change = floats(out + row * BLOCK * 4, count * BLOCK), floats(scratch, count * BLOCK)
            for channel in range(count * BLOCK):
                to[channel] += change[channel]
        row += count
