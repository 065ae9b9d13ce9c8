"""Grid trips: synthetic taxi-like sequences whose entropy is known exactly.

A trip of `LENGTH` tokens moves over a `SIDE` x `SIDE` grid of streets; its tokens are the cells it passes. It starts in
any cell, its first move goes to any neighbour, and each later move goes straight on, left, right or back with the
probabilities of `TURNS`, renormalised over the moves that stay on the grid. The next cell depends on the last two, so
the sequence is a Markov chain of order two and its entropy is a finite sum.

The stand-in for the taxi trips of arXiv 2512.21323 section 5 (25 tokens, length 100), which are not ours to ship.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from betoken import noise
from betoken.errors import InputError

SIDE = 5
CELLS = SIDE * SIDE
LENGTH = 100
TURNS = {"straight": 0.70, "left": 0.13, "right": 0.13, "back": 0.04}
_HEADINGS = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""(column, row) steps, clockwise from up."""
_BY_TURN = (TURNS["straight"], TURNS["right"], TURNS["back"], TURNS["left"])
"""Probability of turning clockwise by 0, 1, 2 or 3 quarters."""


def transitions() -> NDArray[np.float64]:
    """[25, 25, 25] law of the next cell given the last two; rows of cells that are no neighbours are zero."""
    laws = np.zeros((CELLS, CELLS, CELLS))
    for cell in range(CELLS):
        for heading in range(4):
            before = _moved(cell, (heading + 2) % 4)
            if before is None:
                continue
            for quarter, chance in enumerate(_BY_TURN):
                after = _moved(cell, (heading + quarter) % 4)
                if after is not None:
                    laws[before, cell, after] = chance
    sums = laws.sum(axis=2, keepdims=True)
    laws /= np.where(sums > 0, sums, 1.0)
    return laws


def first_moves() -> NDArray[np.float64]:
    """[25, 25] law of the second cell given the first: any neighbour, all alike."""
    law = np.zeros((CELLS, CELLS))
    for cell in range(CELLS):
        around = [other for heading in range(4) if (other := _moved(cell, heading)) is not None]
        law[cell, around] = 1.0 / len(around)
    return law


def trips(count: int, *, seed: int, first: int = 0) -> NDArray[np.int64]:
    """[count, 100] cells of trips `first`, `first` + 1, ... of this seed; each depends on its own number alone.

    Raises InputError for a negative count or number.
    """
    if count < 0 or first < 0:
        raise InputError(f"trips: count and first must not be negative, not {count} and {first}")
    step = transitions().cumsum(axis=2)
    start = first_moves().cumsum(axis=1)
    u = np.array(
        [noise.uniforms(seed, first + n, 0, LENGTH, stream=noise.Stream.TRAINING) for n in range(count)]
    ).reshape(count, LENGTH)
    out = np.empty((count, LENGTH), dtype=np.int64)
    out[:, 0] = np.minimum(u[:, 0] * CELLS, CELLS - 1).astype(np.int64)
    out[:, 1] = _picked(start[out[:, 0]], u[:, 1])
    for k in range(2, LENGTH):
        out[:, k] = _picked(step[out[:, k - 2], out[:, k - 1]], u[:, k])
    return out


def entropy() -> float:
    """Nats per token of a trip, exactly: the least mean loss that any model of trips can have."""
    step, start = transitions(), first_moves()
    pairs = start / CELLS
    total = np.log(CELLS) + _entropies(start).sum() / CELLS
    surprise = _entropies(step)
    for _ in range(2, LENGTH):
        total += float((pairs * surprise).sum())
        pairs = np.einsum("ab,abc->bc", pairs, step)
    return float(total) / LENGTH


def loss(sequences: Iterable[NDArray[np.int64]]) -> float:
    """Mean nats per token that the generator itself gives to these trips."""
    step, start = transitions(), first_moves()
    losses = [
        np.log(CELLS) - np.log(start[trip[0], trip[1]]) - np.log(step[trip[:-2], trip[1:-1], trip[2:]]).sum()
        for trip in sequences
    ]
    return float(np.mean(losses)) / LENGTH


def _moved(cell: int, heading: int) -> int | None:
    """The next cell in a direction, or None over the edge."""
    column, row = cell % SIDE + _HEADINGS[heading][0], cell // SIDE + _HEADINGS[heading][1]
    return row * SIDE + column if 0 <= column < SIDE and 0 <= row < SIDE else None


def _picked(cdf: NDArray[np.float64], u: NDArray[np.float64]) -> NDArray[np.int64]:
    """[K] first cell of each CDF [K, 25] above u [K]; a sum that ends below 1 by rounding picks its last cell."""
    last = (cdf >= cdf[:, -1:]).argmax(axis=1)
    above = cdf > u[:, None]
    picked: NDArray[np.int64] = np.where(above.any(axis=1), above.argmax(axis=1), last)
    return picked


def _entropies(laws: NDArray[np.float64]) -> NDArray[np.float64]:
    """[...] entropy in nats of laws [..., V]; 0 for a row of zeros."""
    logs = np.log(laws, out=np.zeros_like(laws), where=laws > 0)
    return np.asarray(-(laws * logs).sum(axis=-1), dtype=np.float64)
