"""What the automatic node count knows of a row, and what it may risk for it.

Times are in units of a plain step, for one row of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from betoken.tuning.acceptance import Acceptance
from betoken.tuning.gains import Gains

HEAD_START = 32
"""Tokens of plain decoding whose share of the allowed loss is there from the start."""
_LOOK_SHARE = 0.01
"""Share of plain decoding's time that goes into looking again at a drafter that does not pay."""
_FIRST_PURSE = 0.6
"""Plain steps of such looks that are there from the start: an unlucky first draft shall not decide it."""
LOOK_STEPS = 8
"""Steps of a look at a drafter whose nodes pay off later (probes)."""
_FADE = 0.95
"""Of the averages that make a row's rate."""
_MOST_PURSE = 4.0


@dataclass
class Account:
    """What the policy knows of one row. Times are in units of a plain step, for one row of the batch."""

    gains: Gains
    acceptance: Acceptance
    credit: float
    purse: float = _FIRST_PURSE
    tokens: float = 1.0
    """Running average of committed tokens a step."""
    cost: float = 1.0
    """Running average of a step's time."""
    arm: int = 0
    stake: float = 0.0
    """What drafting at this arm costs."""
    looking: int = 0
    """Steps left of a look at a drafter that was left alone, this one included."""
    look_arm: int = 0
    missed: int = 0
    """Tokens committed since the last draft."""
    drafts: int = 0
    last: int = 0
    """How the last draft fared: 0 nothing accepted, 1 some, 2 all."""
    invests: bool = False
    """Whether the drafter's trees carry probes."""
    trimmable: bool = True
    nodes: int = 1
    """Nodes of the last tree."""

    @property
    def rate(self) -> float:
        """Committed tokens for each plain step's time; plain decoding's own rate at least."""
        return max(1.0, self.tokens / self.cost)

    def look(self, stake: NDArray[np.float64]) -> int:
        """The arm of a look at a drafter that seems not to pay: the greatest that the purse covers, else plain."""
        if self.looking > 1 and stake[self.look_arm] <= self.credit:
            self.looking -= 1
            return self.look_arm
        steps = LOOK_STEPS if self.invests else 1
        within = np.flatnonzero(stake * steps <= min(self.purse, self.credit))
        self.look_arm = int(within[-1]) if len(within) else 0
        self.looking = steps if self.look_arm else 0
        return self.look_arm

    def settle(self, committed: int, spent: float, allowance: float) -> None:
        """A step committed so many tokens and took `spent` longer than a plain one; a token allows `allowance`."""
        self.drafts += self.arm > 0
        self.missed = 0 if self.arm else self.missed + committed
        self.credit += committed * (1.0 + allowance) - 1.0 - spent
        self.purse = min(self.purse + _LOOK_SHARE, _MOST_PURSE)
        if self.looking:
            self.purse -= min(spent, self.purse)
        self.tokens += (1.0 - _FADE) * (committed - self.tokens)
        self.cost += (1.0 - _FADE) * (1.0 + spent - self.cost)


@dataclass
class Proposed:
    """One row of the tree as it was proposed, and what is scored of it."""

    cells: list[int]
    keep: list[int]
    nested: bool
