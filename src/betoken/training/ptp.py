"""The PTP task: branches of auxiliary nodes over rows of text, in two passes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np
import torch
from torch import nn

from betoken.errors import InputError
from betoken.models.student import Objective
from betoken.state import SamplingSettings
from betoken.training.data import Rows
from betoken.training.draws import Purpose, generator
from betoken.training.fit import Loss
from betoken.training.intervals import Intervals, picked_tokens, places, spread, token_intervals
from betoken.training.lm import text_losses
from betoken.training.model import CausalModel, StudentModel, Text
from betoken.training.objectives import (
    PLAIN,
    Divergence,
    alive_nodes,
    input_vectors,
    inverse_autoregressive,
    node_loss,
)
from betoken.training.windows import Windows, cut_points


@dataclass(frozen=True, kw_only=True)
class PtpSettings:
    """What the auxiliary nodes learn."""

    objective: Objective
    window: int = 16
    """L, nodes of a branch."""
    cuts: int = 16
    """C, branches over each row."""
    law: SamplingSettings = PLAIN
    """The sampling law whose random numbers are learnt."""
    divergence: Divergence = "kl"
    beta: float = 1.0
    """v ~ Beta(b, b) places u in its interval: below 1 the ends are seen more often."""
    text_weight: float = 1.0
    """Weight of the plain next-token loss beside the branches' (weights "same" only), which keeps the model an ordinary
    one that can be decoded, and verify itself."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.objective not in get_args(Objective):
            raise InputError(f"unknown objective {self.objective!r}; choose one of {', '.join(get_args(Objective))}")
        if self.divergence not in ("kl", "reverse-kl"):
            raise InputError(f"unknown divergence {self.divergence!r}; choose kl or reverse-kl")
        if self.window < 1 or self.cuts < 1:
            raise InputError("window and cuts must be at least 1")
        if not (0.0 < self.beta < math.inf and 0.0 <= self.text_weight < math.inf):
            raise InputError("beta must be above 0, text_weight not negative, and both finite")
        if self.objective == "scratch" and self.law != PLAIN:
            raise InputError("objective scratch learns the model's own law: temperature 1 without top-k, top-p, min-p")
        if self.objective == "c-ptp" and self.law.greedy:
            raise InputError("objective c-ptp learns a law: temperature 0 has none, use o-ptp")


class Branches(NamedTuple):
    """Auxiliary nodes of a batch after both passes; [B, L, C] unless said otherwise."""

    windows: Windows
    labels: torch.Tensor
    """The token each node belongs to."""
    u: torch.Tensor | None
    """The number of each node's token; None for `independent`."""
    counted: torch.Tensor
    """Nodes whose token exists and whose inputs do: W of them."""
    states: torch.Tensor
    """[W, H] of the counted nodes."""


@dataclass
class PtpTask:
    """A student learns from rows; the teacher is pass 1 unless `teacher` is given or the rows tell intervals."""

    model: StudentModel
    data: Rows
    settings: PtpSettings
    teacher: CausalModel | None = None
    """Another model of the same vocabulary whose law is learnt, instead of the base's."""

    def __post_init__(self) -> None:
        self.rows, self.device = len(self.data), self.model.base.device
        joint = self.model.kind == "same" and self.settings.text_weight > 0
        self.metrics: tuple[str, ...] = ("text loss", self._measure) if joint else (self._measure,)
        if self.settings.window >= self.data.tokens.shape[1]:
            raise InputError(
                f"a window of {self.settings.window} does not fit into rows of {self.data.tokens.shape[1]} tokens: "
                "lower --window or raise --sequence"
            )

    @property
    def models_text(self) -> bool:
        """Whether the branches say the text's own law and belong to one model with it: then they have a perplexity."""
        own = self.model.kind == "same" and self.settings.law == PLAIN
        return own and self.settings.objective in ("scratch", "c-ptp")

    @property
    def _measure(self) -> str:
        return "perplexity" if self.settings.objective == "scratch" else "right in a row"

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """See `StudentModel.parameters`."""
        return self.model.parameters()

    def loss(self, rows: np.ndarray, step: int, part: int) -> Loss:
        """Loss of the branches, and of the text where the base learns too."""
        numbers = generator(self.settings.seed, Purpose.WINDOWS, step, part)
        batch = self.data.take(rows)
        tokens = torch.from_numpy(batch.tokens).to(self.device)
        text = self.model.read(tokens)
        teacher = self.taught(tokens, text)
        branches = self._branches(batch, tokens, text, teacher, numbers)
        logits = self.model.student.head(branches.states)
        labels = branches.labels[branches.counted]
        target = None
        if self.settings.objective == "c-ptp":
            target = self._said(teacher, branches.windows.index, branches.counted)
        settings = self.settings
        value = node_loss(settings.objective, logits, labels, target, settings.law, settings.divergence)
        measured = self._progress(value, logits, branches)
        if len(self.metrics) == 1:
            return Loss(value, (measured,))
        plain = text_losses(self.model.base, text.hidden, tokens, batch).mean()
        return Loss(value + settings.text_weight * plain, (float(plain.detach()), measured))

    def taught(self, tokens: torch.Tensor, text: Text) -> tuple[CausalModel, torch.Tensor]:
        """The model whose law is learnt, and its states [B, N, H]."""
        if self.teacher is None:
            return self.model.base, text.hidden.detach()
        with torch.no_grad():
            return self.teacher, self.teacher.read(tokens).hidden

    @torch.no_grad()
    def _said(
        self, teacher: tuple[CausalModel, torch.Tensor], index: torch.Tensor, counted: torch.Tensor
    ) -> torch.Tensor:
        """[W, V] the teacher's logits of the counted tokens: those at the position before each."""
        model, hidden = teacher
        rows = torch.arange(len(index), device=index.device)[:, None, None].expand(index.shape)
        return model.head(hidden[rows[counted], index[counted] - 1])

    def _branches(
        self,
        batch: Rows,
        tokens: torch.Tensor,
        text: Text,
        teacher: tuple[CausalModel, torch.Tensor],
        numbers: np.random.Generator,
    ) -> Branches:
        """Cut points, numbers, and pass 2."""
        settings = self.settings
        starts = cut_points(numbers, batch.first, batch.lengths, settings.window, settings.cuts)
        windows = Windows.over(starts, settings.window, batch.lengths, tokens.shape[1], self.device)
        labels = windows.of_text(tokens)
        v = torch.from_numpy(spread(numbers, tuple(labels.shape), settings.beta)).to(self.device)
        u, possible = None, torch.ones_like(windows.inside)
        if settings.objective == "scratch":
            u = inverse_autoregressive(self.model, text, windows, labels, v)
        elif settings.objective != "independent":
            where = self.intervals(batch, windows, labels, teacher)
            u, possible = places(where, v), where.possible
        counted = windows.inside & alive_nodes(settings.objective, possible | ~windows.inside)
        if not counted.any():
            raise InputError("no node of a batch can be learnt: no token of the data is possible under this law")
        return Branches(windows, labels, u, counted, self.states(text, windows, u, counted))

    def states(self, text: Text, windows: Windows, u: torch.Tensor | None, counted: torch.Tensor) -> torch.Tensor:
        """[W, H] pass 2: states of the counted nodes."""
        vectors = input_vectors(self.model, self.settings.objective, u, windows)
        states = self.model.branch(vectors, windows.mask, windows.positions, text.keys)
        return states[counted.flatten(1)]

    @torch.no_grad()
    def intervals(
        self, batch: Rows, windows: Windows, labels: torch.Tensor, teacher: tuple[CausalModel, torch.Tensor]
    ) -> Intervals:
        """[B, L, C] intervals of the labels: as the rows tell, else under the teacher's law. Empty beyond the text."""
        if batch.low is not None and batch.high is not None:
            ends = (windows.of_text(torch.from_numpy(part).to(self.device)) for part in (batch.low, batch.high))
            low, high = (torch.where(windows.inside, part, 0.0) for part in ends)
            return Intervals(low, high)
        needed = torch.zeros(batch.tokens.shape, dtype=torch.bool, device=self.device)
        needed.scatter_(1, windows.index.flatten(1), True)
        places_of = torch.from_numpy(batch.tokens).to(self.device)[needed]
        logits = teacher[0].head(teacher[1].roll(1, 1)[needed])
        found = token_intervals(logits, places_of, self.settings.law)
        spreads = (torch.zeros(needed.shape, dtype=torch.float64, device=self.device) for _ in range(2))
        low, high = (
            windows.of_text(full.masked_scatter(needed, part)) for full, part in zip(spreads, found, strict=True)
        )
        return Intervals(torch.where(windows.inside, low, 0.0), torch.where(windows.inside, high, 0.0))

    @torch.no_grad()
    def _progress(self, value: torch.Tensor, logits: torch.Tensor, branches: Branches) -> float:
        """What the bar shows: right tokens in a row from the first node, or the perplexity of `scratch`."""
        if self.settings.objective == "scratch":
            return math.exp(min(float(value.detach()), 50.0))
        right = torch.zeros_like(branches.counted)
        right[branches.counted] = self.said(logits, branches) == branches.labels[branches.counted]
        return float(right.cumprod(1).sum(1).double().mean())

    def said(self, logits: torch.Tensor, branches: Branches) -> torch.Tensor:
        """[W] the tokens that nodes with logits [W, V] predict: the argmax, or what u picks from the law."""
        if self.settings.objective in ("o-ptp", "independent") or branches.u is None:
            return logits.argmax(-1)
        return picked_tokens(logits, branches.u[branches.counted], self.settings.law)
