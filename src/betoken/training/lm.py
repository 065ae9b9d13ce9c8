"""Plain language modelling: teachers, small draft models, and baselines of a student's size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name every torch user knows

from betoken.training.build import Base
from betoken.training.data import Rows
from betoken.training.fit import Loss
from betoken.training.model import CausalModel


@dataclass
class LanguageTask:
    """Every weight of a model learns to predict the next token of each row."""

    base: Base
    data: Rows

    def __post_init__(self) -> None:
        self.metrics: tuple[str, ...] = ("perplexity",)
        self.model = CausalModel(self.base.model)
        self.rows, self.device = len(self.data), self.model.device

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """All weights."""
        return dict(sorted(self.base.model.named_parameters()))

    def loss(self, rows: np.ndarray, step: int, part: int) -> Loss:
        """Mean cross-entropy over the tokens from each row's `first` on."""
        value = next_token_losses(self.model, self.data.take(rows)).mean()
        return Loss(value, (math.exp(min(float(value.detach()), 50.0)),))


def next_token_losses(model: CausalModel, rows: Rows) -> torch.Tensor:
    """[W] minus log-probability of each token from `first` on, row after row."""
    tokens = torch.from_numpy(rows.tokens).to(model.device)
    return text_losses(model, model.read(tokens).hidden, tokens, rows)


def text_losses(model: CausalModel, hidden: torch.Tensor, tokens: torch.Tensor, rows: Rows) -> torch.Tensor:
    """The same where pass 1 has run: states [B, N, H] of tokens [B, N]."""
    places = np.arange(1, rows.tokens.shape[1])
    counted = torch.from_numpy((places >= rows.first[:, None]) & (places < rows.lengths[:, None])).to(model.device)
    return F.cross_entropy(model.head(hidden[:, :-1][counted]), tokens[:, 1:][counted], reduction="none")


@torch.no_grad()
def perplexity(model: CausalModel, rows: Rows, batch: int = 8) -> float:
    """exp of the mean loss over all tokens of the rows from `first` on."""
    parts = [next_token_losses(model, rows.take(slice(at, at + batch))) for at in range(0, len(rows), batch)]
    return math.exp(min(float(torch.cat(parts).double().mean()), 50.0))
