"""How many tokens a student gets right in a row, and how well one trained from scratch models the text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from betoken.training.data import Rows
from betoken.training.draws import Purpose, generator
from betoken.training.fit import Tell
from betoken.training.intervals import picked_tokens, places, token_intervals
from betoken.training.model import CausalModel
from betoken.training.objectives import inverse_autoregressive
from betoken.training.ptp import Branches, PtpSettings, PtpTask
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
    loss: float
    """Mean minus log-probability that the nodes give to their tokens, in nats; where `PtpTask.models_text`, under
    numbers drawn in the student's own intervals."""
    node_losses: tuple[float, ...]
    """[L] the same by node: a student has to follow more numbers the later a node stands in its branch."""
    perplexity: float | None = None
    """exp of `loss` where `PtpTask.models_text`, that of a model of text."""

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
    losses = np.zeros((2, window))
    for at in range(0, len(rows), batch):
        part = rows.take(slice(at, at + batch))
        numbers = generator(task.settings.seed, Purpose.VALIDATION, at)
        right, alive, loss = _measure(task, part, numbers)
        _tally(tallies, right, alive)
        losses += loss
        tell(min(at + batch, len(rows)), len(rows), "validating")
    found = _validation(tallies, len(rows) * task.settings.cuts, losses)
    if task.models_text:
        return replace(found, perplexity=math.exp(min(found.loss, 50.0)))
    return found


@torch.no_grad()
def validate_draft_model(
    teacher: CausalModel, drafter: CausalModel, rows: Rows, settings: PtpSettings, *, batch: int = 8
) -> Validation:
    """The same of an ordinary draft model that guesses with the teacher's numbers, one call a token.

    The branches and numbers are those that `validate` gives students of these settings. A guess counts while all
    before it were right, so it stands behind the text itself, and one pass over the text tells all guesses.
    """
    window = settings.window
    tallies = [np.zeros((2, window)), np.zeros((2, window - 1))]
    losses = np.zeros((2, window))
    for at in range(0, len(rows), batch):
        part = rows.take(slice(at, at + batch))
        numbers = generator(settings.seed, Purpose.VALIDATION, at)
        starts = cut_points(numbers, part.first, part.lengths, window, settings.cuts)
        tokens = torch.from_numpy(part.tokens).to(teacher.device)
        windows = Windows.over(starts, window, part.lengths, tokens.shape[1], teacher.device)
        labels = windows.of_text(tokens)
        v = torch.from_numpy(numbers.random(labels.shape)).to(teacher.device)
        true, guessed = (_logits_before(model, tokens, windows) for model in (teacher, drafter))
        where = token_intervals(true, labels.flatten(), settings.law)
        said = picked_tokens(guessed, places(where, v.flatten()), settings.law).view(labels.shape)
        alive = windows.inside & where.possible.view(labels.shape).cumprod(1).bool()
        losses += _by_node(guessed[alive.flatten()], labels, alive)
        _tally(tallies, ((said == labels) & alive).cpu().numpy(), alive.cpu().numpy())
    return _validation(tallies, len(rows) * settings.cuts, losses)


def _logits_before(model: CausalModel, tokens: torch.Tensor, windows: Windows) -> torch.Tensor:
    """[B * L * C, V] a model's logits of the windows' tokens: those at the place before each."""
    row = torch.arange(len(tokens), device=tokens.device)[:, None, None].expand(windows.index.shape)
    return model.head(model.read(tokens).hidden[row, windows.index - 1].flatten(0, 2))


def _validation(tallies: Sequence[np.ndarray], branches: int, losses: np.ndarray) -> Validation:
    """`losses` [2, L]: sums by node, and of how many nodes."""
    first_runs, runs = (_survival(tally) for tally in tallies)
    by_node = np.divide(losses[0], losses[1], out=np.zeros_like(losses[0]), where=losses[1] > 0)
    loss = float(losses[0].sum() / losses[1].sum())
    return Validation(first_runs, runs, branches, loss, tuple(map(float, by_node)))


def _by_node(logits: torch.Tensor, labels: torch.Tensor, counted: torch.Tensor) -> np.ndarray:
    """[2, L] sums of losses and numbers of the W counted nodes; logits [W, V], labels and counted [B, L, C]."""
    loss = torch.zeros(labels.shape, dtype=torch.float64, device=labels.device)
    loss[counted] = cross_entropy(logits, labels[counted], reduction="none").double()
    return torch.stack([loss.sum((0, 2)), counted.sum((0, 2))]).cpu().numpy()


def _measure(task: PtpTask, part: Rows, numbers: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[B, L, C] which nodes are right, [B, L, C] which count, and their losses as `_by_node` gives them."""
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
    right, logits, counted = torch.zeros_like(alive), task.model.student.head(states), alive
    right[windows.inside] = task.said(logits, branches) == labels[windows.inside]
    if task.models_text:
        own = inverse_autoregressive(task.model, text, windows, labels, v)
        logits = task.model.student.head(task.states(text, windows, own, windows.inside))
        counted = windows.inside
    loss = _by_node(logits[counted[windows.inside]], labels, counted)
    return right.cpu().numpy(), alive.cpu().numpy(), loss


def _tally(tallies: Sequence[np.ndarray], right: np.ndarray, alive: np.ndarray) -> None:
    """Count the runs from the first and from the second node."""
    for tally, first in zip(tallies, (0, 1), strict=True):
        _count(tally, right[:, first:], alive[:, first:])


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
