"""The picture of a frontier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from betoken.pictures import COLOURS, new_figure, save_figure
from betoken.tuning.frontier import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_frontier(found: Sequence[Point], path: Path, title: str) -> None:
    """Draw accuracy over tokens a forward, a line for each gate along its budgets, into a PNG or SVG file.

    `found`: strict decoding first. Raises InputError without matplotlib, and if the file cannot be written.
    """
    figure = new_figure(7, 4.5)
    axes = figure.add_subplot()
    strict = found[0]
    axes.axhline(100 * strict.accuracy, color="#999999", linewidth=0.8, linestyle="--")
    axes.plot(strict.tokens_per_forward, 100 * strict.accuracy, "*", color="black", markersize=12, label="strict")
    for index, gate in enumerate(dict.fromkeys(one.gate for one in found[1:])):
        line = sorted((one for one in found if one.gate == gate), key=lambda one: one.budget)
        _draw(axes, line, f"gate {gate:g}", COLOURS[index % len(COLOURS)])
    axes.set_xlabel("tokens a forward")
    axes.set_ylabel(f"% right of {strict.answers}")
    axes.set_title(f"{title}\nnumbers are budgets; bars are 95% of the difference to strict", loc="left", fontsize=9)
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def _draw(axes: Axes, line: Sequence[Point], label: str, colour: str) -> None:
    x, y = [one.tokens_per_forward for one in line], [100 * one.accuracy for one in line]
    below = [100 * max(0.0, one.difference - one.difference_interval.low) for one in line]
    above = [100 * max(0.0, one.difference_interval.high - one.difference) for one in line]
    axes.errorbar(
        x, y, yerr=[below, above], color=colour, marker="o", capsize=2, linewidth=1, elinewidth=0.7, label=label
    )
    for one, *place in zip(line, x, y, strict=True):
        axes.annotate(f"{one.budget:g}", (place[0], place[1]), (3, 3), textcoords="offset points", fontsize=7)
