"""A picture of a training run. matplotlib is optional and imported here alone, without a display."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def plot_history(columns: Sequence[str], history: Sequence[Sequence[float]], path: Path) -> bool:
    """One panel a column over the steps, single steps pale and their running mean on top. False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    values = np.array(history, dtype=np.float64)
    steps = np.arange(1, len(values) + 1)
    figure = Figure(figsize=(4.2 * len(columns), 3.2), dpi=120, layout="constrained")
    for number, name in enumerate(columns):
        axes = figure.add_subplot(1, len(columns), number + 1)
        axes.plot(steps, values[:, number], color="#0072B2", alpha=0.3, linewidth=0.7)
        axes.plot(steps, _smooth(values[:, number]), color="#0072B2", linewidth=1.4)
        axes.set_xlabel("step")
        axes.set_title(name, loc="left", fontsize=10)
        axes.grid(linewidth=0.4, alpha=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    fresh = path.with_name(f".{path.name}.tmp")
    figure.savefig(fresh, format="png")
    os.replace(fresh, path)
    return True


def _smooth(values: np.ndarray) -> np.ndarray:
    """Mean over the last 1/50 of the run's length."""
    width = max(1, len(values) // 50)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - width, 0)
    return (sums[ends] - sums[begins]) / (ends - begins)
