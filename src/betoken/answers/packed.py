"""The packed judge pass: a text, and a copy of one suffix behind each of several prefixes of it, as one token tree.

PARSE (arXiv 2605.04263): token j of the copy behind b tokens sees those b tokens and the copy's tokens up to j; its
position is b + j. So each copy scores as a request of its own would, and the text itself is computed once. The passes
of several texts share forward passes as far as they fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from betoken.models.target import Cache, Scores, Target
from betoken.tree import Role, RowTree, TokenTree


class _Part(NamedTuple):
    """What a pass scores next."""

    tree: RowTree
    done: int
    """Tokens of the text that were cached before."""
    taken: int
    """Tokens of the text among the tree's nodes: the first ones."""
    last: list[int]
    """Last node of each copy in the tree."""


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
    """Those shared with other passes included."""
    nodes: int = field(default=0, init=False)
    """Tokens scored, those of the text included that were not cached."""
    seconds: float = field(default=0.0, init=False)
    """Of the forward passes, those shared with others by nodes."""
    logits: list[NDArray[np.float32]] = field(default_factory=list, init=False)
    """[V] behind each copy that was asked for last."""
    _logprobs: list[float] = field(default_factory=list, init=False)
    _text: Sequence[int] = field(default=(), init=False)
    _ends: list[int] = field(default_factory=list, init=False)
    _first: int = field(default=0, init=False)
    _next: _Part | None = field(default=None, init=False)

    def score(self, text: Sequence[int], ends: Sequence[int]) -> list[NDArray[np.float32]]:
        """Logits [V] behind each copy. `ends`: how many tokens of `text` each copy follows, 1 or more, rising."""
        self.ask(text, ends)
        run([self])
        return self.logits

    def score_with_text(
        self, text: Sequence[int], ends: Sequence[int], first: int
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.float64]]:
        """The same, and the log-probabilities [T - first] of the text's tokens from `first` (at least 1) on.

        The slot must hold fewer than `first` tokens.
        """
        self.ask(text, ends, first)
        run([self])
        return self.logits, self.logprobs

    def ask(self, text: Sequence[int], ends: Sequence[int], first: int | None = None) -> None:
        """What `run` is to score: see `score`, and with `first` `score_with_text`."""
        self._text, self._ends, self._first = text, list(ends), len(text) if first is None else first
        self.logits, self._logprobs, self._next = [], [], None

    @property
    def open(self) -> bool:
        """Whether something of what was asked is left to score."""
        return self._next is not None or bool(self._ends) or self.cache.length(self.slot) < len(self._text)

    @property
    def logprobs(self) -> NDArray[np.float64]:
        """[T - first] of the text that was asked for last; empty without `first`."""
        return np.array(self._logprobs, dtype=np.float64)

    def part(self) -> RowTree:
        """The next tree; the same until it was taken."""
        if self._next is None:
            done, text = self.cache.length(self.slot), self._text
            tree, taken = self._chain(text[done : done + self.chunk], self._first - done - 1, len(text) - done - 1)
            last = []
            while self._ends and self._ends[0] <= done + taken and self._fits(tree):
                last.append(self._branch(tree, self._ends.pop(0), done))
            self._next = _Part(tree, done, taken, last)
        return self._next.tree

    def take(self, scores: Scores, row: int) -> range:
        """The scores of `part`, which was row `row` of a forward pass. Returns the nodes that belong to the text."""
        if self._next is None:
            raise ValueError("no part was scored")
        tree, done, taken, last = self._next
        self._next = None
        self.logits += [scores.logits(row, node) for node in last]
        self._logprobs += _logprobs(scores, row, tree, self._text[done + 1 : done + taken + 1])
        self.forwards += 1
        self.nodes += len(tree)
        return range(taken)

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


def run(works: Sequence[PackedPass]) -> None:
    """Score what was asked of passes over one target and cache, in shared forward passes of at most `chunk` nodes."""
    while left := [work for work in works if work.open]:
        group: list[PackedPass] = []
        nodes = 0
        for work in left:
            size = len(work.part())
            if not group or nodes + size <= min(work.chunk, group[0].chunk):
                group.append(work)
                nodes += size
        _forward(group, nodes)


def _forward(group: Sequence[PackedPass], nodes: int) -> None:
    began = perf_counter()
    slots = [work.slot for work in group]
    trees = [work.part() for work in group]
    scores = group[0].target.forward(TokenTree.stack(trees), group[0].cache, slots)
    group[0].cache.keep(slots, [work.take(scores, row) for row, work in enumerate(group)])
    taken = perf_counter() - began
    for work, tree in zip(group, trees, strict=True):
        work.seconds += taken * len(tree) / nodes


@dataclass
class Docket:
    """Passes over one target that wait for one another, so as to be run together."""

    waiting: list[PackedPass] = field(default_factory=list)

    def clear(self) -> None:
        """Run all that wait."""
        works, self.waiting = self.waiting, []
        run(works)

    def drop(self, work: PackedPass) -> None:
        """Nobody waits for this pass any more."""
        self.waiting = [other for other in self.waiting if other is not work]


def _logprobs(scores: Scores, row: int, tree: RowTree, following: Sequence[int]) -> list[float]:
    """log P of the token behind each wanted node of the text."""
    found = []
    for node, token in enumerate(following):
        if tree.wanted[node]:
            logits = scores.logits(row, node).astype(np.float64)
            found.append(float(logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum())))
    return found
