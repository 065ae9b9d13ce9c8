"""Tokens a forward of drafters by suite, as a picture: one panel a node limit, from results of tools/tree_metrics.py.

python tools/tree_plot.py trees.jsonl trees.png
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from betoken.bench.results import Record, read_results
from betoken.errors import InputError
from betoken.pictures import COLOURS, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Figures = dict[str, dict[str, float]]
"""Method -> suite ("all" is the last) -> committed tokens per target forward."""


def figures(records: Sequence[Record]) -> Figures:
    """DE of each method in each suite and over all."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    methods = list(dict.fromkeys(record["method"] for record in records))
    suites = [*dict.fromkeys(record["suite"] for record in records), "all"]
    for record in records:
        for suite in (record["suite"], "all"):
            own = sums[record["method"], suite]
            own[0] += record["sums"]["tokens"]
            own[1] += record["sums"]["forwards"]
    return {method: {suite: _ratio(sums[method, suite]) for suite in suites} for method in methods}


def draw(panels: dict[int, Figures], path: Path, title: str) -> Path:
    """Bars of every method by suite, one panel a node limit. Raises InputError if the picture cannot be written."""
    figure = new_figure(5.2 * len(panels), 3.6)
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)
    for axes, (nodes, found) in zip(grid[0], panels.items(), strict=True):
        _panel(axes, nodes, found)
    grid[0][0].set_ylabel("tokens a forward")
    grid[0][0].legend(fontsize=7, frameon=False)
    figure.suptitle(title, fontsize=10)
    return save_figure(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Draw tokens a forward by suite from a file of tools/tree_metrics.py.")
    parser.add_argument("file", type=Path, help="result file (JSONL)")
    parser.add_argument("picture", type=Path, help="PNG or SVG file")
    args = parser.parse_args(argv)
    try:
        settings, records = read_results(args.file)
        limits = sorted({record["nodes"] for record in records})
        if not limits:
            raise InputError(f"{args.file}: no results to draw yet")
        panels = {nodes: figures([record for record in records if record["nodes"] == nodes]) for nodes in limits}
        title = f"{settings['model']}, greedy, {settings['max_new_tokens']} new tokens"
        sys.stdout.write(f"{draw(panels, args.picture, title)}\n")
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _panel(axes: Axes, nodes: int, found: Figures) -> None:
    width = 0.8 / len(found)
    for index, (method, by_suite) in enumerate(found.items()):
        places = [at + (index - (len(found) - 1) / 2) * width for at in range(len(by_suite))]
        bars = axes.bar(places, by_suite.values(), width, label=method, color=COLOURS[index % len(COLOURS)])
        axes.bar_label(bars, fmt="%.2f", fontsize=5)
    axes.axhline(1.0, color="black", linewidth=0.6)
    axes.set_xticks(range(len(next(iter(found.values())))), next(iter(found.values())), fontsize=8)
    axes.set_title(f"at most {nodes} nodes a forward", fontsize=9)


def _ratio(sums: Sequence[int]) -> float:
    tokens, forwards = sums
    return tokens / forwards if forwards else 0.0


if __name__ == "__main__":
    sys.exit(main())
