"""The KV cache: pages of 64 positions in float32, shared between rows, in memory that grows without being copied.

A page holds every layer's keys and values of 64 positions of one row: for each layer all keys [kv_heads][4][D][16],
then all values [kv_heads][64][D]. A forked row shares the full pages of the row it starts from and copies the last,
partial one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from betoken.models.native.compact import move_slots
from betoken.models.native.job import PAGE

_SLAB = 8
"""Pages that are allocated together."""


@dataclass
class _Slot:
    """One row's pages, in order, and how much of them is committed."""

    pages: list[int] = field(default_factory=list)
    addresses: NDArray[np.int64] = field(default_factory=lambda: np.zeros(16, dtype=np.int64))
    length: int = 0
    table: int = 0
    """Where `addresses` lies."""

    def __post_init__(self) -> None:
        self.table = self.addresses.ctypes.data

    def append(self, page: int, base: int) -> None:
        """Add a page that lies at `base`."""
        if len(self.pages) == self.addresses.size:
            self.addresses = np.concatenate([self.addresses, np.zeros_like(self.addresses)])
            self.table = self.addresses.ctypes.data
        self.addresses[len(self.pages)] = base
        self.pages.append(page)


class PagedCache:
    """Keys and values of many rows of different lengths."""

    def __init__(self, layers: int, kv_heads: int, head_padded: int) -> None:
        """An empty cache for a model of these sizes."""
        self.layers, self.kv_heads, self.head_padded = layers, kv_heads, head_padded
        self.page_floats = layers * 2 * kv_heads * PAGE * head_padded
        self._slabs: list[NDArray[np.float32]] = []
        self._bases: list[int] = []
        self._uses: list[int] = []
        self._free: list[int] = []
        self._slots: dict[int, _Slot] = {}
        self._next = 0

    @property
    def allocated_bytes(self) -> int:
        """Memory held, used or not."""
        return len(self._uses) * self.page_floats * 4

    def open(self) -> int:
        """A new empty slot."""
        self._next += 1
        self._slots[self._next] = _Slot()
        return self._next

    def close(self, slot: int) -> None:
        """Give the slot's pages back."""
        for page in self._slots.pop(slot).pages:
            self._drop(page)

    def fork(self, slot: int, length: int) -> int:
        """A new slot with the first `length` positions of another; full pages are shared, not copied."""
        source = self._slots[slot]
        new = self.open()
        full = length // PAGE
        for page in source.pages[:full]:
            self._uses[page] += 1
            self._append(self._slots[new], page)
        if length % PAGE:
            page = self._page()
            self._view(page)[:] = self._view(source.pages[full])
            self._append(self._slots[new], page)
        self._slots[new].length = length
        return new

    def length(self, slot: int) -> int:
        """Committed positions in the slot."""
        return self._slots[slot].length

    def truncate(self, slot: int, length: int) -> None:
        """Forget the positions from `length` on."""
        found = self._slots[slot]
        found.length = min(found.length, length)
        while len(found.pages) > (found.length + PAGE - 1) // PAGE:
            self._drop(found.pages.pop())
        if found.length % PAGE:
            self._own_last(found)

    def room_for(self, slot: int, nodes: int) -> int:
        """Make room for `nodes` positions behind the committed ones; returns the address of the page table."""
        found = self._slots[slot]
        while len(found.pages) * PAGE < found.length + nodes:
            self._append(found, self._page())
        return found.table

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Move the kept nodes of the last forward pass together, behind the committed positions."""
        for slot, path in zip(slots, paths, strict=True):
            found = self._slots[slot]
            start = len(path)
            if start and path[-1] != start - 1:  # nodes only increase along a path
                start = next(i for i, node in enumerate(path) if node != i)
            if start < len(path):
                sources = np.array(path[start:], dtype=np.int64) + found.length
                sizes = (self.layers, self.kv_heads, self.head_padded)
                move_slots(found.table, sources, found.length + start, *sizes)
            found.length += len(path)

    def _own_last(self, slot: _Slot) -> None:
        """Positions behind a truncated length will be overwritten: a shared last page must be this row's own."""
        page = slot.pages[-1]
        if self._uses[page] > 1:
            own = self._page()
            self._view(own)[:] = self._view(page)
            self._drop(page)
            slot.pages.pop()
            self._append(slot, own)

    def _append(self, slot: _Slot, page: int) -> None:
        slot.append(page, self._bases[page])

    def _page(self) -> int:
        if not self._free:
            slab = np.zeros(_SLAB * self.page_floats + 16, dtype=np.float32)
            aligned = (-slab.ctypes.data % 64) // 4
            self._slabs.append(slab[aligned : aligned + _SLAB * self.page_floats])
            first = len(self._uses)
            base = self._slabs[-1].ctypes.data
            self._bases += [base + i * self.page_floats * 4 for i in range(_SLAB)]
            self._uses += [0] * _SLAB
            self._free = list(range(first + _SLAB - 1, first - 1, -1))
        page = self._free.pop()
        self._uses[page] = 1
        return page

    def _drop(self, page: int) -> None:
        self._uses[page] -= 1
        if self._uses[page] == 0:
            self._free.append(page)

    def _view(self, page: int) -> NDArray[np.float32]:
        slab, place = divmod(page, _SLAB)
        return self._slabs[slab][place * self.page_floats : (place + 1) * self.page_floats]
