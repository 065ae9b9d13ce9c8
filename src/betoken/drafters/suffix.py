"""Suffix decoding: follow the most frequent continuations of the text's own recent past.

Oliaro et al., SuffixDecoding (arXiv 2411.04975), section 4: a suffix tree with counts; the draft follows children
while the product of their count ratios stays large; longer matches allow longer drafts; of all matches the one with
the greatest sum of path probabilities wins. Here a suffix automaton holds the same counts in less memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from betoken.drafters.index import ROOT, SuffixIndex
from betoken.errors import InputError
from betoken.models.target import Scores, Target
from betoken.state import Row, State
from betoken.tree import RowTree, TokenTree
from betoken.verifiers.verifier import Verdict

END_OF_ANSWER = -1
"""Stands between two past outputs in the global tree, and behind a row's hint; no token, never drafted."""


@dataclass
class Suffix:
    """Drafts from this request's prompt, answer and hint, and from past outputs if asked to."""

    min_ratio: float = 0.1
    """Least product of count ratios along a drafted path."""
    factor: float = 1.0
    """Drafted tokens for each matched token, at most."""
    max_draft: int = 24
    """Most tokens drafted in a step."""
    max_match: int = 32
    """Longest suffix that is matched."""
    tree: bool = False
    """Follow the most probable branches, not only the best child of each node."""
    global_tree: bool = False
    """Match past outputs too. What a request drafts then depends on the requests before it."""
    global_tokens: int = 200_000
    """Past output that is remembered; beyond it the older half is forgotten."""
    _rows: dict[int, SuffixIndex] = field(default_factory=dict, init=False, repr=False)
    _past: list[int] = field(default_factory=list, init=False, repr=False)
    _global: SuffixIndex | None = field(default=None, init=False, repr=False)

    name = "suffix"
    hidden_layers = ()

    def __post_init__(self) -> None:
        """Raises InputError for settings that allow no draft."""
        if not 0.0 < self.min_ratio <= 1.0:
            raise InputError(f"suffix: min_ratio must be above 0 and at most 1, not {self.min_ratio}")
        if self.factor <= 0.0:
            raise InputError(f"suffix: factor must be above 0, not {self.factor}")
        for name in ("max_draft", "max_match", "global_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"suffix: {name} must be at least 1, not {getattr(self, name)}")

    @property
    def shares_state(self) -> bool:
        """True with the global tree."""
        return self.global_tree

    def start(self, target: Target, draft: Target | None = None) -> None:
        """Fits every target."""

    def admit(self, rows: Sequence[Row]) -> None:
        """An empty index for each row."""
        for row in rows:
            self._rows[row.id] = self._index()

    def release(self, rows: Sequence[Row]) -> None:
        """Forget the rows; with the global tree, remember their answers."""
        for row in rows:
            if self._rows.pop(row.id, None) is not None and self.global_tree and row.new_tokens:
                self._remember(row.new_tokens)

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        """A chain or tree a row, or nothing where no suffix matches. A node's confidence is its count ratio."""
        trees = []
        for row, limit in zip(state.rows, nodes, strict=True):
            trees.append(self._draft(row, limit) if limit > 1 else RowTree.under(row.pending))
        return TokenTree.stack(trees)

    def observe(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        """Reads prompts while they are prefilled; what is committed later, the next `propose` reads."""
        for row in state.rows:
            if row.generated == 0 and row.expects_draft:
                self._read(row)

    def _index(self) -> SuffixIndex:
        return SuffixIndex(self.max_match + self.max_draft)

    def _remember(self, answer: Sequence[int]) -> None:
        fresh = [*answer, END_OF_ANSWER]
        self._past += fresh
        if len(self._past) > self.global_tokens:
            self._past = self._past[len(self._past) - self.global_tokens // 2 :]
            self._global, fresh = None, self._past
        if self._global is None:
            self._global = self._index()
        self._global.extend(fresh)

    def _read(self, row: Row) -> SuffixIndex:
        """The row's index, with all of its hint and text."""
        own = self._rows[row.id]
        if row.hint and not own.size:
            own.extend([*row.hint, END_OF_ANSWER])
        own.extend(row.tokens[own.size - (len(row.hint) + 1 if row.hint else 0) :])
        return own

    def _draft(self, row: Row, limit: int) -> RowTree:
        own = self._read(row)
        best, best_score = RowTree.under(row.pending), 0.0
        most = min(limit - 1, self.max_draft)
        grow = _grow_tree if self.tree else _grow_chain
        for index, state, length in self._matches(own, row):
            allowed = min(most, row.room - 1, int(self.factor * length))
            if allowed <= best_score:  # a path's probability is at most 1, so no shorter match can win any more
                continue
            draft, score = grow(index, state, allowed, self.min_ratio, row.pending)
            if score > best_score:
                best, best_score = draft, score
        return best

    def _matches(self, own: SuffixIndex, row: Row) -> list[tuple[SuffixIndex, int, int]]:
        found = [(own, state, length) for state, length in own.matches(self.max_match) if own.count[state] > 1]
        if self._global is not None:
            state, length = self._global.find(row.tokens[-self.max_match :])
            while state != ROOT:
                found.append((self._global, state, length))
                state = self._global.link[state]
                length = self._global.longest[state]
        return found


def _grow_chain(index: SuffixIndex, state: int, most: int, min_ratio: float, pending: int) -> tuple[RowTree, float]:
    """The path of the most frequent children, and the sum of its nodes' probabilities."""
    draft: list[int] = []
    ratios: list[float] = []
    count = index.count
    path, score = 1.0, 0.0
    while len(draft) < most and (after := index.next[state]):
        token = max(after, key=lambda t: count[after[t]]) if len(after) > 1 else next(iter(after))
        child = after[token]
        ratio = count[child] / count[state]
        path *= ratio
        if path < min_ratio or token < 0:
            break
        draft.append(token)
        ratios.append(ratio)
        score += path
        state = child
    return RowTree.chain(pending, draft, ratios), score


def _grow_tree(index: SuffixIndex, state: int, most: int, min_ratio: float, pending: int) -> tuple[RowTree, float]:
    """The `most` most probable nodes, and the sum of their probabilities."""
    draft = RowTree.under(pending)
    score = 0.0
    waiting: list[tuple[float, int, int, int, float, int]] = []
    order = 0

    def push_children(state: int, node: int, path: float) -> None:
        nonlocal order
        for token, child in index.next[state].items():
            ratio = index.count[child] / index.count[state]
            if path * ratio >= min_ratio and token >= 0:
                order += 1
                heapq.heappush(waiting, (-path * ratio, order, token, node, ratio, child))

    push_children(state, 0, 1.0)
    while waiting and len(draft) <= most:
        negative, _, token, parent, ratio, child = heapq.heappop(waiting)
        node = draft.add(token, parent, confidence=ratio)
        score -= negative
        push_children(child, node, -negative)
    return draft, score
