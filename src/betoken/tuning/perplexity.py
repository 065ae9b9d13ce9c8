"""How much a target's numbers cost: perplexity on text, and how often its greedy choice is another's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from betoken.models.target import Target
from betoken.tree import RowTree, TokenTree

_CHUNK = 128


class TextScore(NamedTuple):
    """What a target makes of a text."""

    perplexity: float
    """exp of the mean negative log-probability of each token but the first of a window."""
    argmax: NDArray[np.int64]
    """Greedy choice after each token but the last of a window, [windows * (window - 1)]."""
    tokens: int


def score_text(target: Target, tokens: Sequence[int], window: int = 512) -> TextScore:
    """Score a text in windows of `window` tokens that do not see each other; a shorter rest is left out."""
    losses: list[float] = []
    choices: list[int] = []
    whole = max(1, len(tokens) // window)
    for begin in range(0, whole * window, window):
        part = tokens[begin : begin + window]
        cache = target.new_cache()
        slot = cache.open()
        for at in range(0, len(part) - 1, _CHUNK):
            chunk = part[at : min(at + _CHUNK, len(part) - 1)]
            scores = target.forward(TokenTree.stack([RowTree.chain(chunk[0], chunk[1:])]), cache, [slot])
            cache.keep([slot], [range(len(chunk))])
            for node in range(len(chunk)):
                logits = scores.logits(0, node).astype(np.float64)
                top = logits.max()
                losses.append(float(top + np.log(np.exp(logits - top).sum()) - logits[part[at + node + 1]]))
                choices.append(int(logits.argmax()))
        cache.close(slot)
    return TextScore(float(np.exp(np.mean(losses))), np.array(choices, dtype=np.int64), len(losses))
