"""How many tokens a student gets right in a row, and how well one trained from scratch models the text."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from betoken.training.data import Rows
from betoken.training.draws import Purpose, generator
from betoken.training.fit import Tell
from betoken.training.intervals import places
from betoken.training.objectives import inverse_autoregressive
from betoken.training.ptp import Branches, PtpTask
from betoken.training.windows import Windows, cut_points


@dataclass(frozen=True)
class Validation:
    """What held-out rows say of a student."""

    first_runs: tuple[float, ...]
    """[L] P(n >= 1), ..., n = run of right tokens from a branch's first node; u uniform in each token's interval."""
    runs: tuple[float, ...]
    """[L - 1] the same from its second node, whatever the first one said."""
    branches: int
    """Branches measured."""
    perplexity: float | None = None
    """`scratch` only: exp of the mean loss of all nodes, each u drawn under the student's own law."""

    @property
    def mean_run(self) -> float:
        """Right tokens in a row from the first node, on average."""
        return sum(self.first_runs)


@torch.no_grad()
def validate(task: PtpTask, rows: Rows, *, batch: int = 8, tell: Tell) -> Validation:
    """Measure a student on rows: `task.settings.cuts` branches over each.

    Tokens are checked as in decoding: against what the base's law picks with the same u. A branch counts up to the
    first token that no number picks, or the end of its row; the estimate is a product of conditional shares
    (Kaplan and Meier), so what is cut off does not bend it.
    """
    window = task.settings.window
    tallies = [np.zeros((2, window)), np.zeros((2, window - 1))]
    losses: list[torch.Tensor] = []
    for at in range(0, len(rows), batch):
        part = rows.take(slice(at, at + batch))
        numbers = generator(task.settings.seed, Purpose.VALIDATION, at)
        right, alive, loss = _measure(task, part, numbers)
        for tally, first in zip(tallies, (0, 1), strict=True):
            _count(tally, right[:, first:], alive[:, first:])
        losses += [] if loss is None else [loss]
        tell(min(at + batch, len(rows)), len(rows), "validating")
    first_runs, runs = (_survival(tally) for tally in tallies)
    mean = math.exp(min(float(torch.cat(losses).double().mean()), 50.0)) if losses else None
    return Validation(first_runs, runs, len(rows) * task.settings.cuts, mean)


def _measure(
    task: PtpTask, part: Rows, numbers: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, torch.Tensor | None]:
    """[B, L, C] which nodes are right, [B, L, C] which count, and for `scratch` the loss [W] under its own numbers."""
    settings = task.settings
    starts = cut_points(numbers, part.first, part.lengths, settings.window, settings.cuts)
    tokens = torch.from_numpy(part.tokens).to(task.device)
    windows = Windows.over(starts, settings.window, part.lengths, tokens.shape[1], task.device)
    labels = windows.of_text(tokens)
    text = task.model.read(tokens)
    v = torch.from_numpy(numbers.random(labels.shape)).to(task.device)
    where = task.intervals(part, windows, labels, task.taught(tokens, text))
    u = None if settings.objective == "independent" else places(where, v)
    alive = windows.inside & where.possible.cumprod(1).bool()
    states = task.states(text, windows, u, windows.inside)
    branches = Branches(windows, labels, u, windows.inside, states)
    right = torch.zeros_like(alive)
    right[windows.inside] = task.said(task.model.student.head(states), branches) == labels[windows.inside]
    loss = None
    if settings.objective == "scratch":
        own = inverse_autoregressive(task.model, text, windows, labels, v)
        logits = task.model.student.head(task.states(text, windows, own, windows.inside))
        loss = torch.nn.functional.cross_entropy(logits, labels[windows.inside], reduction="none")
    return right.cpu().numpy(), alive.cpu().numpy(), loss


def _count(tally: np.ndarray, right: np.ndarray, alive: np.ndarray) -> None:
    """Add to tally [2, L]: branches that were right so far and go on, and those of them that are right here too."""
    before = np.ones((right.shape[0], right.shape[2]), dtype=bool)
    for q in range(right.shape[1]):
        able = before & alive[:, q]
        before = able & right[:, q]
        tally[:, q] += (able.sum(), before.sum())


def _survival(tally: np.ndarray) -> tuple[float, ...]:
    shares = np.divide(tally[1], tally[0], out=np.zeros_like(tally[1]), where=tally[0] > 0)
    return tuple(float(value) for value in np.cumprod(shares))
