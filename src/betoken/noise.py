"""Counter-based random numbers: a pure function of (seed, sample, stream, step, position).

Nothing is carried from one call to the next, so the number that picks position k is the same whichever drafter
proposed it, in whichever step, batch row or process. Philox 4x64 (Salmon et al., SC'11), whose raw stream numpy
guarantees.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from betoken.errors import InputError

_MASK = (1 << 64) - 1


class Stream(IntEnum):
    """Independent streams. Speculative sampling must not reuse the numbers that pick tokens.

    Why: docs/design/0002-noise-streams.md.
    """

    PICK = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    SEEDS = 4
    TRAINING = 5


def uniforms(
    seed: int, sample: int, position: int, count: int, *, stream: Stream = Stream.PICK, step: int = 0
) -> NDArray[np.float64]:
    """`count` numbers in [0, 1), [count] float64, for token `position` of sample `sample` of a request.

    `step` keys streams that are consumed anew at each forward pass; PICK never uses it.
    Raises InputError for a negative sample, position or step.
    """
    if min(sample, position, step) < 0:
        raise InputError("noise: sample, position and step must not be negative")
    # As arrays: numpy turns a list that holds a number of 2**63 or more into floats, and loses its last bits.
    counter = np.array([0, position, step, sample], dtype=np.uint64)
    key = np.array([seed & _MASK, int(stream)], dtype=np.uint64)
    bits = np.random.Philox(counter=counter, key=key)
    raw = bits.random_raw(count)
    return (np.asarray(raw, dtype=np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniform(seed: int, sample: int, position: int, *, stream: Stream = Stream.PICK, step: int = 0) -> float:
    """One number in [0, 1): u_k of position k."""
    return float(uniforms(seed, sample, position, 1, stream=stream, step=step)[0])


def gumbels(seed: int, sample: int, position: int, count: int) -> NDArray[np.float64]:
    """`count` standard Gumbel numbers, [count] float64, one for each token of the vocabulary."""
    u = uniforms(seed, sample, position, count)
    return -np.log(-np.log(np.maximum(u, 2.0**-54)))
