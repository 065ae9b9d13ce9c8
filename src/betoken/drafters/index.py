"""Indexes over a growing text, for drafters that copy from it. Both take each token in once, at constant cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

ROOT = 0
"""State of the empty text."""


class NgramIndex:
    """Where each n-gram of a text is followed by something: in the first or in the last place it occurs."""

    def __init__(self, shortest: int, longest: int, *, last: bool = False) -> None:
        """For n-grams of `shortest` to `longest` tokens."""
        self.text: list[int] = []
        self._last = last
        self._sizes = range(shortest, longest + 1)
        self._after: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            end = len(self.text)
            for size in self._sizes:
                if size > end:
                    break
                key = tuple(self.text[end - size :])
                if self._last:
                    self._after[key] = end
                else:
                    self._after.setdefault(key, end)
            self.text.append(token)

    def lookup(self, size: int) -> int | None:
        """Where the text goes on after an earlier occurrence of its own last `size` tokens."""
        if size > len(self.text):
            return None
        return self._after.get(tuple(self.text[-size:]))


class SuffixIndex:
    """A suffix automaton over a growing text that counts how often each piece of the text occurs.

    A state stands for all pieces that end in the same places. `next[state]` maps a token to the state of the piece
    that is longer by it; `count[state]` is the number of places, exact for pieces of up to `reach` tokens;
    `longest[state]` is the length of the state's longest piece; `link[state]` is the state of its longest suffix
    that occurs elsewhere too.

    Blumer et al., The smallest automaton recognizing the subwords of a text (1985). It has fewer than two states a
    token, and takes amortised constant time a token plus at most `reach` steps for the counts.
    """

    def __init__(self, reach: int) -> None:
        """An empty text. `reach`: longest piece that is counted."""
        self.reach = reach
        self.size = 0
        self.next: list[dict[int, int]] = [{}]
        self.link: list[int] = [-1]
        self.longest: list[int] = [0]
        self.count: list[int] = [0]
        self._whole = ROOT
        self._tail = ROOT
        self._tail_length = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._append(token)
            self.size += 1
            self._tally(token)

    def matches(self, longest: int) -> Iterator[tuple[int, int]]:
        """States of the text's own suffixes of at most `longest` tokens, longest first, and the suffix's length.

        Suffixes that end in the same places appear once, at their greatest length. A count of 1 says that the
        suffix is new: it occurs nowhere but at the end.
        """
        state, length = self._tail, self._tail_length
        while state != ROOT:
            above = self.link[state]
            if self.longest[above] < longest:
                yield state, min(length, longest)
            state, length = above, self.longest[above]

    def find(self, tail: Sequence[int]) -> tuple[int, int]:
        """State and length of the longest suffix of `tail` that occurs in the text; (ROOT, 0) if none does."""
        state, length = ROOT, 0
        for token in tail:
            while state != ROOT and token not in self.next[state]:
                state = self.link[state]
                length = self.longest[state]
            if token in self.next[state]:
                state, length = self.next[state][token], length + 1
        return state, length

    def _state(self, longest: int, count: int, after: dict[int, int], link: int) -> int:
        self.longest.append(longest)
        self.count.append(count)
        self.next.append(after)
        self.link.append(link)
        return len(self.next) - 1

    def _append(self, token: int) -> None:
        after, link, longest = self.next, self.link, self.longest
        new = self._state(longest[self._whole] + 1, 0, {}, ROOT)
        state, self._whole = self._whole, new
        while state >= 0 and token not in after[state]:
            after[state][token] = new
            state = link[state]
        if state < 0:
            return
        old = after[state][token]
        if longest[old] == longest[state] + 1:
            link[new] = old
            return
        # Pieces of `old` that are also suffixes of the text now end in one more place: they get a state of their own.
        split = self._state(longest[state] + 1, self.count[old], dict(after[old]), link[old])
        link[old] = link[new] = split
        while state >= 0 and after[state].get(token) == old:
            after[state][token] = split
            state = link[state]

    def _tally(self, token: int) -> None:
        """Count the text's suffixes of up to `reach` tokens once more."""
        state, length = self.next[self._tail][token], self._tail_length + 1
        length = min(length, self.reach)
        while self.longest[self.link[state]] >= length:
            state = self.link[state]
        self._tail, self._tail_length = state, length
        count, link = self.count, self.link
        while state != ROOT:
            count[state] += 1
            state = link[state]
