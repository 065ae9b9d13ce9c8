"""Keys and values of many rows as torch tensors, for targets that compute in torch.

One rectangle a layer, [slots, kv_heads, capacity, head_dim], that grows geometrically in both directions. A forward
pass writes its nodes behind the committed positions of each slot; `keep` moves the accepted ones together.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from betoken.errors import BetokenError

_BLOCK = 64
"""Capacity is a multiple of this, so that a window may end on any multiple of 8, as CUDA kernels want it."""


@dataclass(frozen=True)
class Window:
    """Where one forward pass over B rows and N nodes reads and writes."""

    lengths: tuple[int, ...]
    """[B] committed positions of each row; its nodes lie behind them. Empty where only the device knows (static.py)."""
    nodes: int
    """N"""
    span: int
    """Columns that attention reads: the longest row and its nodes, rounded up."""
    first: int | None
    """Slot of the first row, where the others follow in order, so that all are read without a copy; else None."""
    rows: torch.Tensor | None
    """[B, 1] slot of each row on the device; None for a single row, which slices."""
    places: torch.Tensor | None
    """[B, N] column of each node on the device; None for a single row."""


@dataclass
class _Layer:
    """The rectangle of one layer."""

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def size(self) -> tuple[int, int]:
        """Slots and capacity."""
        return self.keys.shape[0], self.keys.shape[2]


@dataclass
class TorchCache:
    """Slots of keys and values. Layers take shape, dtype and device from the first tensors that are written.

    Slots are rectangular: one long row makes all of them long. Memory of a closed slot serves the next one and is
    given back when the last slot closes.
    """

    num_layers: int
    device: torch.device
    _layers: dict[int, _Layer] = field(default_factory=dict)
    _lengths: dict[int, int] = field(default_factory=dict)
    """Open slot -> committed positions."""
    _written: dict[int, int] = field(default_factory=dict)
    """Slot -> nodes that the last forward pass wrote behind them."""
    _free: list[int] = field(default_factory=list)
    """Closed slots, smallest first: rows that sit side by side are read without a copy."""
    _slots: int = 0
    _capacity: int = 0
    _replaced: int = 0
    """How many tensors were made: whoever remembers where they lie can see that they have moved."""

    def open(self) -> int:
        """A new empty slot."""
        slot = heapq.heappop(self._free) if self._free else len(self._lengths)
        self._lengths[slot] = 0
        self._slots = max(self._slots, slot + 1)
        return slot

    def close(self, slot: int) -> None:
        """Give the slot back. Raises BetokenError if it is not open."""
        self.length(slot)
        del self._lengths[slot]
        self._written.pop(slot, None)
        heapq.heappush(self._free, slot)
        if not self._lengths:
            self._layers.clear()
            self._free.clear()
            self._slots = self._capacity = 0

    def fork(self, slot: int, length: int) -> int:
        """A new slot with a copy of the first `length` positions of another."""
        self._check_within(slot, length)
        new = self.open()
        self._lengths[new] = length
        for layer in self._layers.values():
            self._fit(layer)
            layer.keys[new, :, :length] = layer.keys[slot, :, :length]
            layer.values[new, :, :length] = layer.values[slot, :, :length]
        return new

    def length(self, slot: int) -> int:
        """Committed positions in the slot. Raises BetokenError if it is not open."""
        if slot not in self._lengths:
            raise BetokenError(f"cache slot {slot} is not open")
        return self._lengths[slot]

    def truncate(self, slot: int, length: int) -> None:
        """Forget the positions from `length` on."""
        self._check_within(slot, length)
        self._lengths[slot] = length
        self._written.pop(slot, None)

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """The nodes `path` of each slot's last forward pass become its next positions; the others are forgotten."""
        rows, sources, targets = [], [], []
        for slot, path in zip(slots, paths, strict=True):
            length, written = self.length(slot), self._written.pop(slot, 0)
            if any(not 0 <= node < written for node in path):
                raise BetokenError(f"cache slot {slot}: path {list(path)} leaves the {written} nodes of the last pass")
            moved = [(place, node) for place, node in enumerate(path) if place != node]
            rows += [slot] * len(moved)
            sources += [length + node for _, node in moved]
            targets += [length + place for place, _ in moved]
            self._lengths[slot] = length + len(path)
        if rows:
            self._move(torch.tensor([rows, sources, targets]).to(self.device, non_blocking=True))

    def begin(self, slots: Sequence[int], nodes: int) -> Window:
        """Make room for a forward pass over `nodes` nodes of each of these slots."""
        lengths = self._reserve(slots, nodes, nodes)
        end = max(lengths) + nodes
        span = end if self.device.type == "cpu" else -(-end // 8) * 8
        first = slots[0] if list(slots) == list(range(slots[0], slots[0] + len(slots))) else None
        rows = places = None
        if len(slots) > 1:
            where = torch.tensor([slots, lengths]).to(self.device, non_blocking=True)
            rows = where[0][:, None]
            places = where[1][:, None] + torch.arange(nodes, device=self.device)
        return Window(tuple(lengths), nodes, span, first, rows, places)

    def extend(
        self, layer: int, window: Window, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the nodes' keys and values [B, kv_heads, N, head_dim]; returns those of the whole window, span for N.

        What is returned may be a view: do not write to it, and read it before the next pass begins. Columns that
        hold nothing yet are finite, so a mask is enough to leave them out.
        """
        if not 0 <= layer < self.num_layers:
            raise BetokenError(f"the cache was made for {self.num_layers} layers, there is no layer {layer}")
        if layer not in self._layers:
            self._layers[layer] = _Layer(self._zeros(keys), self._zeros(values))
            self._replaced += 1
        stored = self._layers[layer]
        self._fit(stored)
        return _written(stored.keys, window, keys), _written(stored.values, window, values)

    def _reserve(self, slots: Sequence[int], nodes: int, columns: int) -> list[int]:
        """Room for a pass that writes `columns` columns behind each slot, `nodes` of them to keep from; the lengths."""
        if len(set(slots)) != len(slots):
            raise BetokenError(f"cache slots {list(slots)}: a slot can take part in a forward pass only once")
        lengths = [self.length(slot) for slot in slots]
        self._written.update(dict.fromkeys(slots, nodes))
        end = max(lengths) + columns
        if end > self._capacity:
            self._capacity = self._roomy(end)
        return lengths

    def _roomy(self, end: int) -> int:
        """The next capacity, for rows of `end` columns."""
        return -(-max(end, self._capacity * 3 // 2) // _BLOCK) * _BLOCK

    def _fit(self, layer: _Layer) -> None:
        if layer.size != (self._slots, self._capacity):
            layer.keys = self._grown(layer.keys)
            layer.values = self._grown(layer.values)
            self._replaced += 1

    def _grown(self, old: torch.Tensor) -> torch.Tensor:
        new = self._zeros(old)
        new[: old.shape[0], :, : old.shape[2]] = old
        return new

    def _zeros(self, like: torch.Tensor) -> torch.Tensor:
        """Zeros, not uninitialised memory: a masked NaN would still poison a sum."""
        return like.new_zeros(self._slots, like.shape[1], self._capacity, like.shape[3])

    def _move(self, index: torch.Tensor) -> None:
        rows, sources, targets = index
        for layer in self._layers.values():
            layer.keys[rows, :, targets] = layer.keys[rows, :, sources]
            layer.values[rows, :, targets] = layer.values[rows, :, sources]

    def _check_within(self, slot: int, length: int) -> None:
        if not 0 <= length <= self.length(slot):
            raise BetokenError(f"cache slot {slot} holds {self.length(slot)} positions, not {length}")


def _written(stored: torch.Tensor, window: Window, new: torch.Tensor) -> torch.Tensor:
    """Put `new` [B, kv_heads, N, head_dim] in its place and return the window [B, kv_heads, span, head_dim]."""
    if window.rows is not None and window.places is not None:
        stored[window.rows, :, window.places] = new.transpose(1, 2)
    else:
        start = window.lengths[0]
        stored[window.first, :, start : start + window.nodes] = new[0]
    if window.first is None and window.rows is not None:
        return stored[window.rows[:, 0], :, : window.span]
    first = window.first or 0
    return stored[first : first + new.shape[0], :, : window.span]
