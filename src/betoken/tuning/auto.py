"""`--nodes auto`: each step scores as many nodes as pay, and never loses to plain decoding for long.

Three things decide. (1) t(n) from the cost model and the drafter's running times say what nodes cost. (2) Running
estimates say what they bring: before drafting, accepted nodes by limit (`Gains`); after it, each node's claimed
confidence as this row has borne it out (`Acceptance`). Steps are chosen to maximise committed tokens minus
rate x time, with the rate at which the row decodes anyhow: the optimum of tokens per second over many steps
(Dinkelbach's rule). (3) An account bounds the loss: a row may stake nodes only while, were all of them wrong, it
would still be within `floor` of plain decoding. So a bad drafter is tried, found out and left alone; a small purse
pays for looking at it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from betoken.errors import InputError
from betoken.state import Row, State
from betoken.tree import Floats, Role, TokenTree
from betoken.tuning.acceptance import Acceptance
from betoken.tuning.account import HEAD_START, LOOK_STEPS, Account, Proposed
from betoken.tuning.cost import MOST_NODES, CostModel
from betoken.tuning.gains import LIMITS, DraftTimes, Gains, arm_below
from betoken.tuning.nodes import StepTimes
from betoken.tuning.subtree import depths_of, may_trim, subtree
from betoken.verifiers.verifier import RowVerdict, Verdict


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
    _gains: Gains = field(default_factory=Gains, init=False, repr=False)
    _acceptance: Acceptance = field(init=False, repr=False)
    _drafts: DraftTimes = field(default_factory=DraftTimes, init=False, repr=False)
    _trimmable: bool = field(default=True, init=False, repr=False)
    _invests: bool = field(default=False, init=False, repr=False)
    _proposed: list[Proposed] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises InputError for a floor that leaves nothing to try with, or a promise that cannot be kept."""
        if not 0.0 < self.floor < 1.0:
            raise InputError(f"nodes auto: floor must be above 0 and below 1, not {self.floor}")
        if self.most < 1:
            raise InputError(f"nodes auto: most must be at least 1, not {self.most}")
        self._acceptance = Acceptance(memory=400.0)

    @property
    def _allowance(self) -> float:
        """Loss a committed token allows, in plain steps; with the head start it is `floor` at about 100 tokens."""
        return 0.6 * (1.0 / self.floor - 1.0)

    def limits(self, state: State) -> list[int]:
        """[B] most nodes the drafter may propose for each row; see the module."""
        accounts = [self._account(row) for row in state.rows]
        curve, plain = self._curve(state)
        everyone = sum(account.nodes for account in accounts)
        rate = sum(account.rate for account in accounts) / len(accounts)
        share = len(accounts) / plain
        for account in accounts:
            others = everyone - account.nodes
            account.arm = self._arm(account, curve, others, share, rate, 1.0 / plain)
        return [min(LIMITS[account.arm], self.most) for account in accounts]

    def trim(self, tree: TokenTree, state: State) -> TokenTree:
        """Without the nodes that cost more than they are expected to bring, or more than a row may stake."""
        counts = tree.counts.tolist()
        self._proposed = []
        chances: list[NDArray[np.float64]] = []
        for b, row in enumerate(state.rows):
            account = self._account(row)
            if counts[b] > 1:
                account.trimmable = may_trim(tree, b)
            account.invests = account.invests or bool((tree.roles[b] == Role.PROBE).any())
            self._trimmable, self._invests = self._trimmable and account.trimmable, self._invests or account.invests
            cells, chance = self._judge(tree, b, counts[b], account)
            self._proposed.append(Proposed(cells, list(range(counts[b])), not account.invests))
            chances.append(chance if account.trimmable else chance[:0])
        if sum(len(chance) for chance in chances):
            self._select(chances, counts, state)
        if all(len(row.keep) == count for row, count in zip(self._proposed, counts, strict=True)):
            return tree
        return subtree(tree, [row.keep for row in self._proposed])

    def observe(self, tree: TokenTree, verdict: Verdict, state: State, times: StepTimes) -> None:
        """What a step accepted and what it cost."""
        total = int(tree.counts.sum())
        self.cost.observe(total, _context(state), times.target)
        curve, plain = self._curve(state)
        accounts = [self._account(row) for row in state.rows]
        self._learn_drafting(accounts, times.draft)
        # Running corrections can make nodes look free; the account goes by the dearer of the two curves.
        top, rows = min(total, MOST_NODES), min(len(accounts), MOST_NODES)
        measured = self.cost.measured(_context(state))
        extra = max(float(curve[top] - curve[rows]) / plain, float(measured[top] / measured[rows]) - 1.0)
        grown = max(1, total - len(accounts))
        for b, account in enumerate(accounts):
            account.nodes = int(tree.counts[b])
            used = extra * len(accounts) * (account.nodes - 1) / grown
            drafting = self._charged(account, b, times.draft) / plain if account.arm else 0.0
            self._learn_acceptance(account, tree, b, verdict.rows[b])
            self._settle(account, self._proposed[b], verdict.rows[b], used + drafting)

    def release(self, rows: Sequence[Row]) -> None:
        """These rows left: forget them."""
        for row in rows:
            self._accounts.pop(row.id, None)

    def _account(self, row: Row) -> Account:
        account = self._accounts.get(row.id)
        if account is None:
            account = Account(
                gains=self._gains.narrowed(4.0),
                acceptance=self._acceptance.narrowed(4.0, memory=24.0),
                credit=self._allowance * HEAD_START,
                trimmable=self._trimmable,
                invests=self._invests,
            )
            self._accounts[row.id] = account
        return account

    def _curve(self, state: State) -> tuple[Floats, float]:
        """t(n) at this context, and the time of a plain step of the batch."""
        curve = self.cost.curve(_context(state))
        return curve, float(curve[min(len(state.rows), MOST_NODES)])

    def _arm(self, account: Account, curve: Floats, others: int, share: float, rate: float, unit: float) -> int:
        """The arm with the greatest expected tokens minus rate x time among those the row can afford to lose."""
        drafting = self._drafts.extra()
        if account.missed:
            drafting = drafting + self._drafts.resume(account.missed)
        accepted, scored = account.gains.expected()
        at = np.minimum(others + 1 + np.ceil(scored).astype(np.int64), MOST_NODES)
        forward = (curve[at] - curve[min(others + 1, MOST_NODES)]) * share
        loss = forward + drafting * unit
        loss[0] = 0.0
        stake = drafting * unit if account.trimmable else loss
        # Half of the account may be staked at once (one unlucky draft shall not end it), or the smallest draft; and
        # no limit far beyond those that were tried, unless drafting is cheap.
        affordable = stake <= min(max(0.5 * account.credit, float(stake[1])), max(account.credit, 0.0))
        affordable[account.gains.tried() + 3 :] &= stake[account.gains.tried() + 3 :] < 0.1
        top = arm_below(self.most)
        value = np.where(affordable, accepted - rate * loss, -np.inf)[: top + 1]
        value[0] = 0.0
        best = int(np.argmax(value))
        if best > 0 and account.looking <= 1:
            account.looking = 0
        else:
            best = account.look(stake[: top + 1])
        account.stake = float(drafting[best]) * unit if best else 0.0
        return best

    @staticmethod
    def _judge(tree: TokenTree, b: int, count: int, account: Account) -> tuple[list[int], NDArray[np.float64]]:
        """Cells of the nodes of a row, and the probability [count - 1] that each candidate's path is right."""
        parents = tree.parents[b, :count].tolist()
        depths = depths_of(parents)
        mood = account.acceptance.mood(account.last, count)
        cells = account.acceptance.cells(tree.confidence[b, :count].tolist(), depths, mood)
        path = [1.0] * count
        chances = {cell: account.acceptance.estimate(cell) for cell in set(cells)}
        for node in range(1, count):
            path[node] = path[parents[node]] * chances[cells[node]]
        return cells, np.array(path[1:])

    def _select(self, chances: Sequence[NDArray[np.float64]], counts: Sequence[int], state: State) -> None:
        """Keep the most probable nodes of all rows, as many as maximise expected tokens minus rate x time."""
        accounts = [self._account(row) for row in state.rows]
        curve, plain = self._curve(state)
        chance = np.concatenate(chances)
        order = np.argsort(-chance, kind="stable")
        fixed = sum(1 if account.trimmable else count for account, count in zip(accounts, counts, strict=True))
        seconds = curve[np.minimum(np.arange(fixed, fixed + len(chance) + 1), MOST_NODES)]
        steps = (seconds - seconds[0]) * (len(accounts) / plain)
        rate = sum(account.rate for account in accounts) / len(accounts)
        worth = np.concatenate(([0.0], np.cumsum(chance[order]))) - rate * steps
        taken = order[: int(np.argmax(worth))]
        starts = np.cumsum([0] + [len(chance) for chance in chances])
        for b, account in enumerate(accounts):
            if not account.trimmable:
                continue
            mine = taken[(taken >= starts[b]) & (taken < starts[b + 1])] - starts[b] + 1
            left = max(account.credit - account.stake, 0.0)
            if len(accounts) == 1:
                affordable = int(np.searchsorted(steps, left + 1e-9, side="right")) - 1
            else:
                affordable = int(left / max(steps[len(taken)] / max(len(taken), 1), 1e-9))
            mine = mine[: max(affordable, 0)]
            if account.looking and not len(mine) and len(chances[b]) and steps[1] <= min(account.purse, left):
                mine = np.array([1 + int(np.argmax(chances[b]))])
            self._proposed[b].keep = [0, *sorted(mine.tolist())]

    def _learn_drafting(self, accounts: Sequence[Account], seconds: float) -> None:
        """File the step's drafting time by the greatest number of nodes that were proposed for a row.

        Not where a drafter read a prompt, and not where it was asked and had nothing to offer: that is cheap, but
        says nothing about what the limit allows.
        """
        asked = [account for account in accounts if account.arm]
        if not asked:
            self._drafts.learn(0, seconds)
            return
        arm = arm_below(max(len(row.cells) for row in self._proposed))
        if arm == 0 or any(account.drafts == 0 for account in asked):
            return
        if not any(account.missed for account in asked):
            self._drafts.learn(arm, seconds)
        elif len(accounts) == 1:
            self._drafts.learn_resume(arm, accounts[0].missed, seconds)

    def _charged(self, account: Account, b: int, seconds: float) -> float:
        """Seconds of drafting that a row answers for: the usual time of its arm, or what catching up took."""
        usual = float(self._drafts.extra()[arm_below(len(self._proposed[b].cells))])
        if account.drafts == 0:  # a drafter reads the prompt once, as prefill does
            return usual if np.isfinite(usual) else 0.0
        if account.missed or not np.isfinite(usual):
            return max(0.0, seconds - self._drafts.base)
        return usual

    def _learn_acceptance(self, account: Account, tree: TokenTree, b: int, verdict: RowVerdict) -> None:
        """Count each candidate whose parent was accepted as a trial of its cell."""
        proposed, path = self._proposed[b], verdict.path
        for depth, node in enumerate(path):
            right = path[depth + 1] if depth + 1 < len(path) else -1
            for child in tree.children(b, node):
                cell = proposed.cells[proposed.keep[child]]
                account.acceptance.learn(cell, child == right)
                self._acceptance.learn(cell, child == right)
        if account.nodes > 1:
            account.last = 0 if len(path) == 1 else 1 if tree.children(b, path[-1]) else 2

    def _settle(self, account: Account, proposed: Proposed, verdict: RowVerdict, spent: float) -> None:
        """Learn from one row's verdict; `spent` is the time beyond a plain step, in plain steps."""
        committed = len(verdict.path)
        # The first steps of a look at a drafter that invests say nothing yet.
        if account.arm and not (account.invests and account.looking > LOOK_STEPS // 2):
            accepted = [proposed.keep[node] for node in verdict.path[1:]]
            account.gains.learn(account.arm, accepted, proposed.keep[1:], nested=proposed.nested)
            if account.drafts < 16 or account.drafts % 4 == 0:  # enough for the start of other rows
                self._gains.learn(account.arm, accepted, proposed.keep[1:], nested=proposed.nested)
        account.settle(committed, spent, self._allowance)


def _context(state: State) -> float:
    """Mean cached positions of the rows (the step's tokens are committed by the time it is observed: close enough)."""
    return sum(row.cached for row in state.rows) / len(state.rows)
