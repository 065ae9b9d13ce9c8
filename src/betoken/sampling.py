"""From a row's logits to the law its next token is drawn from, and the rules that pick a token.

Everything here works on one node at a time, in float64 and in stable token order, so that a node's law does not
depend on its neighbours in the tree or in the batch. The order of the settings is fixed:

    end-token ban -> repetition, presence, frequency penalties -> bias -> temperature -> top-k -> top-p -> min-p

Ties at the edge of top-k and top-p are broken by token id, smaller first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from betoken import noise
from betoken.state import Row, SamplingSettings

Logits = NDArray[np.float32]
Law = NDArray[np.float64]

_BLOCK = 256
"""Tokens whose probabilities are added up together when a pick needs no more of the law."""


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
    kept = _top_k(adjusted, settings.top_k)
    scores = (adjusted if kept is None else adjusted[kept]).astype(np.float64)
    scores /= settings.temperature
    scores -= scores.max()
    weights = np.exp(scores)
    weights /= weights.sum()
    if settings.top_p < 1.0:
        _keep_top_p(weights, settings.top_p)
    if settings.min_p > 0.0:
        weights[weights < settings.min_p * weights.max()] = 0.0
    weights /= weights.sum()
    if kept is None:
        return weights
    out = np.zeros(adjusted.shape[0])
    out[kept] = weights
    return out


def _top_k(adjusted: Logits, k: int) -> NDArray[np.int64] | None:
    """Ids of the k greatest logits in id order, smaller ids first among equals; None if all are kept."""
    if not 0 < k < adjusted.shape[0]:
        return None
    edge = np.partition(adjusted, -k)[-k]
    kept = np.flatnonzero(adjusted >= edge)
    tied = kept[adjusted[kept] == edge]
    surplus = tied[tied.size - (kept.size - k) :]
    return kept[~np.isin(kept, surplus)] if surplus.size else kept


def _keep_top_p(weights: Law, p: float) -> None:
    """Zero, in place, what comes after the most probable tokens that first reach p together.

    Only what can matter is sorted: tokens are taken by thresholds until enough mass is there. The cumulative sums
    run over the same numbers in the same order as a full sort's, so the result is the same to the last bit.
    """
    greatest = weights.max()
    for share in (2.0**-4, 2.0**-8, 2.0**-12, 2.0**-16, 2.0**-20, 0.0):
        able = weights[weights >= share * greatest]
        if share and able.sum() < p:
            continue
        values = np.sort(able)[::-1]
        reached = np.cumsum(values)
        if reached[-1] >= p:
            break
    last = min(int(np.searchsorted(reached, p)), values.shape[0] - 1)
    edge = values[last]
    tied = np.flatnonzero(weights == edge)
    surplus = tied[last + 1 - int(np.count_nonzero(values > edge)) :]
    weights[weights < edge] = 0.0
    weights[surplus] = 0.0


def pick_inverse_cdf(probabilities: Law, u: float) -> int:
    """First token whose cumulative probability exceeds u, in token order; the last possible one at the end."""
    cumulative = np.cumsum(probabilities)
    token = int(np.searchsorted(cumulative, u, side="right"))
    if token >= probabilities.shape[0] or probabilities[token] == 0.0:
        token = int(np.flatnonzero(probabilities)[-1])
    return token


def pick_softmax(adjusted: Logits, temperature: float, u: float) -> int:
    """`pick_inverse_cdf` of the whole softmax [V] of adjusted logits [V], without dividing and adding all of it up.

    Sums over blocks lead to the token. They are not rounded as the cumulative sums of the law are, so near the edge of
    a token's interval, where that could matter, the law decides.
    """
    weights = adjusted.astype(np.float64)
    weights /= temperature
    weights -= weights.max()
    np.exp(weights, out=weights)
    blocks = np.cumsum(np.add.reduceat(weights, np.arange(0, weights.shape[0], _BLOCK)))
    aim = u * float(blocks[-1])
    block = int(blocks.searchsorted(aim, side="right"))
    reached = np.cumsum(weights[block * _BLOCK : (block + 1) * _BLOCK])
    reached += blocks[block - 1] if block else 0.0
    index = int(reached.searchsorted(aim, side="right"))
    if index < reached.shape[0]:
        below = float(reached[index - 1]) if index else float(blocks[block - 1]) if block else 0.0
        # Adding up n numbers that sum to 1, in whatever order, is off by n / 2 units of 2**-52 at most.
        margin = (2 * weights.shape[0] + 4096) * 2.0**-52 * float(blocks[-1])
        if below + margin < aim < float(reached[index]) - margin:
            return block * _BLOCK + index
    return pick_inverse_cdf(law(adjusted, SamplingSettings(temperature)), u)


def pick_gumbel(probabilities: Law, gumbels: NDArray[np.float64]) -> int:
    """Argmax of log-probability plus Gumbel noise, [V] each: the same law by other means."""
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(probabilities) + gumbels))


def pick(adjusted: Logits, row: Row, position: int, *, gumbel: bool = False) -> int:
    """The token that plain decoding commits as new token number `position` of the row, given adjusted logits [V]."""
    settings = row.sampling
    if settings.greedy:
        return int(np.argmax(adjusted))
    if settings.keeps_all and not gumbel:
        return pick_softmax(adjusted, settings.temperature, _number(row, position))
    return draw(law(adjusted, settings), row, position, gumbel=gumbel)


def draw(probabilities: Law, row: Row, position: int, *, gumbel: bool = False) -> int:
    """The token that the numbers of new token `position` of the row draw from a law [V]."""
    settings = row.sampling
    if gumbel:
        return pick_gumbel(probabilities, noise.gumbels(settings.seed, row.sample, position, probabilities.shape[0]))
    return pick_inverse_cdf(probabilities, _number(row, position))


def _number(row: Row, position: int) -> float:
    """u_k of new token `position` of the row."""
    return noise.uniform(row.sampling.seed, row.sample, position)


class TokenLogprob(NamedTuple):
    """How probable a token was, under the logits after `adjust` and before the temperature."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """The most probable tokens and their log-probabilities, best first, ties by token id; banned ones never."""


def logprob(adjusted: Logits, token: int, alternatives: int) -> TokenLogprob:
    """Log-probability of `token` and of the most probable tokens, given adjusted logits [V]."""
    scores = adjusted.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    count = min(alternatives, scores.shape[0])
    near = np.flatnonzero(scores >= np.partition(scores, -count)[-count]) if count else np.zeros(0, dtype=np.int64)
    best = near[np.lexsort((near, -scores[near]))][:count]
    top = tuple((int(one), float(scores[one])) for one in best if scores[one] > -np.inf)
    return TokenLogprob(token, float(scores[token]), top)
