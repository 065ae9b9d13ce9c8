"""How many nodes each step scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from betoken.state import Row, State
from betoken.tree import TokenTree
from betoken.verifiers.verifier import Verdict


class StepTimes(NamedTuple):
    """Seconds of one step."""

    draft: float
    """Drafter and node policy, `observe` included; the policy's own is that of the step before."""
    target: float
    verify: float
    """Verifier and commit."""


class NodePolicy(Protocol):
    """Decides how many nodes a step scores. One step is `limits`, `trim`, `observe`, in this order."""

    @property
    def reproducible(self) -> bool:
        """Whether it chooses the same nodes in every run: not if it goes by timings."""

    def expects(self, row: Row) -> bool:
        """Whether a row whose prefill begins is likely to be drafted for, so that the drafter should prepare for it."""

    def limits(self, state: State) -> list[int]:
        """[B] most nodes the drafter may propose for each row, the pending token included; 1 is no draft."""

    def trim(self, tree: TokenTree, state: State) -> TokenTree:
        """The part of a proposed tree that is worth scoring."""

    def observe(self, tree: TokenTree, verdict: Verdict, state: State, times: StepTimes) -> None:
        """What a step accepted and what it cost."""

    def release(self, rows: Sequence[Row]) -> None:
        """These requests left: forget them."""


@dataclass
class FixedNodes:
    """The same number of nodes in every step."""

    nodes: int = 8
    reproducible = True

    def expects(self, row: Row) -> bool:
        """Unless this is plain decoding."""
        return self.nodes > 1

    def limits(self, state: State) -> list[int]:
        """`nodes` for each row."""
        return [self.nodes] * len(state.rows)

    def trim(self, tree: TokenTree, state: State) -> TokenTree:
        """The tree as it is."""
        return tree

    def observe(self, tree: TokenTree, verdict: Verdict, state: State, times: StepTimes) -> None:
        """Learns nothing."""

    def release(self, rows: Sequence[Row]) -> None:
        """Keeps nothing."""
