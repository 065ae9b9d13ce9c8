"""Pictures of a benchmark report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from betoken.bench.report import OVERALL, Line, Report, lines_of, settings_of
from betoken.errors import InputError
from betoken.pictures import COLOURS, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAR = 0.17
"""Height of a bar in inches."""


def plot_speedups(report: Report, folder: Path) -> list[Path]:
    """One PNG for each model, temperature and batch: speed-up by category with 95% intervals. Returns the files.

    Raises InputError without matplotlib, and if the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
    return [_plot(report, setting, folder) for setting in settings_of(report)]


def _plot(report: Report, setting: tuple[str, float, int], folder: Path) -> Path:
    model, temperature, batch = setting
    lines = lines_of(report, *setting)
    methods = list(dict.fromkeys(line.method for line in lines))
    categories = [OVERALL, *dict.fromkeys(line.category for line in lines if line.category != OVERALL)]
    height = 1.5 + BAR * (len(methods) + 1) * len(categories)
    figure = new_figure(8, max(height, 2.6))
    axes = figure.add_subplot()
    for index, method in enumerate(methods):
        _bars(axes, [line for line in lines if line.method == method], categories, index, len(methods))
    _label(axes, categories, _count(lines))
    how = "greedy" if temperature == 0 else f"T = {temperature:g}"
    axes.set_title(f"{model}, {how}, batch {batch}: speed-up over plain decoding", loc="left", fontsize=11)
    figure.legend(loc="outside lower center", ncols=min(5, len(methods)), frameon=False, fontsize=9)
    path = folder / (re.sub(r"[^A-Za-z0-9.]+", "-", f"speedup-{model}-T{temperature:g}-batch{batch}") + ".png")
    return save_figure(figure, path)


def _bars(axes: Axes, lines: Sequence[Line], categories: Sequence[str], index: int, methods: int) -> None:
    places = {line.category: categories.index(line.category) for line in lines}
    share = 1.0 / (methods + 1)
    at = [places[line.category] + (index - (methods - 1) / 2) * share for line in lines]
    spread: Any = [
        [max(0.0, line.speedup - line.low) for line in lines],
        [max(0.0, line.high - line.speedup) for line in lines],
    ]
    axes.barh(
        at,
        [line.speedup for line in lines],
        height=0.9 * share,
        color=COLOURS[index % len(COLOURS)],
        label=lines[0].method,
        xerr=spread,
        error_kw={"elinewidth": 0.8, "capsize": 1.5, "ecolor": "#444444"},
    )
    for y, line in zip(at, lines, strict=True):
        axes.annotate(
            f"{line.speedup:.2f}",
            (line.high, y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )


def _label(axes: Axes, categories: Sequence[str], counts: dict[str, int]) -> None:
    axes.axvline(1.0, color="#444444", linewidth=0.9, linestyle="--", zorder=3)
    axes.set_yticks(range(len(categories)), [f"{name} (n = {counts[name]})" for name in categories], fontsize=9)
    axes.set_ylim(len(categories) - 0.5, -0.5)
    axes.set_xlabel("tokens a second without prefill, over plain decoding's; median and 95% interval", fontsize=9)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.06)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)


def _count(lines: Sequence[Line]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for line in lines:
        counts[line.category] = max(line.count, counts.get(line.category, 0))
    return counts
