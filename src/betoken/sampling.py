"""From a row's logits to the law its next token is drawn from, and the rules that pick a token.

Everything here works on one node at a time, in float64 and in stable token order, so that a node's law does not
depend on its neighbours in the tree or in the batch. The order of the settings is fixed:

    end-token ban -> repetition, presence, frequency penalties -> bias -> temperature -> top-k -> top-p -> min-p

Ties at the edge of top-k and top-p are broken by token id, smaller first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from betoken import noise
from betoken.state import Row, SamplingSettings

Logits = NDArray[np.float32]
Law = NDArray[np.float64]


def adjust(logits: Logits, row: Row, drafted: Sequence[int]) -> Logits:
    """Logits [V] after everything that comes before the temperature.

    `drafted` are the tree's tokens between the row's committed text and this node, the node itself included: the
    node's history is the row's tokens followed by these. Returns `logits` itself where nothing applies.
    """
    settings = row.sampling
    banned = row.generated + len(drafted) < row.stop.min_new_tokens and bool(row.end_ids)
    if not (banned or settings.logit_bias or settings.needs_history):
        return logits
    out = logits.astype(np.float32, copy=True)
    if settings.needs_history:
        _penalise(out, row, drafted)
    for token, bias in settings.logit_bias.items():
        out[token] += bias
    if banned:
        out[sorted(row.end_ids)] = -np.inf
    return out


def _penalise(out: Logits, row: Row, drafted: Sequence[int]) -> None:
    """Repetition over prompt and answer (CTRL), presence and frequency over the answer alone (OpenAI), in place."""
    settings = row.sampling
    if settings.repetition_penalty != 1.0:
        seen = np.unique(np.array([*row.tokens, *drafted], dtype=np.int64))
        values = out[seen]
        penalty = np.float32(settings.repetition_penalty)
        out[seen] = np.where(values > 0, values / penalty, values * penalty)
    if settings.presence_penalty or settings.frequency_penalty:
        counts = row.counts.copy()
        counts.update(int(token) for token in drafted)
        tokens = np.array(sorted(counts), dtype=np.int64)
        if tokens.size:
            times = np.array([counts[int(token)] for token in tokens], dtype=np.float32)
            cost = np.float32(settings.frequency_penalty) * times + np.float32(settings.presence_penalty)
            out[tokens] -= cost


def law(adjusted: Logits, settings: SamplingSettings) -> Law:
    """The probabilities [V] in float64 that a token is drawn from, of logits [V] that `adjust` returned.

    Greedy settings give all mass to the first maximum.
    """
    if settings.greedy:
        out = np.zeros(adjusted.shape[0])
        out[int(np.argmax(adjusted))] = 1.0
        return out
    scores = adjusted.astype(np.float64) / settings.temperature
    scores -= scores.max()
    weights = np.exp(scores)
    if 0 < settings.top_k < weights.shape[0]:
        weights = _keep_top_k(weights, settings.top_k)
    weights /= weights.sum()
    if settings.top_p < 1.0:
        weights = _keep_top_p(weights, settings.top_p)
    if settings.min_p > 0.0:
        weights[weights < settings.min_p * weights.max()] = 0.0
    return weights / weights.sum()


def _keep_top_k(weights: Law, k: int) -> Law:
    edge = np.partition(weights, -k)[-k]
    above = weights > edge
    tied = np.flatnonzero(weights == edge)[: k - int(above.sum())]
    out = np.where(above, weights, 0.0)
    out[tied] = edge
    return out


def _keep_top_p(weights: Law, p: float) -> Law:
    order = np.lexsort((np.arange(weights.shape[0]), -weights)) if p < 1.0 else np.arange(weights.shape[0])
    reached = np.cumsum(weights[order])
    last = min(int(np.searchsorted(reached, p)), weights.shape[0] - 1)
    out = np.zeros_like(weights)
    out[order[: last + 1]] = weights[order[: last + 1]]
    return out


def pick_inverse_cdf(probabilities: Law, u: float) -> int:
    """First token whose cumulative probability exceeds u, in token order; the last possible one at the end."""
    cumulative = np.cumsum(probabilities)
    token = int(np.searchsorted(cumulative, u, side="right"))
    if token >= probabilities.shape[0] or probabilities[token] == 0.0:
        token = int(np.flatnonzero(probabilities)[-1])
    return token


def pick_gumbel(probabilities: Law, gumbels: NDArray[np.float64]) -> int:
    """Argmax of log-probability plus Gumbel noise, [V] each: the same law by other means."""
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(probabilities) + gumbels))


def pick(adjusted: Logits, row: Row, position: int, *, gumbel: bool = False) -> int:
    """The token that plain decoding commits as new token number `position` of the row, given adjusted logits [V]."""
    settings = row.sampling
    if settings.greedy:
        return int(np.argmax(adjusted))
    probabilities = law(adjusted, settings)
    if gumbel:
        return pick_gumbel(probabilities, noise.gumbels(settings.seed, row.sample, position, adjusted.shape[0]))
    return pick_inverse_cdf(probabilities, noise.uniform(settings.seed, row.sample, position))
