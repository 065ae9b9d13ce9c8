"""Pools of continuations keyed by the tokens before them: what the self-drafting drafters collect and propose from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias, TypeVar

Trie: TypeAlias = "dict[int, Trie]"
"""Token -> the tokens that followed it. A node's children stand in the order in which they came, newest last."""

Key: TypeAlias = "tuple[int, ...]"
"""The last tokens before a continuation, oldest first."""

MOST_KEYS = 1 << 17
"""Of a pool: some 30,000 tokens of text. Only pools that several requests share come to that."""

V = TypeVar("V")


def size(trie: Trie) -> int:
    """Nodes of a trie."""
    return sum(1 + size(below) for below in trie.values())


def levels(trie: Trie) -> int:
    """Tokens on the longest path of a trie; 0 if it is empty."""
    return max((1 + levels(below) for below in trie.values()), default=0)


def chain(tokens: Sequence[int]) -> Trie:
    """A trie of one path."""
    out: Trie = {}
    for token in reversed(tokens):
        out = {token: out}
    return out


def merge(into: Trie, new: Trie, *, refresh: bool = False) -> int:
    """Unify `new` with `into`, token by token; returns how many nodes were added.

    With `refresh` a token that comes again counts as the newest of its siblings.
    """
    added = 0
    for token, below in new.items():
        known = into.get(token)
        if known is None:
            known = into[token] = {}
            added += 1
        elif refresh:
            into[token] = into.pop(token)
        if below:
            added += merge(known, below, refresh=refresh)
    return added


@dataclass(slots=True)
class Entry:
    """What followed a key, and how many nodes that are."""

    trie: Trie = field(default_factory=dict)
    size: int = 0

    def recount(self) -> None:
        """Count the nodes anew."""
        self.size = size(self.trie)

    def trim(self, nodes: int) -> None:
        """Drop the oldest first-level branches until at most `nodes` nodes are left."""
        while self.size > nodes:
            self.size -= 1 + size(self.trie.pop(next(iter(self.trie))))


class SubtreePool:
    """A trie of continuations for each key, capped in nodes: over the cap the oldest first-level branch goes.

    The pool of PTD (arXiv 2607.10661), whose keys are single tokens and never refreshed.
    """

    def __init__(self, nodes: int, *, refresh: bool = False) -> None:
        """`nodes`: most nodes under one key. `refresh`: a branch that comes again is young again."""
        self.nodes, self.refresh = nodes, refresh
        self._entries: dict[Key, Entry] = {}

    def get(self, key: Key) -> Trie:
        """What followed the key, an empty trie if nothing is known; do not write to it."""
        entry = self._entries.get(key)
        return {} if entry is None else entry.trie

    def __iter__(self) -> Iterator[Key]:
        """All keys."""
        return iter(self._entries)

    def merge(self, key: Key, new: Trie) -> None:
        """Unify a trie of continuations with what is known of the key."""
        if not new:
            return
        entry = self._entries.get(key)
        if entry is None:
            drop_oldest(self._entries)
            entry = self._entries[key] = Entry()
        entry.size += merge(entry.trie, new, refresh=self.refresh)
        if entry.size > self.nodes:
            entry.trim(self.nodes)


def drop_oldest(entries: dict[Key, V], most: int = MOST_KEYS) -> None:
    """Once there are `most` keys, drop the eighth of them that came first."""
    if len(entries) >= most:
        for key in list(islice(entries, (most + 7) // 8)):
            del entries[key]


class NgramPool:
    """The continuations of each token as n-grams, at most `size` a key; the least recently used one goes.

    The pool of Lookahead (arXiv 2402.02057) and Self-Draft.
    """

    def __init__(self, per_key: int) -> None:
        """`per_key`: most n-grams under one token."""
        self.per_key = per_key
        self._grams: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, gram: Sequence[int]) -> None:
        """Take in an n-gram: its first token is the key. One that is known already counts as just used."""
        grams = self._grams.setdefault(gram[0], {})
        tail = tuple(gram[1:])
        grams.pop(tail, None)
        grams[tail] = None
        if len(grams) > self.per_key:
            del grams[next(iter(grams))]

    def get(self, token: int) -> list[tuple[int, ...]]:
        """The continuations of a token, least recently used first."""
        return list(self._grams.get(token, ()))

    def trie(self, token: int) -> Trie:
        """The continuations of a token, those with a common start unified."""
        out: Trie = {}
        for gram in self._grams.get(token, ()):
            below = out
            for one in gram:
                child = below.pop(one, None)
                below[one] = child = {} if child is None else child
                below = child
        return out

    def read(self, text: Sequence[int], start: int, n: int, end_ids: frozenset[int]) -> None:
        """Take in the n-grams of `text` whose last token stands at `start` or later and that hold no end token."""
        for at in range(max(0, start - n + 1), len(text) - n + 1):
            gram = text[at : at + n]
            if end_ids.isdisjoint(gram):
                self.add(gram)
