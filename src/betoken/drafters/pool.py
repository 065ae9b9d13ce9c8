"""Pools of continuations keyed by the tokens before them: what the self-drafting drafters collect and propose from."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Trie: TypeAlias = "dict[int, Trie]"
"""Token -> the tokens that followed it. A node's children stand in the order in which they came, newest last."""

Key: TypeAlias = "tuple[int, ...]"
"""The last tokens before a continuation, oldest first."""


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


class SubtreePool:
    """A trie of continuations for each key, capped in nodes: over the cap the oldest first-level branch goes.

    The pool of PTD (arXiv 2607.10661), whose keys are single tokens and never refreshed.
    """

    def __init__(self, nodes: int, *, refresh: bool = False) -> None:
        """`nodes`: most nodes under one key. `refresh`: a branch that comes again is young again."""
        self.nodes, self.refresh = nodes, refresh
        self._tries: dict[Key, Trie] = {}
        self._sizes: dict[Key, int] = {}

    def get(self, key: Key) -> Trie:
        """What followed the key, an empty trie if nothing is known; do not write to it."""
        return self._tries.get(key, {})

    def merge(self, key: Key, new: Trie) -> None:
        """Unify a trie of continuations with what is known of the key."""
        if not new:
            return
        trie = self._tries.setdefault(key, {})
        count = self._sizes.get(key, 0) + merge(trie, new, refresh=self.refresh)
        while count > self.nodes:
            count -= 1 + size(trie.pop(next(iter(trie))))
        self._sizes[key] = count

    def enter(self, key: Key) -> Trie:
        """The trie of a key, to be written to; each node that is added there must be told to `added`."""
        return self._tries.setdefault(key, {})

    def added(self, key: Key) -> None:
        """One node was added to the trie of a key."""
        self._sizes[key] = self._sizes.get(key, 0) + 1
        if self._sizes[key] > self.nodes:
            trie = self._tries[key]
            count = size(trie)  # anew, for a node may have been added to a branch that had gone
            while count > self.nodes:
                count -= 1 + size(trie.pop(next(iter(trie))))
            self._sizes[key] = count


@dataclass(slots=True)
class _Place:
    """Where a text that is being read stands in the trie of a key."""

    key: Key
    trie: Trie


class Reader:
    """Reads a text into a pool: after every key of 1 to `context` tokens, the up to `depth` tokens that followed.

    What was read last is the newest. A token costs depth x context steps, however long the text is.
    """

    def __init__(self, pool: SubtreePool, depth: int, context: int) -> None:
        """Nothing was read."""
        self.pool, self.context = pool, context
        self.length = 0
        """Tokens that were read."""
        self._tail: Key = ()
        self._open: deque[list[_Place]] = deque(maxlen=depth)
        """The places of the keys that ended at each of the last tokens."""

    def read(self, tokens: Sequence[int], end_ids: frozenset[int]) -> None:
        """The next tokens of the text. Nothing goes on beyond an end token, but what follows it has it in its keys."""
        for token in tokens:
            if token in end_ids:
                self._open.clear()
            for places in self._open:
                for place in places:
                    known = place.trie.pop(token, None)
                    below = place.trie[token] = {} if known is None else known
                    if known is None:
                        self.pool.added(place.key)
                    place.trie = below
            self._tail = (*self._tail, token)[-self.context :]
            keys = [self._tail[at:] for at in range(len(self._tail))]
            self._open.append([_Place(key, self.pool.enter(key)) for key in keys])
        self.length += len(tokens)


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
