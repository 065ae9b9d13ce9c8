"""`betoken inspect`: record the trees of a decoder and draw them, in the terminal or as a picture.

recorder = Recorder()
engine.decoder.observer = recorder
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from betoken.errors import InputError
from betoken.models.target import Scores
from betoken.pictures import new_figure, save_figure
from betoken.state import State
from betoken.tree import Role, TokenTree
from betoken.verifiers.verifier import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.tree import Tree

Spell = Callable[[int], str]
"""A token id as text."""

COLOURS = {
    "pending": "#0072B2",
    "accepted": "#009E73",
    "candidate": "#999999",
    "seed": "#D55E00",
    "probe": "#E69F00",
    "bonus": "#56B4E9",
}
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""

STYLES = {
    "pending": "bold blue",
    "accepted": "bold green",
    "candidate": "dim",
    "seed": "bold yellow",
    "probe": "yellow",
}
"""The same in the terminal."""


@dataclass(frozen=True)
class SeenNode:
    """A node of a scored tree."""

    index: int
    token: int
    parent: int
    """-1 for a root."""
    role: str
    """pending, candidate, seed (a planted probe) or probe (a grown one, or one of PTP or PARSE)."""
    depth: int
    accepted: bool
    confidence: float
    """What the drafter claimed: the probability that the node is right, given its parent."""
    probability: float | None
    """The target's own (softmax of its logits, before sampling settings), given its parent; None if not scored."""
    u: float | None
    """Auxiliary input of a PTP probe in place of its token."""


@dataclass(frozen=True)
class Step:
    """One decoding step of one row."""

    row: int
    step: int
    """From 1, for each row."""
    generated: int
    """New tokens of the row before the step."""
    nodes: tuple[SeenNode, ...]
    bonus: int
    """The target's own token after the accepted path."""
    bonus_probability: float | None

    @property
    def committed(self) -> int:
        """Tokens the verdict commits: the accepted candidates and the bonus token."""
        return sum(node.accepted for node in self.nodes)


@dataclass
class Recorder:
    """An observer for `Decoder.observer`: keeps the trees of the first `most` steps of each row."""

    most: int = 1000
    steps: list[Step] = field(default_factory=list)

    def __call__(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        """Record one step of every row. The rows have committed its tokens already."""
        for b, row in enumerate(state.rows):
            if row.steps > self.most:
                continue
            kept = verdict.rows[b]
            path = set(kept.path)
            nodes = tuple(_seen(tree, scores, b, node, node in path) for node in range(int(tree.counts[b])))
            before = max(0, row.generated - len(kept.path))
            chance = _probability(scores, b, kept.path[-1], kept.bonus)
            self.steps.append(Step(row.id, row.steps, before, nodes, kept.bonus, chance))


def rich_tree(step: Step, spell: Spell) -> Tree:
    """The tree of a step for the terminal: accepted path in green, claims (c) and target's probabilities (p)."""
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(f"row {step.row}, step {step.step}: {len(step.nodes)} nodes, {step.committed} committed"))
    branches: dict[int, Tree] = {-1: root}
    path_end = max(node.index for node in step.nodes if node.accepted)
    for node in step.nodes:
        branches[node.index] = branches[node.parent].add(Text(label(node, spell), style=_style(node)))
    bonus = f"{_shown(spell(step.bonus))}  bonus{_told('p', step.bonus_probability)}"
    branches[path_end].add(Text(bonus, style="bold cyan"))
    return root


def label(node: SeenNode, spell: Spell) -> str:
    """A node in one line: its text, role, claim and the target's probability."""
    text = f"u = {node.u:.3f}" if node.u is not None else _shown(spell(node.token))
    if node.role == "pending":
        return f"{text}  pending"
    mark = "accepted" if node.accepted else node.role
    claim = _told("c", node.confidence) if node.role == "candidate" else ""
    return f"{text}  {mark}{claim}{_told('p', node.probability)}"


def draw(steps: Sequence[Step], path: Path, spell: Spell, *, title: str = "") -> None:
    """The trees of some steps as a picture, one below the other; the ending of `path` says which kind (png, svg).

    Raises InputError for no steps, without matplotlib, and if the file cannot be written.
    """
    if not steps:
        raise InputError("inspect: there are no steps to draw; decode something first")
    places = [_layout(step) for step in steps]
    heights = [1.3 + max(y for _, y in place.values()) for place in places]
    deepest = max(x for place in places for x, _ in place.values())
    figure = new_figure(max(6.0, 1.6 + 1.35 * (deepest + 1)), 0.55 * sum(heights) + 0.9)
    figure.set_dpi(130)
    grid = figure.subplots(len(steps), 1, height_ratios=heights, squeeze=False)
    for step, place, axes in zip(steps, places, grid[:, 0], strict=True):
        _draw_step(axes, step, place, spell, deepest)
    if title:
        figure.suptitle(title, fontsize=10)
    figure.legend(
        handles=[_handle(name) for name in COLOURS],
        loc="outside lower center",
        ncols=len(COLOURS),
        frameon=False,
        fontsize=8,
    )
    save_figure(figure, path)


def _seen(tree: TokenTree, scores: Scores, b: int, node: int, accepted: bool) -> SeenNode:
    parent = int(tree.parents[b, node])
    token = int(tree.tokens[b, node])
    role = Role(int(tree.roles[b, node]))
    u = float(tree.inputs[b, node])
    chance = None
    if parent >= 0 and np.isnan(u):
        chance = _probability(scores, b, parent, token)
    return SeenNode(
        index=node,
        token=token,
        parent=parent,
        role=role.name.lower(),
        depth=int(tree.depths[b, node]),
        accepted=accepted,
        confidence=float(tree.confidence[b, node]),
        probability=chance,
        u=None if np.isnan(u) else u,
    )


def _probability(scores: Scores, b: int, node: int, token: int) -> float | None:
    """The target's probability of `token` after a node."""
    if scores.index[b, node] < 0:
        return None
    logits = scores.logits(b, node).astype(np.float64)
    return float(np.exp(logits[token] - logits.max()) / np.exp(logits - logits.max()).sum())


def _layout(step: Step) -> dict[int, tuple[float, float]]:
    """Node -> (depth, line); -2 is the bonus token. Leaves take lines of their own, parents the line of the first."""
    children: dict[int, list[int]] = {}
    for node in step.nodes:
        children.setdefault(node.parent, []).append(node.index)
    end = max(node.index for node in step.nodes if node.accepted)
    # The accepted path comes first, so that it is a straight line on top.
    accepted = {node.index for node in step.nodes if node.accepted} | {-2}
    children.setdefault(end, []).append(-2)
    place: dict[int, tuple[float, float]] = {}
    line = 0.0
    waiting = [(root, 0.0) for root in reversed(children[-1])]
    fresh = True
    while waiting:
        at, depth = waiting.pop()
        if not fresh:
            line += 1.0
        place[at] = (depth, line)
        below = sorted(children.get(at, []), key=lambda child: child not in accepted)
        fresh = bool(below)
        waiting += [(child, depth + 1.0) for child in reversed(below)]
    return place


def _draw_step(axes: Axes, step: Step, place: dict[int, tuple[float, float]], spell: Spell, deepest: float) -> None:
    accepted = {node.index for node in step.nodes if node.accepted}
    end = max(accepted)
    edges = [(node.parent, node.index) for node in step.nodes if node.parent >= 0] + [(end, -2)]
    for parent, child in edges:
        (x0, y0), (x1, y1) = place[parent], place[child]
        on_path = child in accepted or child == -2
        colour, width = (COLOURS["accepted"], 2.2) if on_path else ("#cccccc", 1.0)
        axes.plot([x0, x0 + 0.5, x0 + 0.5, x1], [y0, y0, y1, y1], color=colour, linewidth=width, zorder=1 + on_path)
    for node in step.nodes:
        _box(axes, place[node.index], _short(node, spell), COLOURS[_kind(node)])
    bonus = _shown(spell(step.bonus), 9) + _told("p", step.bonus_probability, "\n")
    _box(axes, place[-2], bonus, COLOURS["bonus"])
    axes.set_xlim(-0.55, deepest + 0.55)
    axes.set_ylim(max(y for _, y in place.values()) + 0.6, -0.6)
    axes.set_axis_off()
    axes.set_title(
        f"row {step.row}, step {step.step}: {len(step.nodes)} nodes, {step.committed} committed",
        loc="left",
        fontsize=8,
    )


def _box(axes: Axes, at: tuple[float, float], text: str, colour: str) -> None:
    # A dollar sign would start a formula.
    axes.text(
        *at,
        text.replace("$", r"\$"),
        ha="center",
        va="center",
        fontsize=6.5,
        linespacing=1.15,
        zorder=3,
        bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": colour, "linewidth": 1.4},
    )


def _handle(name: str) -> object:
    from matplotlib.patches import Patch

    return Patch(facecolor="white", edgecolor=COLOURS[name], linewidth=1.4, label=name)


def _short(node: SeenNode, spell: Spell) -> str:
    text = f"u={node.u:.2f}" if node.u is not None else _shown(spell(node.token), 9)
    if node.role == "pending":
        return text
    claim = _told("c", node.confidence).strip() if node.role == "candidate" else ""
    told = " ".join(part for part in (claim, _told("p", node.probability).strip()) if part)
    return f"{text}\n{told}" if told else text


def _kind(node: SeenNode) -> str:
    return "accepted" if node.accepted and node.role == "candidate" else node.role


def _style(node: SeenNode) -> str:
    return STYLES[_kind(node)]


def _shown(text: str, most: int = 24) -> str:
    """A token's text with its spaces and line breaks visible, cut to `most` characters."""
    visible = text.replace("\n", "⏎").replace("\t", "→").replace(" ", "·")
    visible = "".join(char if char.isprintable() else "?" for char in visible) or "∅"
    return visible if len(visible) <= most else visible[: most - 1] + "…"


def _told(name: str, value: float | None, before: str = " ") -> str:
    return "" if value is None else f"{before}{name}={value:.2f}"
