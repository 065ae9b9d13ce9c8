"""`betoken profile`: t(n) of a target by batch and context, and the memory speed it reaches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from betoken.errors import InputError
from betoken.models.config import DecoderConfig
from betoken.models.target import Target
from betoken.pictures import new_figure, save_figure
from betoken.tuning.timings import Bench, Clock, Timings

NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_BYTES = {"int4": 0.5625, "int8": 1, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Point:
    """One measured forward pass."""

    batch: int
    context: int
    """Cached positions of each row."""
    nodes: int
    """Nodes of each row."""
    seconds: float
    """Median."""
    fastest: float
    """Least seconds of the repeats."""
    products: float | None = None
    """Median seconds of its matrix products alone; None where they cannot be run alone."""

    @property
    def outside_share(self) -> float | None:
        """Part of the pass that its matrix products do not take: attention, norms, quantisation, waiting, Python.

        Below 0 where the machine was busier while the products were timed: then measure again.
        """
        return None if self.products is None else 1.0 - self.products / self.seconds


@dataclass(frozen=True)
class Profile:
    """What `profile` measured."""

    model: str
    dtype: str
    device: str
    threads: int
    points: tuple[Point, ...]
    weight_bytes: int | None
    """Bytes of the weights that a forward over one node reads; None where they are not known."""
    peak_bytes_per_s: float | None
    """Speed at which the machine reads memory; None if it was not measured."""

    def point(self, nodes: int, batch: int, context: int) -> Point | None:
        """One point, None if it was not measured."""
        for point in self.points:
            if (point.nodes, point.batch, point.context) == (nodes, batch, context):
                return point
        return None

    def seconds(self, nodes: int, batch: int, context: int) -> float | None:
        """Median seconds of a point, None if it was not measured."""
        point = self.point(nodes, batch, context)
        return None if point is None else point.seconds

    @property
    def settings(self) -> list[tuple[int, int]]:
        """Measured (batch, context) pairs, in order."""
        return list(dict.fromkeys((point.batch, point.context) for point in self.points))

    @property
    def reached_bytes_per_s(self) -> float | None:
        """Weight bytes / t(1) at batch 1 and the smallest context: the memory speed that decoding reaches."""
        first = [point for point in self.points if point.batch == 1 and point.nodes == 1]
        if self.weight_bytes is None or not first:
            return None
        return self.weight_bytes / min(first, key=lambda point: point.context).seconds

    def timings(self) -> Timings:
        """The curve of batch 1 at the smallest context, and what a cached position costs: for `cost.save`.

        Raises InputError if batch 1 or one node is not among the points.
        """
        single = [point for point in self.points if point.batch == 1]
        if not any(point.nodes == 1 for point in single):
            raise InputError("profile: batch 1 with 1 node was not measured, so there is no curve to keep")
        low = min(point.context for point in single)
        base = {point.nodes: point.seconds for point in single if point.context == low}
        slopes = [
            (point.seconds - base[point.nodes]) / (point.nodes * (point.context - low))
            for point in single
            if point.context > low and point.nodes in base
        ]
        nodes = tuple(sorted(base))
        return Timings(nodes, tuple(base[n] for n in nodes), low, max(0.0, median(slopes)) if slopes else 0.0)


def profile(
    target: Target,
    *,
    nodes: Sequence[int] = NODES,
    contexts: Sequence[int] = (64, 512),
    batches: Sequence[int] = (1,),
    repeats: int = 5,
    weight_bytes: int | None = None,
    peak: float | None = None,
    products: Callable[[int], float] | None = None,
    clock: Clock = perf_counter,
    tell: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> Profile:
    """Time forward passes over every combination, `repeats` rounds over the node counts, medians.

    `products(nodes)`: seconds of the matrix products of a pass over so many nodes of all rows; each stands right
    behind the pass that it is compared with.
    `tell(done, total, what)` hears how far it is. Raises InputError for numbers that cannot be measured.
    """
    _check(target, nodes, contexts, batches, repeats)
    points = []
    done, total = 0, len(contexts) * len(batches) * repeats
    bench = Bench(target, clock)
    for context in sorted(set(contexts)):
        bench.rows(1)
        bench.grow(context)
        for batch in sorted(set(batches)):
            bench.rows(batch)
            samples: dict[int, list[float]] = {count: [] for count in sorted(set(nodes))}
            alone: dict[int, list[float]] = {count: [] for count in samples}
            bench.time(max(nodes))  # the first pass of a shape may compile or allocate
            if bench.prepares:
                bench.prepare(nodes)
            for _ in range(repeats):
                tell(done, total, f"batch {batch}, context {bench.context}")
                for count, taken in samples.items():
                    taken.append(bench.time(count))
                    if products is not None:
                        alone[count].append(products(batch * count))
                done += 1
            for count, taken in samples.items():
                matrix = median(alone[count]) if alone[count] else None
                points.append(Point(batch, bench.context, count, median(taken), min(taken), matrix))
    return Profile(target.name, target.dtype, target.device, torch.get_num_threads(), tuple(points), weight_bytes, peak)


def weight_bytes(folder: Path, dtype: str) -> int | None:
    """Bytes of weights that a forward over one node reads: all but the embedding's other rows.

    `folder`: of a model of our own families; None for others.
    """
    try:
        config = DecoderConfig.from_folder(folder)
    except InputError:
        return None
    total = 0
    for name, shape in config.tensor_shapes.items():
        if name == "model.embed_tokens.weight" and not config.tied_embeddings:
            continue
        size = math.prod(shape)
        if len(shape) == 2:  # an integer matrix carries a float32 scale for each row
            total += int(size * _BYTES[dtype]) + (4 * shape[0] if dtype in ("int8", "int4") else 0)
        else:  # norms and biases stay float32 beside integer matrices
            total += int(size * (4 if dtype in ("int8", "int4") else _BYTES[dtype]))
    return total


def memory_speed(*, megabytes: int = 256, repeats: int = 5, clock: Clock = perf_counter) -> float:
    """Bytes per second at which this machine's CPU reads memory in sequence, with torch's threads."""
    data = torch.ones(megabytes << 18, dtype=torch.float32)
    best = float("inf")
    for _ in range(repeats):
        began = clock()
        data.sum()
        best = min(best, max(clock() - began, 1e-9))
    return data.nbytes / best


def plot(found: Profile, path: Path) -> None:
    """t(n) by batch and context as a picture; the ending of `path` says which kind.

    Raises InputError without matplotlib, or if the file cannot be written.
    """
    figure = new_figure(7, 4.5)
    axes = figure.add_subplot()
    for batch, context in found.settings:
        line = [(p.nodes, 1000 * p.seconds) for p in found.points if (p.batch, p.context) == (batch, context)]
        axes.plot(*zip(*line, strict=True), marker="o", markersize=4, label=f"batch {batch}, context {context}")
    axes.set_xlabel("nodes of each row")
    axes.set_ylabel("one forward pass, ms")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.set_title(f"t(n): {found.model}, {found.dtype}, {found.threads} threads")
    axes.legend()
    save_figure(figure, path)


def _check(target: Target, nodes: Sequence[int], contexts: Sequence[int], batches: Sequence[int], repeats: int) -> None:
    for name, values in (("nodes", nodes), ("contexts", contexts), ("batches", batches), ("repeats", (repeats,))):
        if not values or min(values) < 1:
            raise InputError(f"profile: {name} must be whole numbers, at least 1")
    if max(contexts) + max(nodes) > target.context // 2:
        raise InputError(
            f"profile: contexts plus nodes must stay below half of the model's context, {target.context // 2}"
        )
