"""How many nodes each branch of a quadratic draft gets (PTP, arXiv 2512.21323).

A step verifies drafts 1..l, and for each d = 0..l a branch of auxiliary nodes guesses on as if exactly d of them were
right. Branch m is used with chance A_m; of its B_m nodes the first only stands for the token that the target picks
itself, so it brings G(B_m) = sum_{k=1}^{B_m - 1} P(n' >= k) right drafts, n' being the run of right tokens from its
second node on: G(0) = G(1) = 0. Because G is flat there before it rises, growing branches node by node goes wrong; a
small dynamic programme over the branches is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from betoken.tree import Floats


class Shape(NamedTuple):
    """What a step sends besides the pending token."""

    drafts: int
    branches: tuple[int, ...]
    """[drafts + 1] nodes of each branch, or fewer entries: the rest has none."""

    @property
    def nodes(self) -> int:
        """Drafts and probes."""
        return self.drafts + sum(self.branches)


def gains(runs: Sequence[float], longest: int) -> Floats:
    """[longest + 1] G(b), the right drafts to expect from a branch of b nodes; `runs`: P(n' >= 1), P(n' >= 2), ..."""
    known = np.zeros(max(longest - 1, 0))
    given = np.array(runs[: len(known)], dtype=np.float64)
    known[: len(given)] = given
    return np.concatenate([np.zeros(min(longest + 1, 2)), np.cumsum(known)])


def best_shape(confidence: Sequence[float], gain: Floats, longest: Sequence[int], nodes: int) -> Shape:
    """The shape of at most `nodes` nodes that brings most tokens: right drafts now, and those of the branch used next.

    `confidence` [D]: chance of each draft, given that those before it are right; `gain` [L + 1]: see `gains`;
    `longest` [D + 1]: most nodes of each branch, at most L. Among equals the one with fewer nodes.
    """
    best, shape = -1.0, Shape(0, ())
    table = np.zeros(nodes + 1)  # [k] most that the branches before this one bring with at most k nodes
    taken: list[NDArray[np.int64]] = []
    reached, drafts_now = 1.0, 0.0
    for count in range(min(len(confidence), nodes) + 1):
        left = nodes - count
        most = min(longest[count], left)
        values = table[left - most : left + 1][::-1] + reached * gain[: most + 1]  # by nodes of the last branch
        last = int(values.argmax())
        if drafts_now + values[last] > best + 1e-12:
            best = drafts_now + float(values[last])
            shape = Shape(count, (*_sizes(taken, left - last), last))
        if count == len(confidence):
            break
        table, sizes = _extended(table, (1.0 - confidence[count]) * reached * gain[: longest[count] + 1])
        taken.append(sizes)
        reached *= confidence[count]
        drafts_now += reached
    return shape


def _extended(table: Floats, worth: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """The table [K + 1] with one more branch, of `worth` [b + 1] by its nodes; and how many of k nodes it takes."""
    most = len(worth) - 1
    padded = np.concatenate([np.full(most, -np.inf), table])
    # Row b holds table[k - b] for each k.
    shifted = np.lib.stride_tricks.sliding_window_view(padded, len(table))[::-1]
    values = shifted + worth[:, None]
    sizes = values.argmax(axis=0)
    return values[sizes, np.arange(len(table))], sizes


def _sizes(taken: Sequence[NDArray[np.int64]], nodes: int) -> tuple[int, ...]:
    """Follow the choices back from the last branch."""
    sizes = []
    for choice in reversed(taken):
        sizes.append(int(choice[nodes]))
        nodes -= sizes[-1]
    return tuple(sizes[::-1])


def full_shape(drafts: int, longest: int, nodes: int) -> Shape:
    """Full quadratic decoding: every branch as long as the next draft may be, with the greatest L that fits.

    L - 1 drafts and L branches of L nodes need L^2 + L - 1 nodes: L is `longest`, or less if `nodes` are fewer.
    """
    length = longest
    while length > 1 and length * length + length - 1 > nodes:
        length -= 1
    if length == 1:
        return Shape(min(drafts, nodes), ())
    drafts = min(drafts, length - 1)
    return Shape(drafts, (length,) * (drafts + 1))
