"""A pool that reads text: what followed each key of a few tokens.

Most keys of a text occur once. All that is kept of such a key is where that was; its trie is made of the text when
somebody asks for it, or when the key comes again. So to read a token takes a few dictionary entries and one object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from betoken.drafters.pool import Entry, Key, Trie, drop_oldest

_NOTHING: Trie = {}


@dataclass(slots=True)
class _Place:
    """Where a text that is being read stands in the trie of a key."""

    entry: Entry
    trie: Trie


@dataclass(slots=True)
class _Once:
    """The only place so far where some keys end."""

    reader: Reader
    at: int
    """Tokens of the text before what follows."""


class TextPool:
    """A trie of the up to `depth` tokens that followed each key, capped in nodes as a `SubtreePool`."""

    def __init__(self, nodes: int, depth: int) -> None:
        """`nodes`: most nodes under one key."""
        self.nodes, self.depth = nodes, depth
        self._known: dict[Key, Entry | _Once] = {}

    def find(self, key: Key) -> Trie | None:
        """What followed the key, an empty trie if it ended the text; None if it is new. Do not write to it."""
        known = self._known.get(key)
        if known is None:
            return None
        if isinstance(known, Entry):
            return known.trie
        return _NOTHING if known.at == len(known.reader.text) else self._entry(key, known).trie

    def __iter__(self) -> Iterator[Key]:
        """All keys."""
        return iter(self._known)

    def enter(self, key: Key, place: _Once) -> Entry | None:
        """The text has come to a place where the key ends. Returns its trie to go on in, None if the key is new."""
        known = self._known.get(key)
        if known is None:
            drop_oldest(self._known)
            self._known[key] = place
            return None
        return known if isinstance(known, Entry) else self._entry(key, known)

    def go(self, places: Sequence[_Place], token: int) -> None:
        """The next token of the text, at all these places; it counts as the newest of its siblings."""
        for place in places:
            trie = place.trie
            below = trie.pop(token, None)
            if below is not None:
                trie[token] = place.trie = below
                continue
            trie[token] = place.trie = {}
            entry = place.entry
            entry.size += 1
            if entry.size > self.nodes:
                entry.recount()  # a node may have been added to a branch that had gone
                entry.trim(self.nodes)

    def _entry(self, key: Key, once: _Once) -> Entry:
        """The trie of a key that occurred once, made of the text; the text goes on in it if it is still that near."""
        entry = self._known[key] = Entry()
        place = _Place(entry, entry.trie)
        for token in once.reader.following(once.at, self.depth):
            self.go((place,), token)
        once.reader.follow(once.at, place)
        return entry


class Reader:
    """Reads a text into a pool: after every key of 1 to `context` tokens, the tokens that followed.

    What was read last is the newest. A token costs depth x context steps at most, however long the text is.
    """

    def __init__(self, pool: TextPool, context: int) -> None:
        """Nothing was read."""
        self.pool, self.context = pool, context
        self.text: list[int] = []
        self._ends: frozenset[int] = frozenset()
        self._tail: Key = ()
        self._open: deque[list[_Place]] = deque(maxlen=pool.depth)
        """For each of the last tokens, the places of the keys that ended there and were known before."""

    def read(self, tokens: Sequence[int], end_ids: frozenset[int]) -> None:
        """The next tokens of the text. Nothing goes on beyond an end token, but what follows it has it in its keys."""
        self._ends, go = end_ids, self.pool.go
        for token in tokens:
            if token in end_ids:
                self._open.clear()
            for places in self._open:
                if places:
                    go(places, token)
            self.text.append(token)
            self._tail = tail = (*self._tail, token)[-self.context :]
            here = _Once(self, len(self.text))
            places = []
            self._open.append(places)
            for start in range(len(tail)):
                entry = self.pool.enter(tail[start:], here)
                if entry is not None:
                    places.append(_Place(entry, entry.trie))

    def following(self, at: int, most: int) -> list[int]:
        """The up to `most` tokens from place `at` on, up to an end token."""
        tokens = self.text[at : at + most]
        for index, token in enumerate(tokens):
            if token in self._ends:
                return tokens[:index]
        return tokens

    def follow(self, at: int, place: _Place) -> None:
        """Let a place that was reached by the tokens from `at` on go on with the text, if it does."""
        age = len(self.text) - at
        if age < len(self._open):
            self._open[-1 - age].append(place)
