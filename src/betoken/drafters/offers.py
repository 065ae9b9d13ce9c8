"""Candidates by what they are worth, and how a node budget is split between them and probes.

A candidate is worth the chance that it is committed. A probe is an investment: it is worth the tokens that pool
entries grown by probes have earned so far, per probe that was scored. `split` spends a node budget by these two values,
and the tree carries them as confidences, so that a node policy reads the same scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple

from betoken.drafters.pool import Trie

_RANKS, _DEPTHS = 8, 4


class Source(NamedTuple):
    """What is known to have followed a text."""

    kind: int
    """Even where probes grew it, odd where it was read from the text."""
    depth: int
    """Tokens of the text it is known to have followed, less one: 0 is what followed the last token somewhere."""
    trie: Trie


_Found = tuple[float, int, int, int, int]
"""A token that may follow, as its best source has it: rate, token, kind, depth, rank."""

More = Callable[["tuple[int, ...]"], "list[Source]"]
"""Tokens of a candidate and those above it, up to the pending token -> what else is known to follow them."""


class Offer(NamedTuple):
    """A candidate. Offers stand in the order of falling `reach`, so parents come before children."""

    token: int
    parent: int
    """1 + the index of the parent offer: its node index in the tree; 0 is the pending token."""
    kind: int
    """Which kind of source it is from: even where probes grew it, odd where it was read from the text."""
    depth: int
    """Of its source, and one more for each token from there on; where there are no longer keys and no joined sources
    that is 0 under the pending token, and so on down the tree."""
    rank: int
    """Place among its siblings of the same kind; 0 is the newest."""
    confidence: float
    """Estimated probability that it is right, given that its parent is."""
    reach: float
    """Estimated probability that it is committed: the product of the confidences down to it."""


class Acceptance:
    """How often a request's candidates were right, given that their parents were: by kind, depth and rank."""

    weight = 4.0
    """Observations that the prior counts for."""

    def __init__(self, priors: Sequence[Sequence[float]]) -> None:
        """`priors`: for each kind, by depth, how often a first candidate is right before anything was seen.

        The last of a kind counts for all greater depths.
        """
        by_depth = [[own[min(depth, len(own) - 1)] for depth in range(_DEPTHS)] for own in priors]
        self._hits = [
            [[self.weight * prior / (1 + rank) ** 1.5 for rank in range(_RANKS)] for prior in own] for own in by_depth
        ]
        self._tries = [[[self.weight] * _RANKS for _ in range(_DEPTHS)] for _ in priors]
        self._rates = [[[hits / self.weight for hits in ranks] for ranks in own] for own in self._hits]

    def rate(self, kind: int, depth: int, rank: int) -> float:
        """Estimated probability that such a candidate is right, given that its parent is."""
        return self.rates(kind, depth)[min(rank, _RANKS - 1)]

    def rates(self, kind: int, depth: int) -> Sequence[float]:
        """The same by rank; the last is that of all greater ranks."""
        return self._rates[kind][min(depth, _DEPTHS - 1)]

    def observe(self, offers: Sequence[Offer], committed: Sequence[int]) -> list[Offer]:
        """Learn from the tokens that came; returns the offers that were right, from the pending token down."""
        right: list[Offer] = []
        node = 0
        for token in committed:
            found = 0
            for index, offer in enumerate(offers[node:], node + 1):  # children come after their parent
                if offer.parent == node:
                    depth, rank = min(offer.depth, _DEPTHS - 1), min(offer.rank, _RANKS - 1)
                    self._tries[offer.kind][depth][rank] += 1.0
                    if offer.token == token:
                        self._hits[offer.kind][depth][rank] += 1.0
                        found = index
                    hits, tries = self._hits[offer.kind][depth], self._tries[offer.kind][depth]
                    self._rates[offer.kind][depth][rank] = hits[rank] / tries[rank]
            if not found:
                break
            right.append(offers[found - 1])
            node = found
        return right


class Returns:
    """What probes have earned: tokens committed through pool entries that they grew, per probe scored."""

    prior, weight, memory = 0.04, 100.0, 0.99

    def __init__(self) -> None:
        """Nothing spent yet: the prior (0.04, about what the PTD paper's size earns) counts for 100 probes."""
        self._earned = self._spent = 0.0

    @property
    def price(self) -> float:
        """Tokens a probe is expected to earn."""
        return (self.prior * self.weight + self._earned) / (self.weight + self._spent)

    def observe(self, earned: int, spent: int) -> None:
        """One step. Old steps fade, so a price that has fallen too low to be tried drifts back to the prior."""
        self._earned = self._earned * self.memory + earned
        self._spent = self._spent * self.memory + spent


def offers(
    sources: Sequence[Source], acceptance: Acceptance, limit: int, more: More | None = None, *, least: float = 0.0
) -> list[Offer]:
    """The `limit` candidates most likely to be committed, of the union of the sources, best first.

    Where several sources know a token, the one that makes it likeliest speaks for it, the first of equals. Below a
    candidate go on the sources that led to it, and those that `more` adds. With `least`, a reach below it is not worth
    a node, a source for which a token's reach is below it counts as not knowing the token, and of each source only the
    newest tokens are looked at, as many as have rates of their own.
    """
    out: list[Offer] = []
    heap: list[tuple[float, int, int, tuple[int, ...], _Found, list[Source]]] = []
    serial, newest = 0, _RANKS if least > 0.0 else None

    def expand(node: int, path: tuple[int, ...], reach: float, known: Sequence[Source]) -> None:
        nonlocal serial
        best: dict[int, _Found] = {}
        below: dict[int, list[Source]] = {}
        lowest = least / reach
        for kind, depth, trie in known:
            rates = acceptance.rates(kind, depth)
            for rank, token in enumerate(islice(reversed(trie), newest)):
                rate = rates[rank if rank < _RANKS else -1]
                if rate < lowest:
                    continue
                if token not in best:
                    best[token], below[token] = (rate, token, kind, depth, rank), []
                elif rate > best[token][0]:
                    best[token] = rate, token, kind, depth, rank
                if trie[token]:
                    below[token].append(Source(kind, depth + 1, trie[token]))
        for token, found in best.items():
            serial += 1
            heappush(heap, (-reach * found[0], serial, node, path, found, below[token]))

    if limit > 0:
        expand(0, (), 1.0, sources)
    while heap:
        minus, _, parent, path, (rate, token, kind, depth, rank), known = heappop(heap)
        out.append(Offer(token, parent, kind, depth, rank, rate, -minus))
        if len(out) == limit:
            break
        path = (*path, token)
        expand(len(out), path, -minus, known if more is None else [*known, *more(path)])
    return out


def split(ranked: Sequence[Offer], probes: int, budget: int, price: float) -> tuple[int, int]:
    """How many of the ranked offers and of `probes` wanted probes to send with `budget` nodes.

    Candidates more likely than the price of a probe come first, then probes, then the other candidates.
    """
    better = sum(1 for offer in ranked[:budget] if offer.reach >= price)
    sent = min(probes, budget - better)
    return min(len(ranked), budget - sent), sent
