"""Which random numbers pick a token: the interval of u that `sampling.pick_inverse_cdf` maps to it.

PTP (arXiv 2512.21323, section 3) replaces a known token by a number of its interval: u = low + v (high - low) with
v ~ Beta(b, b). The functions with array arguments are the reference, in numpy, one law at a time; those with tensors
do the same for whole batches and agree with `sampling.law` up to the last bits of exp.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.sampling import Law
from betoken.state import SamplingSettings

_CHUNK = 1 << 23
"""Entries [rows, V] that are worked on in float64 at a time: 64 MB."""


class Interval(NamedTuple):
    """[low, high): the numbers that pick a token. Empty (low == high) for a token that is never picked."""

    low: float
    high: float


class Intervals(NamedTuple):
    """The same for many tokens: float64 tensors of one shape."""

    low: torch.Tensor
    high: torch.Tensor

    @property
    def possible(self) -> torch.Tensor:
        """Whether some number picks the token."""
        return self.high > self.low


def interval(probabilities: Law, token: int) -> Interval:
    """The interval of a token under a law [V]. The last possible token owns everything up to 1."""
    cumulative = np.minimum(np.cumsum(probabilities), 1.0)
    low = float(cumulative[token - 1]) if token else 0.0
    if probabilities[token] == 0.0:
        return Interval(low, low)
    high = 1.0 if token == np.flatnonzero(probabilities)[-1] else float(cumulative[token])
    return Interval(low, high)


def place(where: Interval, v: float) -> float:
    """The number of a non-empty interval at v in [0, 1]: always inside, never its open end."""
    return float(min(where.low + v * (where.high - where.low), np.nextafter(where.high, where.low)))


def places(where: Intervals, v: torch.Tensor) -> torch.Tensor:
    """The same for tensors. In an empty interval: its low end, or the number below it where that would be 1."""
    inside = where.low + v * (where.high - where.low)
    return torch.minimum(inside, torch.nextafter(where.high, torch.zeros_like(where.low))).clamp(min=0.0)


def spread(generator: np.random.Generator, shape: tuple[int, ...], b: float) -> NDArray[np.float64]:
    """v ~ Beta(b, b) of a shape; b = 1 is uniform."""
    return generator.random(shape) if b == 1.0 else generator.beta(b, b, shape)


def laws(logits: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    """[..., V] float64 laws of logits [..., V] under temperature, top-k, top-p, min-p: `sampling.law`, batched."""
    if settings.greedy:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits, dtype=torch.float64).scatter_(-1, best, 1.0)
    scores = logits.to(torch.float64) / settings.temperature
    if 0 < settings.top_k < logits.shape[-1]:
        scores = scores.masked_fill(~_greatest(logits, settings.top_k), -torch.inf)
    weights = torch.softmax(scores, -1)
    if settings.top_p < 1.0:
        weights = weights.masked_fill(~_reaching(weights, settings.top_p, settings.top_k), 0.0)
    if settings.min_p > 0.0:
        weights = weights.masked_fill(weights < settings.min_p * weights.amax(-1, keepdim=True), 0.0)
    return weights / weights.sum(-1, keepdim=True)


def intervals_of(law: torch.Tensor, tokens: torch.Tensor) -> Intervals:
    """The intervals of tokens [...] under laws [..., V]."""
    cumulative = law.cumsum(-1).clamp(max=1.0)
    chosen = tokens[..., None]
    below = cumulative.gather(-1, (chosen - 1).clamp(min=0)).squeeze(-1)
    low = torch.where(tokens > 0, below, torch.zeros_like(below))
    high = torch.where(tokens == _last(law), torch.ones_like(low), cumulative.gather(-1, chosen).squeeze(-1))
    possible = law.gather(-1, chosen).squeeze(-1) > 0.0
    return Intervals(low, torch.where(possible, high, low))


def picks(law: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """[...] the tokens that numbers u [...] pick from laws [..., V]."""
    cumulative = law.cumsum(-1)
    found = torch.searchsorted(cumulative, u[..., None].contiguous(), right=True).squeeze(-1)
    return torch.minimum(found, _last(law))


def token_intervals(logits: torch.Tensor, tokens: torch.Tensor, settings: SamplingSettings) -> Intervals:
    """Intervals of tokens [W] under the laws of logits [W, V], a few rows at a time."""
    parts = [intervals_of(laws(part, settings), own) for part, own in _chunks(logits, tokens)]
    empty = torch.zeros(0, dtype=torch.float64, device=logits.device)
    low, high = zip(*parts, strict=True) if parts else ((empty,), (empty,))
    return Intervals(torch.cat(low), torch.cat(high))


def picked_tokens(logits: torch.Tensor, u: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    """[W] the tokens that numbers u [W] pick from the laws of logits [W, V], a few rows at a time."""
    parts = [picks(laws(part, settings), own) for part, own in _chunks(logits, u)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64, device=logits.device)


def _chunks(logits: torch.Tensor, others: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rows = max(1, _CHUNK // logits.shape[-1])
    return list(zip(torch.split(logits, rows), torch.split(others, rows), strict=True)) if len(logits) else []


def _last(law: torch.Tensor) -> torch.Tensor:
    """[...] the last token of nonzero probability."""
    return law.shape[-1] - 1 - (law > 0.0).flip(-1).to(torch.int8).argmax(-1)


def _greatest(values: torch.Tensor, k: int) -> torch.Tensor:
    """[..., V] whether a value is among the k greatest, smaller ids first among equals."""
    edge = values.topk(k, -1).values[..., -1:]
    above, tied = values > edge, values == edge
    room = k - above.sum(-1, keepdim=True)
    return above | (tied & (tied.cumsum(-1) <= room))


def _reaching(weights: torch.Tensor, p: float, top_k: int) -> torch.Tensor:
    """[..., V] the most probable tokens that first reach p together, smaller ids first among equals."""
    size = weights.shape[-1]
    ordered = weights.topk(top_k if 0 < top_k < size else size, -1).values
    reached = torch.searchsorted(ordered.cumsum(-1), torch.full_like(ordered[..., :1], p))
    last = reached.clamp(max=ordered.shape[-1] - 1)
    edge = ordered.gather(-1, last)
    above, tied = weights > edge, weights == edge
    room = last + 1 - above.sum(-1, keepdim=True)
    return above | (tied & (tied.cumsum(-1) <= room))
