"""Which limit a row's draft gets: the one that pays best, or one that invests, or a look at a drafter left alone.

And what drafting at it takes: learned from steps, and charged to rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf, isfinite

from betoken.tuning.account import DEAR, Account, Plan
from betoken.tuning.cost import Prices
from betoken.tuning.gains import DraftTimes, arm_below

_CHEAP_STAKE = 0.1
"""Plain steps that a limit far beyond those that were tried may stake."""

_NEAR = 2
"""Nodes of other rows by which a plan may be off: in a batch they change in every step."""
_PREMIUM = 0.3
"""What time is worth above its rate where drafting is dear: the draft with which a good phase ends is lost whole."""


@dataclass
class Arms:
    """Chooses an arm for one row after another."""

    most: int
    """Most nodes of a row's tree."""
    times: DraftTimes = field(default_factory=DraftTimes)
    """What drafting takes, for each row that is asked."""

    def choose(self, account: Account, prices: Prices, others: int, rate: float) -> int:
        """The arm that pays best; or one that invests, or looks at a drafter that seems not to pay.

        `others`: nodes of the other rows. `rate`: tokens for each plain step's time that time is worth.
        """
        account.dear = account.trimmable and DEAR * prices.share < self.times.extra()[1] < inf
        best, stakes = self.paying(account, prices, others, rate)
        grows = account.trusted and (len(stakes) < 2 or stakes[1] <= DEAR)
        if account.invests and (grows or account.net > 0.0):
            best = max(best, account.invest(stakes))
        elif best > 0 and account.looking <= 1:
            account.looking = 0
        else:
            plan = account.plan
            node = plan.losses[1] - plan.stakes[1] if plan is not None and len(stakes) > 1 else 0.0
            best = account.look(stakes, node)
        if best:
            account.rest = 0
        account.stake = self.times.extra()[best] / prices.share
        return best

    def paying(self, account: Account, prices: Prices, others: int, rate: float) -> tuple[int, Sequence[float]]:
        """The arm with the greatest expected tokens minus rate x time among those the row can afford to lose.

        And what each arm stakes before nodes can still be left out.
        """
        plan = self._plan(account, prices, others)
        stakes, resume = plan.stakes, 0.0
        if account.missed and (resume := self.times.resume(account.missed) / prices.share):
            stakes = [0.0] + [stake + resume for stake in stakes[1:]]
        best = 0
        if plan.promising:
            # Half of the account may be staked at once (one unlucky draft shall not end it), or the smallest draft;
            # and no limit far beyond those that were tried, unless drafting is cheap.
            most = min(max(0.5 * account.credit, stakes[min(1, len(stakes) - 1)]), max(account.credit, 0.0))
            best_value, premium = rate * resume, _PREMIUM if account.dear else 0.0
            for arm in plan.promising:
                value = plan.accepted[arm] - (rate + premium) * plan.losses[arm]
                if value > best_value and stakes[arm] <= most and (arm < plan.near or stakes[arm] < _CHEAP_STAKE):
                    best, best_value = arm, value
        return best, stakes

    def learn(self, asked: Sequence[Account], nodes: int, seconds: float, *, alone: bool) -> None:
        """File a step's drafting time, for each row asked, by the greatest number of `nodes` proposed for one of them.

        Not where a drafter may have indexed a prompt. Where it was asked and had nothing to offer, that says what
        asking costs, but nothing about what the limit allows. `alone`: the batch is a single row.
        """
        if not asked:
            self.times.learn(0, seconds)
            return
        arm = arm_below(nodes)
        if any(account.drafts == 0 and not account.unread for account in asked):
            return
        if arm == 0:
            self.times.learn_empty(seconds)
        elif not any(account.missed for account in asked) or not isfinite(self.times.extra()[arm]):
            self.times.learn(arm, seconds)  # what catching up takes is learned once drafting is known
        elif alone:
            self.times.learn_resume(arm, asked[0].missed, seconds)

    def charged(self, account: Account, nodes: int, seconds: float) -> float:
        """Seconds of drafting that a row answers for: the usual time of its arm, or what catching up took."""
        usual = self.times.extra()[arm_below(nodes)]
        if account.drafts == 0 and not account.unread:  # some index the prompt then, once
            return usual if isfinite(usual) else 0.0
        if account.missed or not isfinite(usual):
            return max(0.0, seconds - self.times.base)
        return usual if nodes > 1 else self.times.asking()

    def _plan(self, account: Account, prices: Prices, others: int) -> Plan:
        """What each arm brings and costs; worked out again only when what it rests on has changed."""
        drafting, (accepted, scored) = self.times.extra(), account.gains.expected()
        plan = account.plan
        if (
            plan is None
            or plan.accepted is not accepted
            or plan.drafting is not drafting
            or plan.prices is not prices
            or abs(plan.others - others) > _NEAR
        ):
            top = arm_below(self.most) + 1
            own = [seconds / prices.share for seconds in drafting[:top]]
            forward = prices.beyond(others + 1, [ceil(more) for more in scored[:top]])
            losses = [draft + more for draft, more in zip(own, forward, strict=True)]
            plan = account.plan = Plan(
                accepted=accepted,
                losses=losses,
                stakes=own if account.trimmable else losses,
                # time is worth a token a plain step at least
                promising=[arm for arm in range(1, top) if accepted[arm] > losses[arm]],
                near=account.gains.tried() + 3,
                drafting=drafting,
                prices=prices,
                others=others,
            )
        return plan
