"""Random numbers of training: a pure function of (seed, purpose, step, part), so that a resumed run meets the same.

Nothing here touches the global generators of torch or numpy.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch

from betoken import noise


class Purpose(IntEnum):
    """What the numbers are for; each purpose has numbers of its own."""

    WEIGHTS = 0
    ORDER = 1
    WINDOWS = 2
    VALIDATION = 3
    PROMPTS = 4


def generator(seed: int, purpose: Purpose, step: int = 0, part: int = 0) -> np.random.Generator:
    """A numpy generator for one step (and part of it, such as a micro-batch). `step`, `part` must not be negative."""
    words = noise.uniforms(seed, int(purpose), step, 2, stream=noise.Stream.TRAINING, step=part)
    return np.random.Generator(np.random.PCG64([int(word * 2**53) for word in words]))


def torch_generator(seed: int, purpose: Purpose, part: int = 0) -> torch.Generator:
    """A torch generator on the CPU."""
    word = noise.uniform(seed, int(purpose), 0, stream=noise.Stream.TRAINING, step=part)
    return torch.Generator().manual_seed(int(word * 2**53))


def batch_of(seed: int, rows: int, size: int, number: int) -> np.ndarray:
    """[size] which rows make batch `number`: every row comes once an epoch, in an order of the epoch's own."""
    places = np.arange(number * size, (number + 1) * size, dtype=np.int64)
    orders = {int(epoch): generator(seed, Purpose.ORDER, int(epoch)).permutation(rows) for epoch in set(places // rows)}
    return np.array([orders[int(place // rows)][place % rows] for place in places], dtype=np.int64)
