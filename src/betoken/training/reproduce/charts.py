"""The picture of decoding: tokens a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from betoken.pictures import COLOURS, new_figure, save_figure
from betoken.training.reproduce.decoding import Decoded


def draw_decoding(found: Sequence[Decoded], title: str, path: Path) -> Path:
    """A bar for each way of decoding, a colour for each drafter. Raises InputError without matplotlib."""
    figure = new_figure(7.5, 1.2 + 0.34 * len(found))
    axes = figure.add_subplot()
    drafters = list(dict.fromkeys(one.drafter for one in found))
    for place, one in enumerate(found):
        axes.barh(place, one.tokens_per_forward, height=0.75, color=COLOURS[drafters.index(one.drafter) % len(COLOURS)])
        axes.annotate(
            f"{one.tokens_per_forward:.2f}",
            (one.tokens_per_forward, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.axvline(1.0, color="#444444", linewidth=0.9, linestyle="--")
    axes.set_yticks(range(len(found)), [f"{one.drafter}, {one.mode}, {one.nodes} nodes" for one in found], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("tokens a target forward pass (dashed: plain decoding)")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return save_figure(figure, path)
