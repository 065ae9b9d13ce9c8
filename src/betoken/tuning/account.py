"""What the automatic node count knows of a row, and what it may risk for it.

Times are in units of a plain step, for one row of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from betoken.tuning.acceptance import Acceptance
from betoken.tuning.cost import Prices
from betoken.tuning.gains import Gains

HEAD_START = 32
"""Tokens of plain decoding whose share of the allowed loss is there from the start."""
_LOOK_SHARE, _DEAR_LOOK_SHARE = 0.01, 0.015
"""Share of plain decoding's time that goes into looking again at a drafter that does not pay."""
FIRST_PURSE, DOUBTED_PURSE = 0.6, 0.4
"""Plain steps of such looks that are there from the start: an unlucky first draft shall not decide it. The lesser for a
drafter that never paid in other requests."""
_CHEAP_PURSE = 0.3
"""What is added to it where drafting is not dear: many looks, so that a drafter which learns from them can."""
_LONGEST_REST = 16
"""Steps after which a row that can afford nothing is judged anew."""
_PAUSE = 8
"""Most plain steps that a drafter which invests is held back for what it has brought so far: a quarter of its drafts
once the credit has run out, or for having nothing to send. The credit may take longer to come back."""
_FIRST_EMPTY = 3
"""Steps in a row without anything to send from which on plain steps are taken: one more after each further such."""
LOOK_STEPS = 8
"""Steps of a look at a drafter whose nodes pay off later (probes)."""
CHEAP = 0.08
"""Most plain steps that a draft may cost which goes on although it does not pay yet."""
DEAR = 0.3
"""Plain steps from which on the smallest draft is dear."""
_FADE = 0.95
"""Of the averages that make a row's rate."""
_MOST_PURSE = 4.0
_EARNED_SHARE = 0.4
"""Share of what drafting saves that goes into looks once it no longer pays."""
_FIRST_PAUSE, _LONGEST_PAUSE = 5, 24
"""Plain steps after the second draft in a row that brought nothing, for each plain step that a look costs; doubled by
every further one, up to the longest."""


@dataclass
class Plan:
    """What the arms of a row are expected to bring and to cost, a list entry an arm, before catching up."""

    accepted: Sequence[float]
    losses: Sequence[float]
    """Drafting and the longer forward pass."""
    stakes: Sequence[float]
    """The part of it that is spent before nodes can still be left out."""
    promising: Sequence[int]
    """Arms that would pay if time were worth no more than in plain decoding; no other can pay."""
    near: int
    """First arm that is far beyond those that were tried."""
    drafting: Sequence[float]
    """What it rests on, with `accepted`: seconds by arm, prices, and nodes of the other rows."""
    prices: Prices
    others: int


@dataclass(eq=False)
class Account:
    """What the policy knows of one row. Times are in units of a plain step, for one row of the batch."""

    moods: tuple[Gains, Gains, Gains]
    """On the whole, after a draft of which nothing was accepted, and after any other: text turns for and against a
    drafter."""
    acceptance: Acceptance
    credit: float
    purse: float = FIRST_PURSE
    allowance: float = 0.015
    """Loss that a committed token allows, in plain steps, where much can be won."""
    prize: float = 1.0
    """How much can be won where nodes cost what they do now (`Prices.prize`): what is staked is in proportion."""
    tokens: float = 1.0
    """Running average of committed tokens a step."""
    cost: float = 1.0
    """Running average of a step's time."""
    arm: int = 0
    stake: float = 0.0
    """What drafting at this arm costs."""
    rest: int = 0
    """Steps to come in which nothing is decided, because nothing can be afforded: plain decoding."""
    wake: int = 0
    """The step in which something is decided next."""
    settled: int | None = None
    """The last step that is accounted for, those since then were plain; None before the row's first step."""
    looking: int = 0
    """Steps left of a look at a drafter that was left alone, this one included."""
    look_arm: int = 0
    missed: int = 0
    """Tokens that the drafter has to catch up with: committed since the last draft, or an unread prompt."""
    unread: bool = False
    """Whether the drafter was not told to prepare for the row in prefill."""
    drafts: int = 0
    last: int = 0
    """How the last draft fared: 0 nothing accepted, 1 some, 2 all."""
    invests: bool = False
    """Whether the drafter's trees carry probes."""
    trimmable: bool = True
    nodes: int = 1
    """Nodes of the last tree."""
    trusted: bool = True
    """Whether the drafter may have the whole credit to invest: not if it never paid in other requests."""
    empty: int = 0
    """Steps in a row in which a drafter that invests was asked and had nothing to send."""
    reinvested: float = 0.1
    """Share of what a drafter with probes saves that goes into finding out whether more nodes save more."""
    plan: Plan | None = None
    fresh: bool = True
    """Whether nothing was drafted yet."""
    dear: bool = False
    """Whether the smallest draft costs a good part of a plain step, which is lost before its claims are known."""
    vain: int = 0
    """Drafts in a row of which nothing was accepted."""
    paused: bool = False
    """Whether plain steps were taken since then."""
    net: float = 0.0
    """What drafting has brought so far: plain steps saved."""

    @property
    def gains(self) -> Gains:
        """What drafting brings as things stand."""
        return self.moods[self.mood]

    @property
    def mood(self) -> int:
        """Which of the moods this is. It tells only where drafting is dear: else a draft's claims tell more."""
        return 0 if self.fresh or not self.dear else 1 + (self.last > 0)

    @property
    def rate(self) -> float:
        """Committed tokens for each plain step's time; plain decoding's own rate at least."""
        return max(1.0, self.tokens / self.cost)

    def look(self, stake: Sequence[float], node: float = 0.0) -> int:
        """The arm of a look at a drafter that seems not to pay: the greatest that the purse covers, else plain.

        `node`: what scoring one node costs where that is not in the stakes. A draft of which nothing can be scored
        would tell nothing.
        """
        if self.looking > 1 and stake[self.look_arm] <= self.credit:
            self.looking -= 1
            return self.look_arm
        steps = LOOK_STEPS if self.invests else 1
        if self.vain > 1 and self.dear and not self.paused and not self.invests:
            self.paused = True
            self.rest = int(min(_FIRST_PAUSE * 2 ** min(self.vain - 2, 8), _LONGEST_PAUSE) * min(stake[1], 1.0))
            if self.rest:
                self.rest, self.looking, self.look_arm = self.rest - 1, 0, 0
                return 0
        # What was earned pays for many looks, not for greater ones.
        least = stake[min(1, len(stake) - 1)] * steps + node
        within = min(self.purse, self.credit, max(least, FIRST_PURSE)) - node
        self.look_arm = max(arm for arm, staked in enumerate(stake) if arm == 0 or staked * steps <= within)
        self.looking = steps if self.look_arm else 0
        if not self.look_arm and len(stake) > 1:
            saving = (least - self.purse) / _LOOK_SHARE
            self.rest = max(0, min(int(saving), _LONGEST_REST), self._until(stake[1] if self._promising else least))
        return self.look_arm

    def invest(self, stake: Sequence[float]) -> int:
        """The arm for a drafter whose nodes pay off later: plain where the credit does not cover it.

        The greatest that costs next to nothing, and now and then, from what was earned, some steps at a greater one.
        """
        cheap = max(arm for arm, staked in enumerate(stake) if arm < 2 or staked <= CHEAP)
        if self.looking > 1 and stake[self.look_arm] <= self.purse:
            self.looking -= 1
        else:
            nearby = enumerate(stake[: cheap + 3])
            self.look_arm = max(arm for arm, staked in nearby if arm <= cheap or staked * LOOK_STEPS <= self.purse)
            self.looking = LOOK_STEPS if self.look_arm > cheap else 0
            self.reinvested *= 0.5 if self.looking else 1.0
        arm = self.look_arm if self.looking else cheap
        if stake[arm] <= self.credit:
            return arm
        waits = self._until(stake[1] if self._promising else stake[arm])
        self.rest = max(min(self.drafts // 4, _PAUSE) if self.net < 0.0 else 0, waits)
        return 0

    def resume(self, step: int, prize: float) -> None:
        """Something is decided again in this step: account for the plain ones since the last."""
        steps = 0 if self.settled is None else step - 1 - self.settled
        if self.settled is None:  # what it starts with was allotted before its batch was known
            self.credit *= prize / self.prize
            self.purse *= prize / self.prize
        self.settled, self.prize = step, prize
        if steps:
            self.missed += steps
            self.credit += steps * self.allowance * prize
            self.purse = min(self.purse + steps * self._look_share, _MOST_PURSE)
            faded = _FADE**steps
            self.tokens = 1.0 + (self.tokens - 1.0) * faded
            self.cost = 1.0 + (self.cost - 1.0) * faded

    def sleep(self, step: int, together: int) -> None:
        """Rest after this step as was decided; a rest ends at a multiple of `together` steps."""
        if not self.arm:
            self.settled = step - 1  # this one was plain
        self.wake = step + 1
        if self.rest:
            self.wake = -(-(step + 1 + self.rest) // together) * together
            self.rest = 0

    @property
    def _look_share(self) -> float:
        return _DEAR_LOOK_SHARE if self.dear else _LOOK_SHARE

    @property
    def _promising(self) -> bool:
        """Whether an arm may pay that costs less than a look or an investment."""
        return self.plan is not None and len(self.plan.promising) > 0

    def _until(self, stake: float) -> int:
        """Plain steps after which the credit covers the stake; not to be known for longer than the longest rest."""
        return max(0, min(ceil((stake - self.credit) / (self.allowance * self.prize)) - 1, _LONGEST_REST))

    def settle(self, committed: int, spent: float) -> None:
        """A step in which a draft was asked for: its tokens, and how much longer it took than a plain one."""
        self.drafts += 1
        self.missed = 0
        if self.drafts == 3 and not self.dear:  # by now it is known what drafting takes
            self.purse += _CHEAP_PURSE * self.prize
        if self.invests:  # too few nodes for its least growth, and nothing in its pool
            self.empty = self.empty + 1 if self.nodes == 1 else 0
            self.rest = max(self.rest, min(self.empty - _FIRST_EMPTY, _PAUSE))
        self.credit += committed * (1.0 + self.allowance * self.prize) - 1.0 - spent
        self.net += committed - 1.0 - spent
        share = self.reinvested if self.invests else _EARNED_SHARE if self.dear else 0.0
        earned = share * max(0.0, committed - 1.0 - spent)
        if self.nodes > 1:
            self.fresh, self.paused = False, False
            self.vain = 0 if committed > 1 else self.vain + 1
        self.purse = min(self.purse + self._look_share + earned, _MOST_PURSE)
        if self.looking:  # a look that pays is followed by others at once: the text has turned in the drafter's favour
            saved = 0.0 if self.invests else committed - 1.0
            self.purse = min(max(0.0, self.purse + saved - spent), _MOST_PURSE)
        self.tokens += (1.0 - _FADE) * (committed - self.tokens)
        self.cost += (1.0 - _FADE) * (1.0 + spent - self.cost)


def mean_rate(awake: Sequence[Account], rows: int) -> float:
    """Tokens for each plain step's time, over `rows` rows of a batch: those that are not awake decode plainly."""
    return (rows - len(awake) + sum([account.rate for account in awake])) / rows


@dataclass
class Proposed:
    """One row of the tree as it was proposed, and what is scored of it."""

    nodes: int
    keep: list[int]
    """Increasing node indices; all of them unless the row was trimmed."""
    nested: bool
    chances: Sequence[float] = ()
    """The probability that each candidate's path is right; empty where claims are not judged, as `cells` then."""
    cells: Sequence[int] = ()
    """Cell of each node's claim."""
