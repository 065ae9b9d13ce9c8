"""How compiled code sees memory: arrays at addresses."""

from __future__ import annotations

import numba as nb
import numpy as np

from betoken.models.native.emit import pointer

compiled = nb.njit(nogil=True, cache=True, error_model="numpy")
"""Decorates every compiled function."""


@compiled
def floats(address, count):  # type: ignore[no-untyped-def]
    """The `count` float32 at an address, as an array."""
    return nb.carray(pointer(address), count, np.float32)


@compiled
def integers(address, count):  # type: ignore[no-untyped-def]
    """The `count` int64 at an address, as an array."""
    return nb.carray(pointer(address), count, np.int64)
