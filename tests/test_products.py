"""The matrix products of a pass alone: the same numbers where they can be compared, and all of the work."""

from __future__ import annotations

import numpy as np
import pytest

from betoken.models.native.emit import BLOCK
from betoken.models.native.forward import PHASES
from betoken.models.native.isa import isa
from betoken.models.native.products import time_products
from betoken.models.native.target import NativeTarget
from betoken.tree import RowTree, TokenTree
from test_native import native

pytestmark = pytest.mark.skipif(isa() == "none", reason="this processor has no native kernels")


def blocks(target: NativeTarget) -> dict[int, int]:
    """Work counter -> units of work of its product: blocks of outputs, or of gate and up together."""
    config = target.config
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    outputs = {0: heads, 2: config.hidden_size, 3: config.intermediate_size, 4: config.hidden_size}
    found = {layer * PHASES + phase: n for layer in range(config.num_layers) for phase, n in outputs.items()}
    found[config.num_layers * PHASES] = config.vocab_size
    return {phase: -(-n // BLOCK) for phase, n in found.items()}


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("nodes", [1, 5])
def test_the_products_are_those_of_the_pass(dtype: str, threads: int, nodes: int) -> None:
    target = native("llama", dtype, threads)
    cache = target.new_cache()
    tree = TokenTree.stack([RowTree.chain(3, list(range(4, 3 + nodes)))])
    scores = target.forward(tree, cache, [cache.open()])
    expected = np.stack([scores.logits(0, node) for node in range(nodes)])
    target._space["counters"][:] = 0
    ticks = iter([1.0, 1.5])
    timed = time_products(target, nodes, lambda: next(ticks))
    assert timed.seconds == 0.5
    # The final states are still there, so the last product must give the logits of the pass, bit for bit.
    assert np.array_equal(timed.logits, expected)
    taken = {phase: int(target._space["counters"][phase, 0]) for phase in blocks(target)}
    assert all(taken[phase] >= count for phase, count in blocks(target).items()), "every block was computed"


def test_a_pass_after_them_is_what_it_was() -> None:
    target = native("llama", "int8")
    tree = TokenTree.stack([RowTree.chain(3, [4, 5])])

    def scored() -> np.ndarray:
        cache = target.new_cache()
        return np.stack([target.forward(tree, cache, [cache.open()]).logits(0, node) for node in (0,)])

    before = scored()
    time_products(target, 3)
    assert np.array_equal(scored(), before)
