"""Pictures of a judge: are its confidences what they say, and how well does it tell right from wrong?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from betoken.pictures import COLOURS, new_figure, save_figure
from betoken.tuning.judges import Auc, Threshold, reliability, roc


def plot_judge(
    confidences: Sequence[float],
    right: Sequence[bool],
    area: Auc,
    threshold: Threshold | None,
    stem: Path,
    title: str,
) -> list[Path]:
    """`STEM.reliability.png` and `STEM.roc.png`. Returns the files.

    Raises InputError without matplotlib, and if they cannot be written.
    """
    return [
        _reliability(confidences, right, threshold, stem.with_suffix(".reliability.png"), title),
        _roc(confidences, right, area, stem.with_suffix(".roc.png"), title),
    ]


def _reliability(
    confidences: Sequence[float], right: Sequence[bool], threshold: Threshold | None, path: Path, title: str
) -> Path:
    figure = new_figure(5, 4.6)
    axes = figure.add_subplot()
    bins = reliability(confidences, right)
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=1, label="as it should be")
    axes.plot([one.confidence for one in bins], [one.right for one in bins], "o-", color=COLOURS[0], label="this judge")
    for one in bins:
        axes.annotate(str(one.drafts), (one.confidence, one.right), (4, -10), textcoords="offset points", fontsize=7)
    if threshold is not None:
        axes.axvline(threshold.value, color=COLOURS[5], linewidth=1, label=f"threshold {threshold.value:.3f}")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence in the whole draft", ylabel="share of right drafts")
    axes.set_title(f"{title}, n = {len(confidences)}", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return save_figure(figure, path)


def _roc(confidences: Sequence[float], right: Sequence[bool], area: Auc, path: Path, title: str) -> Path:
    figure = new_figure(5, 4.6)
    axes = figure.add_subplot()
    points = roc(confidences, right)
    low, high = area.interval
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=1, label="a coin")
    axes.plot(
        [bad for bad, _ in points],
        [good for _, good in points],
        color=COLOURS[0],
        label=f"AUC {area.value:.3f} (95%: {low:.3f} to {high:.3f})",
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="wrong drafts accepted", ylabel="right drafts accepted")
    axes.set_title(f"{title}, {area.right} right and {area.wrong} wrong", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return save_figure(figure, path)
