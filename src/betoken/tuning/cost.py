"""t(n): what a forward pass over n nodes costs on this machine, measured once and corrected as decoding runs.

The measured part is a handful of timings on the real target, kept as JSON in the cache folder. The running part is
medians of what the steps really took, so that load from elsewhere, a growing context or a different batch shape are
followed and a single hiccup is not.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from math import log
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.models.target import Target
from betoken.tuning.timings import GRID, Bench, Clock, Timings, measure

MOST_NODES = 1024
"""Length of a curve: nodes of all rows of a batch together."""
_BASE = (*GRID, 128, 256, 512, MOST_NODES)
_NODES = np.arange(MOST_NODES + 1)

_LEAST_PRIZE = 0.05
"""However dear nodes are: text that repeats itself may pay for many of them."""
_FEW, _MUCH = 8, 1.3
"""A kept curve is checked at up to 8 nodes; timings 1.3 times too long, or above a longer pass's, are not kept."""


class CostModel:
    """Seconds of a target forward by node count and context: the measured curve times running corrections.

    A pass over several rows is taken as a pass over all their nodes. Each correction is a median over recent steps
    of log(actual / measured): one for the machine's speed at the moment, one for each point of the grid.
    """

    window = 41
    """Steps a running median looks back."""
    clip = 0.5
    """Most that one step counts for, in log(actual / expected)."""
    refresh = 32
    """Steps between two computations of the curve."""
    context_step = 64
    """The curve is computed anew when the context has moved by this many positions."""

    def __init__(self, timings: Timings) -> None:
        """Starts from the measured curve."""
        self.timings = timings
        self._points = sorted({*_BASE, *(n for n in timings.nodes if n < MOST_NODES)})
        """Node counts that have corrections of their own; the curve is linear between them."""
        self._speed: deque[float] = deque(maxlen=self.window)
        self._offsets: list[deque[float]] = [deque(maxlen=self.window) for _ in self._points]
        self._shift = 0.0
        self._bias = [0.0] * len(self._points)
        self._curve: NDArray[np.float64] | None = None
        self._measured_curve = np.zeros(0)
        self._context = 0.0
        self._recent: list[tuple[int, float, float]] = []
        self._stale = False
        self._measured: dict[tuple[int, int], float] = {}

    def seconds(self, nodes: int, context: float = 0.0) -> float:
        """Expected seconds of a forward pass over `nodes` nodes of all rows together."""
        return float(self.curve(context)[min(nodes, MOST_NODES)])

    def curve(self, context: float) -> NDArray[np.float64]:
        """[MOST_NODES + 1] expected seconds by node count (entry 0 equals entry 1), never decreasing.

        `context` is the mean number of cached positions of the rows.
        """
        if self._curve is None or self._stale or abs(context - self._context) > self.context_step:
            self._learn()
            at_points = self.timings.at(np.array(self._points, dtype=np.float64), context)
            corrections = np.exp(self._shift + np.array(self._bias))
            self._measured_curve = np.interp(_NODES, self._points, at_points)
            self._curve = np.interp(_NODES, self._points, _rising(at_points * corrections))
            self._context, self._stale = context, False
        return self._curve

    @property
    def measured_curve(self) -> NDArray[np.float64]:
        """[MOST_NODES + 1] the last `curve` without the running corrections: its shape is free of their noise."""
        return self._measured_curve

    def observe(self, nodes: int, context: float, seconds: float) -> None:
        """What a forward pass over `nodes` nodes really took. It tells in the next curve that is computed."""
        if seconds > 0.0:
            self._recent.append((nodes, context, seconds))
            if len(self._recent) >= self.refresh:
                self._learn()
                self._stale = True

    def _learn(self) -> None:
        """From the steps since the last time: many at once, for this is no part of what a step decides."""
        found = []
        for nodes, context, seconds in self._recent:
            ratio = log(seconds / self._expected(nodes, context))
            point = min(bisect_left(self._points, nodes), len(self._points) - 1)
            self._speed.append(ratio - self._bias[point])
            found.append((point, ratio))
        self._recent.clear()
        if not found:
            return
        self._shift = _median(self._speed)
        for point, ratio in found:
            self._offsets[point].append(min(max(ratio - self._shift, -self.clip), self.clip))
        known = [i for i, window in enumerate(self._offsets) if len(window) >= 3]
        if known:
            # A median of few steps is pulled to zero; points without steps lie between their neighbours.
            values = [_median(self._offsets[i]) * len(self._offsets[i]) / (len(self._offsets[i]) + 20) for i in known]
            self._bias = np.interp(range(len(self._points)), known, values).tolist()

    def _expected(self, nodes: int, context: float) -> float:
        """Measured seconds at about this context."""
        key = (nodes, round(context / self.context_step))
        expected = self._measured.get(key)
        if expected is None:
            expected = float(self.timings.at(np.array([float(nodes)]), key[1] * self.context_step)[0])
            self._measured[key] = expected
        return expected


class Prices:
    """What nodes cost in plain steps, for one row of a batch: a curve made ready for single look-ups."""

    def __init__(self, curve: NDArray[np.float64], measured: NDArray[np.float64], rows: int, most: int) -> None:
        """`curve` and `measured` [MOST_NODES + 1] with and without running corrections.

        `rows` of the batch, of `most` nodes each at most.
        """
        base = min(rows, MOST_NODES)
        self.curve, self.rows, self.context = curve, rows, 0.0
        self.plain = float(curve[base])
        """Seconds of a step of the batch without any draft."""
        self.share = self.plain / rows
        """A row's share of them: the unit in which a row pays for what the whole batch waits for."""
        self._last = min(max(base, rows * most), MOST_NODES)
        curve, measured = curve[: self._last + 1], measured[: self._last + 1]
        self._steps: list[float] = (curve * (rows / self.plain)).tolist()
        # Running corrections can make nodes look free; what is charged goes by the dearer of the two curves.
        self._extra: list[float] = (np.maximum(curve / self.plain, measured / measured[base]) - 1.0).tolist()
        self.prize = max(2.0 / (1.0 + self.extra(2 * rows)) - 1.0, _LEAST_PRIZE) if rows > 1 else 1.0
        """What a node a row would bring a batch if it were always right: tokens more in the same time, for each plain
        one. A single row has longer drafts to win by, and counts as 1."""

    def beyond(self, nodes: int, more: Sequence[int]) -> list[float]:
        """Plain steps that a pass takes longer than one over `nodes` nodes with so many more."""
        steps, last = self._steps, self._last
        base = steps[min(nodes, last)]
        return [steps[min(nodes + one, last)] - base for one in more]

    def ahead(self, nodes: int, count: int) -> list[float]:
        """[count] `beyond` for 1, 2, ... `count` nodes more."""
        if nodes + count > self._last:
            return self.beyond(nodes, range(1, count + 1))
        base = self._steps[nodes]
        return [step - base for step in self._steps[nodes + 1 : nodes + count + 1]]

    def extra(self, nodes: int) -> float:
        """Share of a plain step of the batch that a pass over `nodes` nodes is charged beyond it."""
        return self._extra[min(nodes, self._last)]


def _median(values: deque[float]) -> float:
    """The upper median."""
    return sorted(values)[len(values) // 2]


def _rising(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Never decreasing: where neighbours contradict each other, between the higher and the lower of them."""
    low = np.minimum.accumulate(seconds[::-1])[::-1]
    return (np.maximum.accumulate(seconds) + low) / 2.0


def load(
    target: Target,
    folder: Path,
    *,
    threads: int | None = None,
    clock: Clock = perf_counter,
    budget_s: float = 1.5,
) -> CostModel:
    """The cost model of this target on this machine: from `folder`, else measured now and kept there.

    `threads` defaults to torch's. A file that cannot be read, is of another machine, or was measured while other
    programs were busy (its passes are much slower than now, or than passes over more nodes), is measured anew.
    """
    key = machine_key(target, threads)
    known = _read(_file(folder, key), key)
    if known is None or _contradicts_itself(known) or _was_disturbed(known, target, clock):
        known = measure(target, budget_s=budget_s, clock=clock)
        save(known, target, folder, threads=threads)
    return CostModel(known)


def _contradicts_itself(known: Timings) -> bool:
    """Whether some pass took much longer than one over more nodes: then something else took part of its time."""
    return any(min(known.seconds[at:]) * _MUCH < one for at, one in enumerate(known.seconds))


def _was_disturbed(known: Timings, target: Target, clock: Clock) -> bool:
    """Whether a few passes now are much quicker than the kept ones: those were measured on a busy machine.

    Slower ones say nothing against the file: then it is now that the machine is busy.
    """
    bench = Bench(target, clock)
    bench.grow(known.context)
    bench.time(1)
    for nodes, kept in zip(known.nodes, known.seconds, strict=True):
        if nodes <= _FEW and min(bench.time(nodes) for _ in range(3)) * _MUCH < kept:
            return True
    return False


def save(timings: Timings, target: Target, folder: Path, *, threads: int | None = None) -> Path | None:
    """Keep measured timings for `load`; returns the file, None where the folder cannot be written."""
    key = machine_key(target, threads)
    path = _file(folder, key)
    text = json.dumps({"key": key, "timings": asdict(timings)}, indent=1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as out:
            out.write(text)
        os.replace(out.name, path)
    except OSError:  # a read-only or full cache only costs the next start a measurement
        return None
    return path


def machine_key(target: Target, threads: int | None = None) -> dict[str, str | int]:
    """What a measurement depends on."""
    key: dict[str, str | int] = {
        "model": target.name,
        "layers": target.num_layers,
        "hidden": target.hidden_size,
        "vocabulary": target.vocab_size,
        "dtype": target.dtype,
        "threads": torch.get_num_threads() if threads is None else threads,
        "processor": _processor(target.device),
        "betoken": version("betoken"),
    }
    if target.device.startswith("cuda"):
        key["cache"] = type(target.new_cache()).__name__  # whether passes are recorded
    return key


def _file(folder: Path, key: dict[str, str | int]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return folder / f"cost-{digest}.json"


def _read(path: Path, key: dict[str, str | int]) -> Timings | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["key"] != key:
            return None
        kept = found["timings"]
        return Timings(
            tuple(int(n) for n in kept["nodes"]),
            tuple(float(t) for t in kept["seconds"]),
            int(kept["context"]),
            float(kept["per_position"]),
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _processor(device: str) -> str:
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
