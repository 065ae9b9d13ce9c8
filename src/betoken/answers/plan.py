"""How a draft is judged, chosen by price: where the instruction stands, in how many passes, at how many boundaries.

N copies of a suffix of S tokens cost a forward pass over N x S nodes. On a GPU that is next to nothing, on a CPU it can
be more than writing the answer. What boundaries bring is text that need not be written again after a rejection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Literal

from betoken.answers.boundaries import spread

Passes = Literal["one", "two"]
"""Answer and prefixes judged together, or the prefixes only once the answer is rejected."""

MOST = 32
"""Most boundaries that are worth a thought."""
UNKNOWN_PASSES: Passes = "two"
UNKNOWN_MOST = 8
"""What auto is where nothing was measured: the paper's two passes, a few boundaries."""


@dataclass(frozen=True)
class Rates:
    """What scoring and writing cost the target, and how often a draft is accepted."""

    seconds: Callable[[int], float]
    """Seconds of a forward pass by nodes, 1 or more."""
    chunk: int = 512
    """Most nodes of a forward pass."""
    accepts: float = 0.5
    """Share of drafts that are accepted whole."""

    @property
    def token(self) -> float:
        """Seconds of a written token."""
        return self.seconds(1)

    def scored(self, nodes: float) -> float:
        """Seconds to score so many nodes, in chunks."""
        whole, rest = divmod(round(nodes), self.chunk)
        return whole * self.seconds(self.chunk) + (self.seconds(rest) if rest else 0.0)


@dataclass(frozen=True)
class Sizes:
    """Tokens of one layout, for one question."""

    layout: Literal["suffix", "prompt"]
    before: int
    """In front of the draft, not in the cache yet."""
    suffix: int
    again: int = 0
    """Tokens that the target must read again before it goes on after a rejection, besides those that are kept."""


@dataclass(frozen=True)
class Plan:
    """How one draft is judged."""

    layout: Literal["suffix", "prompt"]
    passes: Passes
    ends: tuple[int, ...]
    """Tokens of each prefix that is judged."""
    expected_s: float | None = None
    """Seconds that judging, and writing after a rejection, are expected to take; None where nothing was measured."""


def expected_kept(ends: Sequence[int], draft: int) -> float:
    """Tokens kept of a rejected draft by a judge that sees its first mistake, which may be any of its tokens."""
    return sum(end * (following - end) for end, following in pairwise([*ends, draft])) / max(draft, 1)


def expected_seconds(sizes: Sizes, passes: Passes, ends: Sequence[int], draft: int, rates: Rates) -> float:
    """Seconds of judging a draft of so many tokens, and of what the target writes if it is rejected."""
    copies = 1 + len(ends) if passes == "one" else 1
    judging = rates.scored(sizes.before + draft + copies * sizes.suffix)
    rejected = rates.scored(len(ends) * sizes.suffix) if passes == "two" else 0.0
    kept = expected_kept(ends, draft)
    if sizes.again:
        rejected += rates.scored(sizes.again + kept)
    return judging + (1.0 - rates.accepts) * (rejected + (draft - kept) * rates.token)


def cheapest(
    layouts: Iterable[Sizes],
    passes: Iterable[Passes],
    counts: Iterable[int],
    ends: Sequence[int],
    draft: int,
    rates: Rates,
) -> Plan:
    """The plan of least expected time; of equal ones the first. `counts`: how many of `ends` may be judged, spread."""
    best, least = None, math.inf
    for sizes, passing, count in product(layouts, passes, counts):
        chosen = tuple(spread(ends, count))
        seconds = expected_seconds(sizes, passing, chosen, draft, rates)
        if seconds < least or best is None:
            best, least = Plan(sizes.layout, passing, chosen, seconds), seconds
    if best is None:
        raise ValueError("nothing to choose from")
    return best
