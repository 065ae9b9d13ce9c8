"""The packed judge pass: a text, and a copy of one suffix behind each of several prefixes of it, as one token tree.

PARSE (arXiv 2605.04263): token j of the copy behind b tokens sees those b tokens and the copy's tokens up to j; its
position is b + j. So each copy scores as a request of its own would, and the text itself is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from betoken.models.target import Cache, Scores, Target
from betoken.tree import Role, RowTree, TokenTree


@dataclass
class PackedPass:
    """Scores suffix copies behind prefixes of the text in one slot of the target's cache, and counts what it costs."""

    target: Target
    cache: Cache
    slot: int
    """Holds a prefix of the text, maybe empty; holds all of it after a pass."""
    suffix: Sequence[int]
    chunk: int = 512
    """Most nodes of a forward pass; a copy that is longer has one of its own."""
    forwards: int = field(default=0, init=False)
    nodes: int = field(default=0, init=False)
    """Tokens scored, those of the text included that were not cached."""

    def score(self, text: Sequence[int], ends: Sequence[int]) -> list[NDArray[np.float32]]:
        """Logits [V] behind each copy. `ends`: how many tokens of `text` each copy follows, 1 or more, rising."""
        return self._run(text, ends, len(text))[0]

    def score_with_text(
        self, text: Sequence[int], ends: Sequence[int], first: int
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.float64]]:
        """The same, and the log-probabilities [T - first] of the text's tokens from `first` (at least 1) on.

        The slot must hold fewer than `first` tokens.
        """
        return self._run(text, ends, first)

    def _run(
        self, text: Sequence[int], ends: Sequence[int], first: int
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.float64]]:
        waiting = list(ends)
        logits: list[NDArray[np.float32]] = []
        logprobs: list[float] = []
        while waiting or self.cache.length(self.slot) < len(text):
            done = self.cache.length(self.slot)
            tree, taken = self._chain(text[done : done + self.chunk], first - done - 1, len(text) - done - 1)
            last = []
            while waiting and waiting[0] <= done + taken and self._fits(tree):
                last.append(self._branch(tree, waiting.pop(0), done))
            scores = self.target.forward(TokenTree.stack([tree]), self.cache, [self.slot])
            self.cache.keep([self.slot], [range(taken)])
            self.forwards += 1
            self.nodes += len(tree)
            logits += [scores.logits(0, node) for node in last]
            logprobs += _logprobs(scores, tree, text[done + 1 : done + taken + 1])
        return logits, np.array(logprobs, dtype=np.float64)

    def _chain(self, tokens: Sequence[int], first: int, end: int) -> tuple[RowTree, int]:
        """The next part of the text; logits are wanted of nodes `first` to `end` - 1, which predict its tokens."""
        tree = RowTree()
        for node, token in enumerate(tokens):
            if node == 0:
                tree = RowTree.under(token)
                tree.wanted[0] = first <= 0 < end
            else:
                tree.add(token, node - 1, wanted=first <= node < end)
        return tree, len(tokens)

    def _fits(self, tree: RowTree) -> bool:
        return not len(tree) or len(tree) + len(self.suffix) <= self.chunk

    def _branch(self, tree: RowTree, end: int, done: int) -> int:
        """A copy behind `end` tokens, of which `done` are cached; returns its last node."""
        most = len(self.suffix) - 1
        node = -1
        for place, token in enumerate(self.suffix):
            if place == 0 and end <= done:
                node = tree.root(token, anchor=end, wanted=most == 0)
            else:
                parent = node if place else end - done - 1
                node = tree.add(token, parent, Role.PROBE, wanted=place == most)
        return node


def _logprobs(scores: Scores, tree: RowTree, following: Sequence[int]) -> list[float]:
    """log P of the token behind each wanted node of the text."""
    found = []
    for node, token in enumerate(following):
        if tree.wanted[node]:
            logits = scores.logits(0, node).astype(np.float64)
            found.append(float(logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum())))
    return found
