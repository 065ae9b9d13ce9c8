"""A student's low-rank changes of the products, at auxiliary nodes and nowhere else, compiled (see student.py).

The target's own product runs over all nodes, whatever they are. An auxiliary node's input goes through `down` once
it is ready for the product, and what `up` makes of that is added to the node's outputs. So the numbers of all other
nodes are those of a pass without a student, bit for bit.
"""

from __future__ import annotations

from betoken.models.native.emit import BLOCK
from betoken.models.native.rounding import quantise_row
from betoken.models.native.sums import block_product
from betoken.models.native.views import compiled, floats, integers


@compiled
def shrink_node(model, run, node, source, product):  # type: ignore[no-untyped-def]
    """`down` of one node's input of a product, if the node is auxiliary and the student changes the product.

    `source`: the input in float32, which an integer model has rounded already. The result is rounded there as well.
    """
    if run.auxiliary == 0 or product.down.outputs == 0:
        return
    place = integers(run.auxiliary_at, run.nodes)[node]
    if place < 0:
        return
    low, scales = run.low + place * run.low_stride, run.row_scale + node * 4
    given = run.quantised + node * run.quantised_stride if model.int8 else source
    for block in range((product.down.outputs + BLOCK - 1) // BLOCK):
        block_product(model, product.down, given, 0, scales, 1, block, low + block * BLOCK * 4)
    if model.int8:
        rounded = run.low_rounded + place * run.low_stride
        floats(run.low_scale, run.nodes)[place] = quantise_row(low, product.up.inputs, rounded, model.offset)


@compiled
def widen(model, run, product, block, begin, rows, out, scratch):  # type: ignore[no-untyped-def]
    """Add `up` to the outputs [rows][32] of one channel block, at those of nodes begin, ... that are auxiliary."""
    if run.auxiliary == 0 or product.down.outputs == 0:
        return
    places, row, stride = integers(run.auxiliary_at, run.nodes), 0, run.low_stride
    given = run.low_rounded if model.int8 else run.low
    while row < rows:
        place, count = places[begin + row], 1
        if place >= 0:
            while row + count < rows and places[begin + row + count] >= 0:
                count += 1
            here, scales = given + place * stride, run.low_scale + place * 4
            block_product(model, product.up, here, stride, scales, count, block, scratch)
            to, change = floats(out + row * BLOCK * 4, count * BLOCK), floats(scratch, count * BLOCK)
            for channel in range(count * BLOCK):
                to[channel] += change[channel]
        row += count
