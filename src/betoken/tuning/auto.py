"""`--nodes auto`: each step scores as many nodes as pay, and never loses to plain decoding for long.

Three things decide. (1) t(n) from the cost model and the drafter's running times say what nodes cost. (2) Running
estimates say what they bring: before drafting, accepted nodes by limit (`Gains`); after it, each node's claimed
confidence as this row has borne it out (`Acceptance`). Steps are chosen to maximise committed tokens minus
rate x time, with the rate at which the row decodes anyhow: the optimum of tokens per second over many steps
(Dinkelbach's rule). (3) An account bounds the loss: a row may stake nodes only while, were all of them wrong, it
would still be within `floor` of plain decoding. So a bad drafter is tried, found out and left alone; a small purse
pays for looking at it again. Where rows share a step, nodes are dear and little can be won: less is staked then.

What the policy itself takes counts too. A row that can afford nothing rests, until it could. Rows of a batch wake
together, and while all rest a step is plain decoding's: nothing is decided and no row is touched.

A drafter with probes is an investment: its nodes pay off dozens of steps later. It gets the nodes that cost next to
nothing in every step, as far as the account reaches, and more once they are seen to pay. Requests that ended tell the
next ones whether that is worthwhile at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from betoken.errors import InputError
from betoken.state import Row, State
from betoken.tree import TokenTree
from betoken.tuning.acceptance import Acceptance
from betoken.tuning.account import DOUBTED_PURSE, FIRST_PURSE, HEAD_START, LOOK_STEPS, Account, Proposed, mean_rate
from betoken.tuning.arms import Arms
from betoken.tuning.cost import CostModel, Prices
from betoken.tuning.gains import LIMITS, Gains
from betoken.tuning.nodes import StepTimes
from betoken.tuning.subtree import may_trim, subtree
from betoken.tuning.trimming import select
from betoken.verifiers.verifier import RowVerdict, Verdict

_RECORD = 4
"""Requests that say whether a drafter with probes pays."""
_TELLING = 8
"""Fewest drafts of such a request."""
_LONG = 256
"""Most tokens whose allowed loss may be spent in advance."""
_FIRST_PLAIN, _EVERY_PLAIN = 32, 4
"""The first steps in which all rows rest are timed, and then one of so many."""
_TOGETHER = 8
"""Rows of a batch end their rests at multiples of so many steps."""
_RETRY = 8
"""Of so many requests in a row that are not expected to be drafted for, one is prepared for nonetheless."""


@dataclass
class AutoNodes:
    """Chooses the node count of every step by measured cost and acceptance.

    It learns from timings, so what it chooses differs from run to run: the output does not, except under a verifier
    whose tokens depend on what was drafted.
    """

    cost: CostModel
    most: int = 64
    """Most nodes of a row's tree."""
    floor: float = 0.97
    """Least speed relative to plain decoding that a row of some 100 tokens may fall to (above 0, below 1)."""
    reproducible = False
    _accounts: dict[int, Account] = field(default_factory=dict, init=False, repr=False)
    _moods: tuple[Gains, Gains, Gains] = field(init=False, repr=False)
    _acceptance: Acceptance = field(init=False, repr=False)
    _arms: Arms = field(init=False, repr=False)
    _rows: tuple[Row, ...] = field(default=(), init=False, repr=False)
    _present: list[Account] = field(default_factory=list, init=False, repr=False)
    """Those of the rows of this step."""
    _awake: list[tuple[int, Account]] = field(default_factory=list, init=False, repr=False)
    """Places and accounts of those for which something is decided in this step."""
    _step: int = field(default=0, init=False, repr=False)
    _wake: int = field(default=0, init=False, repr=False)
    """The next step in which something is decided for one of the rows."""
    _trimmable: bool = field(default=True, init=False, repr=False)
    _invests: bool = field(default=False, init=False, repr=False)
    _proposed: list[Proposed] = field(default_factory=list, init=False, repr=False)
    """Of those that are awake."""
    _prices: Prices = field(init=False, repr=False)
    _record: deque[float] = field(default_factory=lambda: deque(maxlen=_RECORD), init=False, repr=False)
    _plain_steps: int = field(default=0, init=False, repr=False)
    _passed_over: int = field(default=0, init=False, repr=False)
    """Requests since the last that the drafter should prepare for."""

    def __post_init__(self) -> None:
        """Raises InputError for a floor that leaves nothing to try with, or a promise that cannot be kept."""
        if not 0.0 < self.floor < 1.0:
            raise InputError(f"nodes auto: floor must be above 0 and below 1, not {self.floor}")
        if self.most < 1:
            raise InputError(f"nodes auto: most must be at least 1, not {self.most}")
        self._acceptance = Acceptance(memory=400.0)
        self._arms = Arms(self.most)
        self._moods = (Gains(), Gains(), Gains())
        self._prices = Prices(self.cost.curve(0.0), self.cost.measured_curve, 1, self.most)

    @property
    def _allowance(self) -> float:
        """Loss a committed token allows, in plain steps.

        With the head start and what asking and measuring leave out, it comes to `floor` at about 100 tokens.
        """
        return 0.5 * (1.0 / self.floor - 1.0)

    def expects(self, row: Row) -> bool:
        """Whether drafting for this row pays by what is known from earlier ones; now and then in any case.

        If not, a draft would have to catch up with the whole prompt, and is priced so.
        """
        account = self._account(row)
        arm, _ = self._arms.paying(account, self._prices, 0, account.rate)
        self._passed_over += 1
        if arm > 0 or account.invests or self._passed_over >= _RETRY:
            self._passed_over = 0
            return True
        account.missed, account.unread = row.cached, True
        return False

    def limits(self, state: State) -> list[int]:
        """[B] most nodes the drafter may propose for each row; see the module."""
        self._step += 1
        limits = [1] * len(state.rows)
        if state.rows != self._rows:
            self._gather(state.rows)
        if self._step < self._wake:
            self._awake = []
            return limits
        self._awake = [(b, account) for b, account in enumerate(self._present) if account.wake <= self._step]
        prices = self._refresh(state.rows)
        awake = [account for _, account in self._awake]
        for account in awake:
            account.resume(self._step, prices.prize)
        everyone = len(limits) - len(awake) + sum([account.nodes for account in awake])
        rate = mean_rate(awake, len(limits))
        for b, account in self._awake:
            account.arm = self._arms.choose(account, prices, everyone - account.nodes, rate)
            limits[b] = min(LIMITS[account.arm], self.most)
        return limits

    def trim(self, tree: TokenTree, state: State) -> TokenTree:
        """Without the nodes that cost more than they are expected to bring, or more than a row may stake."""
        if not self._awake:
            return tree
        counts = _sizes(tree)
        proposed = self._proposed = [
            self._read(tree, b, counts[b], account) if counts[b] > 1 else Proposed(1, [0], not account.invests)
            for b, account in self._awake
        ]
        judged = sum([len(row.chances) for row in proposed])
        if not judged:
            return tree
        select([account for _, account in self._awake], proposed, sum(counts) - judged, self._prices)
        if all(len(row.keep) == row.nodes for row in proposed):
            return tree
        keep: list[list[int]] = [[0]] * len(counts)
        for (b, _), row in zip(self._awake, proposed, strict=True):
            keep[b] = row.keep
        return subtree(tree, keep)

    def observe(self, tree: TokenTree, verdict: Verdict, state: State, times: StepTimes) -> None:
        """What a step accepted and what it cost."""
        if not self._awake:
            self._observe_plain(times)
            return
        counts = _sizes(tree)
        total, prices = sum(counts), self._prices
        self.cost.observe(total, prices.context, times.target)
        asked = [account for _, account in self._awake if account.arm]
        drafting = self._arms.times.each(times.draft, len(asked))
        self._arms.learn(asked, max([row.nodes for row in self._proposed]), drafting, alone=len(counts) == 1)
        share = prices.extra(total) * len(counts) / max(1, total - len(counts))
        together = _TOGETHER if len(counts) > 1 else 1
        for (b, account), proposed in zip(self._awake, self._proposed, strict=True):
            account.nodes = counts[b]
            if account.arm:
                drafted = self._arms.charged(account, proposed.nodes, drafting) / prices.share
                self._settle(account, proposed, verdict.rows[b], drafted + share * (account.nodes - 1))
                self._learn_acceptance(account, proposed, tree, b, verdict.rows[b])
            account.sleep(self._step, together)
        self._wake = min([account.wake for account in self._present])

    def _observe_plain(self, times: StepTimes) -> None:
        """A step in which all rows rested. What each of them says about costs is hardly news."""
        self._plain_steps += 1
        if self._plain_steps < _FIRST_PLAIN or self._plain_steps % _EVERY_PLAIN == 0:
            self.cost.observe(len(self._present), self._prices.context, times.target)
            self._arms.times.learn(0, times.draft)

    def _gather(self, rows: tuple[Row, ...]) -> None:
        """Rows have joined or left. Those that rest go on with it."""
        self._rows = rows
        self._present = [self._account(row) for row in rows]
        self._wake = min([account.wake for account in self._present])

    def release(self, rows: Sequence[Row]) -> None:
        """These rows left: forget them, but for whether an investment paid."""
        for row in rows:
            account = self._accounts.pop(row.id, None)
            if account is not None and account.invests and account.drafts >= _TELLING:
                self._record.append(account.net)
        if not self._accounts:  # the next one begins alone
            curve = self.cost.curve(self._prices.context)
            self._prices = Prices(curve, self.cost.measured_curve, 1, self.most)

    def _account(self, row: Row) -> Account:
        account = self._accounts.get(row.id)
        if account is None:
            known = len(self._record) == self._record.maxlen
            credit, prize = self._allowance * HEAD_START, self._prices.prize
            if known and min(self._record) > 0.0:
                credit = max(credit, (1.0 / self.floor - 1.0 - self._allowance) * min(row.room, _LONG))
            trusted = not known or max(self._record) > 0.0
            account = Account(
                moods=(self._moods[0].narrowed(4.0), self._moods[1].narrowed(4.0), self._moods[2].narrowed(4.0)),
                acceptance=self._acceptance.narrowed(4.0, memory=24.0),
                credit=credit * prize,
                allowance=self._allowance,
                prize=prize,
                trimmable=self._trimmable,
                invests=self._invests,
                trusted=trusted,
                purse=(FIRST_PURSE if trusted else DOUBTED_PURSE) * prize,
            )
            self._accounts[row.id] = account
        return account

    def _refresh(self, rows: Sequence[Row]) -> Prices:
        """What nodes cost at this context and batch size."""
        context = sum([row.cached for row in rows]) / len(rows)
        curve = self.cost.curve(context)
        if self._prices.curve is not curve or self._prices.rows != len(rows):
            self._prices = Prices(curve, self.cost.measured_curve, len(rows), self.most)
        self._prices.context = context
        return self._prices

    def _read(self, tree: TokenTree, b: int, count: int, account: Account) -> Proposed:
        """One row's tree: what kind the drafter makes, and how probable its nodes are."""
        free = may_trim(tree, b)
        if not free and not tree.laws[b]:
            account.invests = self._invests = True
        account.trimmable = free and not account.invests  # some trees of a drafter with probes have none
        self._trimmable = self._trimmable and account.trimmable
        proposed = Proposed(count, list(range(count)), not account.invests)
        if account.trimmable:
            parents, claims = tree.parents[b, :count].tolist(), tree.confidence[b, :count].tolist()
            proposed.chances, proposed.cells = account.acceptance.judge(parents, claims, account.last)
        return proposed

    def _learn_acceptance(
        self, account: Account, proposed: Proposed, tree: TokenTree, b: int, verdict: RowVerdict
    ) -> None:
        """Count each candidate whose parent was accepted as a trial of its cell."""
        if account.nodes == 1:
            return
        path = verdict.path
        for depth, node in enumerate(path if proposed.cells else ()):
            right = path[depth + 1] if depth + 1 < len(path) else -1
            for child in tree.children(b, node):
                cell = proposed.cells[proposed.keep[child]]
                account.acceptance.learn(cell, child == right)
                self._acceptance.learn(cell, child == right)
        account.last = 0 if len(path) == 1 else 1 if tree.children(b, path[-1]) else 2

    def _settle(self, account: Account, proposed: Proposed, verdict: RowVerdict, spent: float) -> None:
        """Learn from the verdict on one row's draft; `spent` is the time beyond a plain step, in plain steps."""
        # The first steps of a look at a drafter that invests say nothing yet.
        if not (account.invests and account.looking > LOOK_STEPS // 2):
            accepted, scored = [proposed.keep[node] for node in verdict.path[1:]], proposed.keep[1:]
            for mood in {0, account.mood}:
                account.moods[mood].learn(account.arm, accepted, scored, nested=proposed.nested)
                if account.drafts < 16 or account.drafts % 4 == 0:  # enough for the start of other rows
                    self._moods[mood].learn(account.arm, accepted, scored, nested=proposed.nested)
        account.settle(len(verdict.path), spent)


def _sizes(tree: TokenTree) -> list[int]:
    """[B] nodes of each row; a single row has no padding."""
    return [tree.width] if tree.batch == 1 else tree.counts.tolist()
