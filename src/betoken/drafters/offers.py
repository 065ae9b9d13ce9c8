"""Candidates by what they are worth, and how a node budget is split between them and probes.

A candidate is worth the chance that it is committed. A probe is an investment: it is worth the tokens that pool
entries grown by probes have earned so far, per probe that was scored. `split` spends a node budget by these two values,
and the tree carries them as confidences, so that a node policy reads the same scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from betoken.drafters.pool import Trie

_RANKS, _DEPTHS = 8, 4


class Offer(NamedTuple):
    """A candidate. Offers stand in the order of falling `reach`, so parents come before children."""

    token: int
    parent: int
    """1 + the index of the parent offer: its node index in the tree; 0 is the pending token."""
    kind: int
    """Which kind of source it is from: even where probes grew it, odd where it was read from the text."""
    depth: int
    """0 under the pending token."""
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

    def __init__(self, priors: Sequence[float]) -> None:
        """`priors`: for each kind, how often a first candidate is right before anything was seen."""
        self._hits = [
            [[self.weight * prior / (1 + rank) ** 1.5 for rank in range(_RANKS)] for _ in range(_DEPTHS)]
            for prior in priors
        ]
        self._tries = [[[self.weight] * _RANKS for _ in range(_DEPTHS)] for _ in priors]

    def rate(self, kind: int, depth: int, rank: int) -> float:
        """Estimated probability that such a candidate is right, given that its parent is."""
        depth, rank = min(depth, _DEPTHS - 1), min(rank, _RANKS - 1)
        rate: float = self._hits[kind][depth][rank] / self._tries[kind][depth][rank]
        return rate

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


def offers(sources: Sequence[tuple[int, Trie]], acceptance: Acceptance, limit: int) -> list[Offer]:
    """The `limit` candidates most likely to be committed, of the union of the sources (kind, trie), best first.

    Where several sources know a token, the first of them gives its kind.
    """
    out: list[Offer] = []
    heap: list[tuple[float, int, Offer, list[tuple[int, Trie]]]] = []
    serial = 0

    def expand(node: int, depth: int, reach: float, tries: Iterable[tuple[int, Trie]]) -> None:
        nonlocal serial
        found: dict[int, tuple[int, int, list[tuple[int, Trie]]]] = {}
        for kind, trie in tries:
            for rank, token in enumerate(reversed(trie)):
                found.setdefault(token, (kind, rank, []))[2].append((kind, trie[token]))
        for token, (kind, rank, below) in found.items():
            rate = acceptance.rate(kind, depth, rank)
            serial += 1
            heappush(
                heap,
                (-reach * rate, serial, Offer(token, node, kind, depth, rank, rate, reach * rate), below),
            )

    if limit > 0:
        expand(0, 0, 1.0, sources)
    while heap and len(out) < limit:
        _, _, offer, below = heappop(heap)
        out.append(offer)
        expand(len(out), offer.depth + 1, offer.reach, below)
    return out


def split(ranked: Sequence[Offer], probes: int, budget: int, price: float) -> tuple[int, int]:
    """How many of the ranked offers and of `probes` wanted probes to send with `budget` nodes.

    Candidates more likely than the price of a probe come first, then probes, then the other candidates.
    """
    better = sum(1 for offer in ranked[:budget] if offer.reach >= price)
    sent = min(probes, budget - better)
    return min(len(ranked), budget - sent), sent
