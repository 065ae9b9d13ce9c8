"""What each node limit brings: accepted nodes, scored nodes and drafting seconds by limit, as running estimates."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from math import inf, isfinite

LIMITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Node limits to choose from, the pending token included; an *arm* is an index into it, arm 0 is plain decoding."""


_FADE = 0.9
"""Of what is known of larger limits, by a step at a smaller one."""


def arm_below(limit: int) -> int:
    """The greatest arm whose limit is at most `limit`, which is at least 1."""
    return bisect_left(LIMITS, limit + 1) - 1


class Gains:
    """Accepted and scored nodes by arm, for one row (or for all rows so far: the start of the next).

    A step at one limit also tells what smaller limits would have brought: the accepted nodes among the first of the
    tree. Where trees are not nested (probes ride along), what a smaller limit brings is taken to be in proportion.
    Larger limits that were not tried of late are extrapolated as a chain: the gain of a node falls off geometrically.
    """

    memory = 20.0
    """Steps after which an observation has faded."""

    def __init__(self) -> None:
        """Nothing observed: the first candidate is taken to be right in 6 of 10 cases."""
        self.accepted = [0.0] + [0.6] * (len(LIMITS) - 1)
        self.scored = [limit - 1.0 for limit in LIMITS]
        self.weight = [1e9, 1.0] + [0.0] * (len(LIMITS) - 2)
        self._steps = 0
        self._nested = True
        self._expected: tuple[list[float], list[float]] | None = None

    def narrowed(self, weight: float) -> Gains:
        """A copy whose observations count as `weight` steps at most: the start of a new request."""
        new = Gains()
        new.accepted, new.scored, new._nested = list(self.accepted), list(self.scored), self._nested
        new.weight = [min(own, weight) for own in self.weight]
        return new

    def learn(self, arm: int, accepted: Sequence[int], scored: Sequence[int], *, nested: bool) -> None:
        """A step at `arm`: increasing node indices, in the proposed tree, of candidates accepted and nodes scored.

        `nested`: smaller limits would have given the first nodes of this tree.
        """
        self._steps += 1
        self._nested = nested
        if self._steps < 16 or self._steps % 4 == 0:
            self._expected = None
        weights, means, sizes = self.weight, self.accepted, self.scored
        for other in range(1 if nested else arm, arm + 1):
            limit, weight = LIMITS[other], weights[other]
            if weight < self.memory:
                weights[other] = weight = min(weight + 1.0, self.memory)
            means[other] += (bisect_left(accepted, limit) - means[other]) / weight
            sizes[other] += (bisect_left(scored, limit) - sizes[other]) / weight
        for other in range(arm + 1, len(LIMITS)):
            weights[other] *= _FADE

    def tried(self) -> int:
        """The greatest arm of which something is known."""
        return max(arm for arm, weight in enumerate(self.weight) if arm < 2 or weight >= 2.0)

    def expected(self) -> tuple[list[float], list[float]]:
        """Accepted and scored nodes (the pending token apart) to expect at each arm, [len(LIMITS)] each.

        After the first steps it is computed anew every fourth step only.
        """
        if self._expected is None:
            self._expected = self._computed()
        return self._expected

    def _computed(self) -> tuple[list[float], list[float]]:
        accepted, scored = [0.0], [0.0]
        known = [] if self._nested else [arm for arm in range(1, len(LIMITS)) if self.weight[arm] >= 2.0]
        for arm in range(1, len(LIMITS)):
            weight = self.weight[arm]
            above = next((other for other in known if other > arm), 0)
            if above and weight < 2.0:
                part = (LIMITS[arm] - LIMITS[arm - 1]) / (LIMITS[above] - LIMITS[arm - 1])
                accepted.append(accepted[-1] + part * (self.accepted[above] - accepted[-1]))
                scored.append(scored[-1] + part * (self.scored[above] - scored[-1]))
                continue
            share = weight / (weight + 2.0) if arm > 1 else 1.0
            if share < 0.99:
                more, nodes = self._extrapolated(arm, accepted, scored)
            else:
                more, nodes = 0.0, 0.0
            accepted.append(share * self.accepted[arm] + (1.0 - share) * more)
            scored.append(share * self.scored[arm] + (1.0 - share) * nodes)
        return accepted, scored

    @staticmethod
    def _extrapolated(arm: int, accepted: Sequence[float], scored: Sequence[float]) -> tuple[float, float]:
        step = LIMITS[arm] - LIMITS[arm - 1]
        if arm == 1:
            return 0.6, 1.0
        last = LIMITS[arm - 1] - LIMITS[arm - 2]
        slope = min(max((accepted[-1] - accepted[-2]) / last, 0.0), 0.99)
        centre = (LIMITS[arm - 1] + LIMITS[arm - 2] - 1) / 2.0
        next_centre = (LIMITS[arm] + LIMITS[arm - 1] - 1) / 2.0
        falling = slope ** (next_centre / centre) if slope > 0.0 else 0.0
        density = max((scored[-1] - scored[-2]) / last, 0.0)
        return accepted[-1] + step * falling, scored[-1] + step * density


def _median(values: deque[float]) -> float:
    """The lower median: of two, the other often paid for a first call."""
    return sorted(values)[(len(values) - 1) // 2]


class DraftTimes:
    """Seconds of drafting by arm: medians over recent steps, linear in between and beyond."""

    window = 11
    """Steps a median looks back."""
    few = 5
    """So few steps without a draft tell by the quickest of them, not by the median, and a single one not at all."""
    slack = 0.03
    """A median that has moved by less than this share is left as it was."""

    def __init__(self) -> None:
        """Nothing is known: only the smallest draft can be afforded until it was timed."""
        self._windows: list[deque[float]] = [deque(maxlen=self.window) for _ in LIMITS]
        self._medians = [0.0] * len(LIMITS)
        self._resume: deque[float] = deque(maxlen=self.window)
        self._empty: deque[float] = deque(maxlen=self.window)
        self._asking = 0.0
        self._extra: list[float] | None = None

    @property
    def base(self) -> float:
        """Seconds of a step that drafts nothing (whatever the drafter does all the same)."""
        return self._medians[0]

    def extra(self) -> list[float]:
        """[len(LIMITS)] seconds that drafting at each arm costs more than drafting nothing; asking is the least."""
        if self._extra is None:
            known = [arm for arm in range(1, len(LIMITS)) if self._windows[arm]]
            line = self._line(known) if known else [0.0, 0.0] + [inf] * (len(LIMITS) - 2)
            self._extra = [0.0] + [max(more, self._asking) for more in line[1:]]
        return self._extra

    def asking(self) -> float:
        """Seconds more of a step in which the drafter was asked and had nothing to offer."""
        return self._asking

    def resume(self, missed: int) -> float:
        """Seconds more of a draft that follows `missed` tokens without one: the drafter has to catch up."""
        return missed * _median(self._resume) if self._resume else 0.0

    def each(self, seconds: float, asked: int) -> float:
        """What a step's drafting would have taken for one row: the rows that were asked share what it took longer.

        The whole batch waits for a single row's draft, which that row then answers for.
        """
        return seconds if asked < 2 else self.base + (seconds - self.base) / asked

    def learn(self, arm: int, seconds: float) -> None:
        """Drafting at `arm` took this long, right after another draft (or none, for arm 0)."""
        self._windows[arm].append(seconds)
        window, known = self._windows[arm], self._medians[arm]
        # A slow step taken for the base would make drafting look free, and then no other would tell the base.
        quickest = min(window) if len(window) > 1 else 0.0
        middle = quickest if arm == 0 and len(window) < self.few else _median(window)
        if abs(middle - known) > self.slack * known or len(self._windows[arm]) == 1:
            self._medians[arm] = middle
            self._extra = None

    def learn_empty(self, seconds: float) -> None:
        """Drafting took this long and brought nothing."""
        self._empty.append(seconds)
        asking = max(0.0, _median(self._empty) - self.base)
        if abs(asking - self._asking) > self.slack * self._asking:
            self._asking, self._extra = asking, None

    def learn_resume(self, arm: int, missed: int, seconds: float) -> None:
        """Drafting at `arm` took this long after `missed` tokens without a draft."""
        more = seconds - self.base - self.extra()[arm]
        if isfinite(more):
            self._resume.append(max(more, 0.0) / missed)

    def _line(self, known: Sequence[int]) -> list[float]:
        """Through the known arms, never falling; beyond them on from nothing through the last."""
        line = [0.0]
        left, low = 1, 0.0
        for arm in known:
            high = max(self._medians[arm] - self.base, low)
            slope = (high - low) / (LIMITS[arm] - left)
            line += [low + slope * (limit - left) for limit in LIMITS[len(line) : arm + 1]]
            left, low = LIMITS[arm], high
        slope = low / (left - 1)
        return line + [low + slope * (limit - left) for limit in LIMITS[len(line) :]]
