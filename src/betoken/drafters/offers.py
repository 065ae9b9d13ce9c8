"""Candidates by what they are worth, and how a node budget is split between them and probes.

A candidate is worth the chance that it is committed. A probe is an investment: it is worth the tokens that pool
entries grown by probes have earned so far, per probe that was scored. `split` spends a node budget by these two values,
and the tree carries them as confidences, so that a node policy reads the same scale.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import NamedTuple

from betoken.drafters.pool import Trie

_RANKS, _DEPTHS = 8, 4
_ROUNDING = 1.0 - 1e-9


class Source(NamedTuple):
    """What is known to have followed a text."""

    kind: int
    """Even where probes grew it, odd where it was read from the text."""
    depth: int
    """Tokens of the text it is known to have followed, less one: 0 is what followed the last token somewhere."""
    trie: Trie


class _Place(NamedTuple):
    """A node below which tokens wait to be chosen."""

    node: int
    path: tuple[int, ...]
    lowest: float
    """Rate below which a source counts as not knowing a token."""
    known: Sequence[Source]


_Speaker = tuple[float, int, int, int]
"""Why a token may follow: rate, kind, depth, rank."""

_Waiting = tuple[float, int, int, _Speaker, _Place]
"""A token that may be chosen: minus its reach, serial number, token, speaker, place."""

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


class Cell:
    """How often candidates of one kind and depth were right, by rank."""

    weight = 4.0
    """Observations that the prior counts for."""

    def __init__(self, prior: float) -> None:
        """`prior`: how often a first candidate is right before anything was seen."""
        self._hits = [self.weight * prior / (1 + rank) ** 1.5 for rank in range(_RANKS)]
        self._tries = [self.weight] * _RANKS
        self.rates = [hits / self.weight for hits in self._hits]
        """By rank; the last is that of all greater ranks."""
        self._summarise()

    def learn(self, rank: int, *, right: bool) -> None:
        """A candidate whose parent was right."""
        rank = min(rank, _RANKS - 1)
        self._tries[rank] += 1.0
        self._hits[rank] += right
        self.rates[rank] = self._hits[rank] / self._tries[rank]
        self._summarise()

    def _summarise(self) -> None:
        self.tops = list(accumulate(reversed(self.rates), max))[::-1]
        """For each rank the greatest of the rates from there on."""
        self.least = min(self.rates)


class Acceptance:
    """How often a request's candidates were right, given that their parents were: by kind, depth and rank."""

    def __init__(self, priors: Sequence[Sequence[float]]) -> None:
        """`priors`: for each kind, by depth, how often a first candidate is right before anything was seen.

        The last of a kind counts for all greater depths.
        """
        self._cells = [[Cell(own[min(depth, len(own) - 1)]) for depth in range(_DEPTHS)] for own in priors]

    def cell(self, kind: int, depth: int) -> Cell:
        """What is known of such candidates."""
        return self._cells[kind][depth if depth < _DEPTHS else -1]

    @property
    def highest(self) -> float:
        """The greatest of all rates."""
        return max(cell.tops[0] for cells in self._cells for cell in cells)

    def rate(self, kind: int, depth: int, rank: int) -> float:
        """Estimated probability that such a candidate is right, given that its parent is."""
        return self.cell(kind, depth).rates[min(rank, _RANKS - 1)]

    def observe(self, offers: Sequence[Offer], committed: Sequence[int]) -> list[Offer]:
        """Learn from the tokens that came; returns the offers that were right, from the pending token down."""
        right: list[Offer] = []
        node = 0
        for token in committed:
            found = 0
            for index in range(node, len(offers)):  # children come after their parent
                offer = offers[index]
                if offer.parent == node:
                    self.cell(offer.kind, offer.depth).learn(offer.rank, right=offer.token == token)
                    if offer.token == token:
                        found = index + 1
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


def ranked_offers(
    sources: Sequence[Source], acceptance: Acceptance, limit: int, more: More | None = None, *, least: float = 0.0
) -> Iterator[Offer]:
    """The `limit` candidates most likely to be committed, of the union of the sources, best first.

    Where several sources know a token, the one that makes it likeliest speaks for it, the first of equals. Below a
    candidate go on the sources that led to it, and those that `more` adds. With `least`, a reach below it is not worth
    a node, a source for which a token's reach is below it counts as not knowing the token, and of each source only the
    newest tokens are looked at, as many as have rates of their own.

    What comes below a candidate is looked up when the next one is asked for.
    """
    waiting: list[_Waiting] = []
    ranked, highest = least > 0.0, acceptance.highest
    count, serial = 0, 0

    def expand(path: tuple[int, ...], reach: float, known: Sequence[Source]) -> None:
        """Let the tokens that may follow the last candidate wait, as far as they may still be chosen."""
        nonlocal serial
        room = limit - count
        place = _Place(count, path, least / reach, known)
        floor = place.lowest if len(waiting) < room else max(place.lowest, -waiting[-1][0] / reach * _ROUNDING)
        for token, speaker in _best(known, acceptance, floor, ranked=ranked).items():
            serial += 1
            one = (-reach * speaker[0], serial, token, speaker, place)
            if len(waiting) < room or one < waiting[-1]:
                insort(waiting, one)
                del waiting[room:]

    if limit > 0:
        expand((), 1.0, sources)
    while waiting:
        minus, _, token, (rate, kind, depth, rank), place = waiting.pop(0)
        count += 1
        yield Offer(token, place.node, kind, depth, rank, rate, -minus)
        if len(waiting) < limit - count or (waiting and minus * highest < waiting[-1][0]):  # else nothing gets in
            path, below = (*place.path, token), _below(token, place, acceptance, ranked=ranked)
            expand(path, -minus, below if more is None else below + more(path))


def offers(
    sources: Sequence[Source], acceptance: Acceptance, limit: int, more: More | None = None, *, least: float = 0.0
) -> list[Offer]:
    """All of `ranked_offers`."""
    return list(ranked_offers(sources, acceptance, limit, more, least=least))


def _best(known: Sequence[Source], acceptance: Acceptance, floor: float, *, ranked: bool) -> dict[int, _Speaker]:
    """The tokens that may follow, each by the source that makes it likeliest; none with a rate below `floor`."""
    best: dict[int, _Speaker] = {}
    for kind, depth, trie in known:
        cell = acceptance.cell(kind, depth)
        rates, tops = (cell.rates, cell.tops) if ranked else (_endless(cell.rates), _endless(cell.tops))
        for rank, (token, rate, top) in enumerate(zip(reversed(trie), rates, tops, strict=False)):
            if top < floor:
                break
            if rate >= floor and (token not in best or rate > best[token][0]):
                best[token] = (rate, kind, depth, rank)
    return best


def _endless(rates: Iterable[float]) -> Iterable[float]:
    known = list(rates)
    return chain(known, repeat(known[-1]))


def _below(token: int, place: _Place, acceptance: Acceptance, *, ranked: bool) -> list[Source]:
    """The sources that go on below a token, of those that know it."""
    found = []
    for kind, depth, trie in place.known:
        further = trie.get(token)
        if not further:
            continue
        cell = acceptance.cell(kind, depth)
        if cell.least < place.lowest or (ranked and len(trie) > _RANKS):
            rank = next(rank for rank, other in enumerate(reversed(trie)) if other == token)
            if (ranked and rank >= _RANKS) or cell.rates[min(rank, _RANKS - 1)] < place.lowest:
                continue
        found.append(Source(kind, depth + 1, further))
    return found


def needed(ranked: Iterable[Offer], probes: int, growing: int, budget: int, price: float) -> list[Offer]:
    """As many of the ranked offers as `split` may send where `growing` of the wanted probes are there to be sent."""
    taken: list[Offer] = []
    better = 0
    for offer in ranked:
        taken.append(offer)
        better += offer.reach >= price
        if better < len(taken) and len(taken) >= budget - min(growing, probes, budget - better):
            break
    return taken


def split(ranked: Sequence[Offer], probes: int, budget: int, price: float) -> tuple[int, int]:
    """How many of the ranked offers and of `probes` wanted probes to send with `budget` nodes.

    Candidates more likely than the price of a probe come first, then probes, then the other candidates.
    """
    better = sum(1 for offer in ranked[:budget] if offer.reach >= price)
    sent = min(probes, budget - better)
    return min(len(ranked), budget - sent), sent
