"""Figures of matplotlib, which is optional, without a display."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from betoken.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches. Raises InputError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plots need matplotlib: pip install 'betoken[plots]'") from None
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def save_figure(figure: Figure, path: Path) -> Path:
    """Write it to a file whose ending says in which form, and return that. Raises InputError if that cannot be."""
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the picture cannot be written ({error})") from None
    return path
