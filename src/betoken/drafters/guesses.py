"""Guesses of a drafter that has a law: the children it proposes for one node, and how sure it is of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from betoken.sampling import Law, pick_inverse_cdf


class Guesses(NamedTuple):
    """Children that the draft model proposes for one node."""

    tokens: list[int]
    confidence: list[float]
    """[children] never a function of the drawn tokens, only of their law: a node policy that trims by it would
    otherwise select among draws, and rejection sampling would no longer be lossless."""
    law: Law | None
    """[V] what they were drawn from, without replacement; None if they are deterministic."""


def most_probable(probabilities: Law, count: int) -> Guesses:
    """The `count` most probable tokens, smaller ids first among equals; none of probability 0."""
    if count == 1:
        token = int(np.argmax(probabilities))
        return Guesses([token], [float(probabilities[token])], None)
    edge = np.partition(probabilities, -count)[-count] if count < probabilities.shape[0] else 0.0
    able = np.flatnonzero((probabilities >= edge) & (probabilities > 0.0))
    tokens = able[np.argsort(-probabilities[able], kind="stable")][:count]
    return Guesses(tokens.tolist(), probabilities[tokens].tolist(), None)


def drawn(probabilities: Law, u: Iterable[float]) -> Guesses:
    """One token for each number, drawn without replacement; fewer if the law has fewer."""
    left = probabilities.copy()
    tokens: list[int] = []
    for number in u:
        total = left.sum()
        if total <= 0.0:
            break
        token = pick_inverse_cdf(left / total, float(number))
        tokens.append(token)
        left[token] = 0.0
    return Guesses(tokens, most_probable(probabilities, len(tokens)).confidence, probabilities)
