"""Forward passes of fixed shapes, which a device can record once and run again without Python in between.

Rows and nodes are padded to powers of two, the columns that attention reads to a few lengths; keys and values stay
where they are until the cache outgrows them. What differs from pass to pass is a handful of small integers, copied into
tensors of the recorded pass; its first operations make the mask and the places of new keys out of them.

The first pass of a shape is computed at once, the second is recorded, the others are replayed: a shape that comes once
is not worth a recording, and kernels are loaded and chosen in the first pass. See docs/design/0010-static-shapes.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.models.batch import Outputs
from betoken.models.cache import TorchCache, Window
from betoken.models.graphs import Capture, Recorded
from betoken.tree import TokenTree

MOST_NODES = 64
"""Most nodes of a row, padding included."""
MOST_PLACES = 512
"""Most nodes of all rows, padding included. Larger passes keep the device busy without being recorded."""
MOST_PASSES = 64
"""Recordings that a cache keeps; the one that was not used for longest makes room."""
LEAST_SPAN = 256
"""Fewest columns that attention reads."""

Body = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Window], Outputs]
"""A model's pass over tokens and positions [B, N] and a mask [B, 1, N, span], added to scores, in a window."""


def bucket(count: int) -> int:
    """The least power of two that is not below `count`."""
    return 1 << max(count - 1, 0).bit_length()


def span_bucket(columns: int) -> int:
    """The least of 256, 512, 768, 1024, 1536, 2048, 3072, ... that is not below `columns`."""
    whole = bucket(max(columns, LEAST_SPAN))
    middle = whole * 3 // 4
    return middle if columns <= middle and middle % LEAST_SPAN == 0 else whole


class Shape(NamedTuple):
    """What passes that share a recording have in common."""

    rows: int
    nodes: int
    span: int
    beside: bool
    """Whether the rows are slots 1, 2, 3, ... in this order: their keys are read without a copy."""
    layers: tuple[int, ...]
    """Layers whose states are asked for."""


class Inputs:
    """What a pass of some shape reads: R rows of N nodes, in tensors that stay where they are."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        """Tensors of zeros."""
        rows, nodes = shape.rows, shape.nodes
        self.shape = shape
        self._numbers = torch.zeros(rows * (3 * nodes + 2), dtype=torch.int64, device=device)
        self.tokens, self.positions, self.visible = self._numbers[: 3 * rows * nodes].view(3, rows, nodes)
        self.slots, self.lengths = self._numbers[3 * rows * nodes :].view(2, rows)
        self.ancestors = torch.zeros(rows, nodes, nodes, dtype=torch.bool, device=device)

    def fill(self, tree: TokenTree, slots: Sequence[int], lengths: NDArray[np.int64]) -> None:
        """Take in a tree of up to R rows and N nodes. Padding sees nothing but itself.

        Rows of padding write to slot 0, which is nobody's; nodes of padding behind the nodes of their row.
        """
        rows, nodes = self.shape.rows, self.shape.nodes
        numbers = np.zeros(self._numbers.shape, dtype=np.int64)
        grid = numbers[: 3 * rows * nodes].reshape(3, rows, nodes)[:, : tree.batch, : tree.width]
        grid[0], grid[1], grid[2] = tree.tokens, tree.positions(lengths), tree.visible_cache(lengths)
        numbers[3 * rows * nodes :].reshape(2, rows)[:, : tree.batch] = slots, lengths
        ancestors = np.tile(np.eye(nodes, dtype=np.bool_), (rows, 1, 1))
        ancestors[: tree.batch, : tree.width, : tree.width] |= tree.ancestors
        self._numbers.copy_(torch.from_numpy(numbers), non_blocking=True)
        self.ancestors.copy_(torch.from_numpy(ancestors), non_blocking=True)

    def window(self) -> Window:
        """Where the pass reads and writes, computed from slots and lengths."""
        nodes = self.shape.nodes
        places = self.lengths[:, None] + torch.arange(nodes, device=self.lengths.device)
        return Window((), nodes, self.shape.span, 1 if self.shape.beside else None, self.slots[:, None], places)

    def mask(self, dtype: torch.dtype) -> torch.Tensor:
        """[R, 1, N, span] added to attention scores: what `batch.visible` says, computed on the device."""
        rows, nodes, span = self.shape.rows, self.shape.nodes, self.shape.span
        device = self.lengths.device
        seen = torch.arange(span, device=device) < self.visible[:, :, None]
        own = self.lengths[:, None, None] + torch.arange(nodes, device=device)
        seen = seen.scatter(2, own.expand(rows, nodes, nodes), self.ancestors)
        mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -torch.inf)
        return mask[:, None]


@dataclass
class _Pass:
    """One shape's inputs, and its recording once there is one."""

    inputs: Inputs
    recorded: Recorded | None = None


@dataclass
class StaticCache(TorchCache):
    """A `TorchCache` whose passes can be recorded.

    Slots and capacity grow in few steps, each of which makes the recordings useless. Slot 0 takes what padding
    writes. Memory is given back with the cache, not with the last slot.
    """

    capture: Capture = field(kw_only=True)
    dtype: torch.dtype = field(kw_only=True)
    """Of the mask: the model's."""
    _passes: OrderedDict[Shape, _Pass] = field(default_factory=OrderedDict, init=False)
    _recorded_at: int = field(default=0, init=False)
    """`_replaced` when the passes were made."""

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> int:
        """A new empty slot."""
        slot = super().open()
        self._slots = 1 + bucket(self._slots - 1)
        return slot

    def run(self, tree: TokenTree, slots: Sequence[int], layers: Sequence[int], body: Body) -> Outputs | None:
        """Score the trees in a pass of fixed shape; None, and nothing done, where that is not the way.

        That is so for prefill (nothing is wanted), auxiliary inputs, passes that are too large, and once recording
        has failed. `layers`: those whose states `body` returns. What the padding holds has no meaning; `last` is
        overwritten by the next pass, so read it before.
        """
        rows, nodes = bucket(tree.batch), bucket(tree.width)
        if nodes > MOST_NODES or rows * nodes > MOST_PLACES or not self.capture.usable:
            return None
        if not tree.wanted.any() or not np.isnan(tree.inputs).all():
            return None
        lengths = self._reserve(slots, tree.width, nodes)
        self._settle()
        beside = list(slots) == list(range(1, len(slots) + 1))
        shape = Shape(rows, nodes, span_bucket(max(lengths) + nodes), beside, tuple(layers))
        outputs = self._score(shape, tree, slots, np.array(lengths, dtype=np.int64), body)
        return Outputs(outputs.last, {layer: states.clone() for layer, states in outputs.hidden.items()})

    def _score(
        self, shape: Shape, tree: TokenTree, slots: Sequence[int], lengths: NDArray[np.int64], body: Body
    ) -> Outputs:
        found = self._passes.get(shape)
        if found is None:
            made = _Pass(Inputs(shape, self.device))
            made.inputs.fill(tree, slots, lengths)
            outputs = self._compute(made.inputs, body)
            self._keep_pass(shape, made)
            return outputs
        self._passes.move_to_end(shape)
        found.inputs.fill(tree, slots, lengths)
        if found.recorded is None:
            found.recorded = self.capture.record(partial(self._compute, found.inputs, body))
        if found.recorded is None:
            return self._compute(found.inputs, body)
        found.recorded.replay()
        return found.recorded.outputs

    def _compute(self, inputs: Inputs, body: Body) -> Outputs:
        return body(inputs.tokens, inputs.positions, inputs.mask(self.dtype), inputs.window())

    def _keep_pass(self, shape: Shape, made: _Pass) -> None:
        self._recorded_at = self._replaced  # the first pass of all has made the layers
        self._passes[shape] = made
        if len(self._passes) > MOST_PASSES:
            self._passes.popitem(last=False)

    def _settle(self) -> None:
        """All layers at their size, and no recording of an earlier one."""
        for layer in self._layers.values():
            self._fit(layer)
        if self._recorded_at != self._replaced:
            self._passes.clear()
            self._recorded_at = self._replaced

    def _roomy(self, end: int) -> int:
        return span_bucket(max(end, self._capacity * 3 // 2))
