"""Timing forward passes of a target: t(n), seconds by node count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from betoken.models.target import Cache, Target
from betoken.tree import RowTree, TokenTree

GRID = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Node counts at which the curve has a point of its own; between them it is linear."""
QUICK = (1, 8, 4, 16, 2, 32)
"""Node counts of the first measurement, the most telling first: a slow target may not get to the end of them."""
STAIRS = (1, 8, 4, 16, 2, 32, 5, 9, 3, 17, 33, 64)
"""The same on CUDA, where passes are padded: both ends of each step of the curve."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Timings:
    """Measured seconds of one forward pass, batch 1."""

    nodes: tuple[int, ...]
    """Increasing node counts, the first is 1."""
    seconds: tuple[float, ...]
    """Seconds at each of them when nothing else disturbs, with `context` cached positions."""
    context: int
    per_position: float = 0.0
    """Seconds that each node costs more for each cached position beyond `context`."""

    def __post_init__(self) -> None:
        fits = len(self.nodes) == len(self.seconds) > 0 and self.nodes[0] == 1
        if not fits or list(self.nodes) != sorted(set(self.nodes)) or not all(0 < t < 1e4 for t in self.seconds):
            raise ValueError("not a measured curve")

    def at(self, nodes: NDArray[np.float64], context: float) -> NDArray[np.float64]:
        """Seconds [K] of passes over `nodes` [K] nodes; never decreasing, linear beyond the last measured point."""
        seconds = np.maximum.accumulate(self.seconds)
        known = np.array(self.nodes, dtype=np.float64)
        slope = (seconds[-1] - seconds[0]) / max(known[-1] - known[0], 1.0)
        if len(known) > 1:
            slope = max(slope, (seconds[-1] - seconds[-2]) / (known[-1] - known[-2]))
        flat = np.interp(nodes, known, seconds) + np.maximum(nodes - known[-1], 0.0) * slope
        with_context = flat + nodes * max(self.per_position, 0.0) * (context - self.context)
        floor: NDArray[np.float64] = np.maximum(with_context, 0.1 * seconds[0])
        return floor


def measure(
    target: Target,
    *,
    nodes: Sequence[int] | None = None,
    contexts: Sequence[int] = (64,),
    budget_s: float = 1.5,
    clock: Clock = perf_counter,
) -> Timings:
    """Time forward passes of the target in rounds over `nodes`, until `budget_s` seconds are spent.

    At least the first two node counts are measured, however slow the target. `nodes` is QUICK if None, STAIRS on
    CUDA, where passes that prepare those that are timed do not count. With more than one context (cached
    positions, increasing) the cost of a cached position is measured too.
    """
    bench = Bench(target, clock)
    if nodes is None:
        nodes = STAIRS if bench.prepares else QUICK
    began = clock()
    bench.grow(contexts[0])
    if bench.prepares:
        bench.prepare(nodes)
        began = clock()
    bench.time(1)
    samples: dict[int, list[float]] = {}
    rounds = 0
    while rounds < 2 or clock() - began < budget_s:
        for index, count in enumerate(nodes):
            if clock() - began >= budget_s and (rounds > 0 or index >= 2):
                break
            samples.setdefault(count, []).append(bench.time(count))
        rounds += 1
        if rounds >= 9:
            break
    counts = sorted(samples)
    seconds = tuple(undisturbed(samples[count]) for count in counts)
    timings = Timings(tuple(counts), seconds, bench.context)
    return _with_contexts(timings, bench, contexts[1:]) if len(contexts) > 1 else timings


class Bench:
    """Some rows of a target with the same text, and a stop-watch."""

    chunk = 64

    def __init__(self, target: Target, clock: Clock) -> None:
        """One row without text."""
        self.target, self.clock = target, clock
        self.cache: Cache = target.new_cache()
        self.slot = self.cache.open()
        self.others: list[int] = []

    @property
    def context(self) -> int:
        """Cached positions of each row."""
        return self.cache.length(self.slot)

    @property
    def prepares(self) -> bool:
        """Whether the first passes of a shape take longer by far: on CUDA they choose kernels and are recorded."""
        return self.target.device.startswith("cuda")

    def prepare(self, nodes: Sequence[int]) -> None:
        """Passes of these node counts that nobody times."""
        for count in nodes:
            self.time(count)
            self.time(count)

    def rows(self, batch: int) -> None:
        """Time `batch` rows together from now on."""
        while self.others:
            self.cache.close(self.others.pop())
        self.others = [self.cache.fork(self.slot, self.context) for _ in range(batch - 1)]

    def grow(self, context: int) -> None:
        """Fill the cache of a single row to `context` positions, or to half of what the target can hold."""
        context = min(context, self.target.context // 2)
        while (left := context - self.context) > 0:
            tree = self._chain(min(left, self.chunk))
            self.target.forward(tree, self.cache, [self.slot])
            self.cache.keep([self.slot], [tuple(range(tree.width))])

    def time(self, nodes: int) -> float:
        """Seconds of one forward pass over `nodes` nodes of each row, its logits on the host included."""
        slots = [self.slot, *self.others]
        tree = self._chain(nodes, len(slots))
        began = self.clock()
        _ = self.target.forward(tree, self.cache, slots).host
        taken = self.clock() - began
        self.cache.keep(slots, [()] * len(slots))
        return max(taken, 1e-9)

    def _chain(self, nodes: int, batch: int = 1) -> TokenTree:
        tokens = [(7919 * (i + self.context) + 13) % self.target.vocab_size for i in range(nodes)]
        return TokenTree.stack([RowTree.chain(tokens[0], tokens[1:])] * batch)


def _with_contexts(timings: Timings, bench: Bench, contexts: Sequence[int]) -> Timings:
    nodes = timings.nodes[-1]
    slopes = []
    for context in contexts:
        bench.grow(context)
        gained = bench.context - timings.context
        if gained > 0:
            taken = undisturbed([bench.time(nodes) for _ in range(3)])
            slopes.append((taken - timings.seconds[-1]) / (gained * nodes))
    slope = max(0.0, median(slopes)) if slopes else 0.0
    return Timings(timings.nodes, timings.seconds, timings.context, slope)


def undisturbed(samples: Sequence[float]) -> float:
    """The least: what else runs on the machine, or a first call, can only make a pass slower."""
    return min(samples)
