"""Plain decoding: the empty draft (docs/design/0005-plain-is-the-empty-draft.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from betoken.models.target import Scores, Target
from betoken.state import Row, State
from betoken.tree import TokenTree
from betoken.verifiers.verifier import Verdict


@dataclass
class Plain:
    """Proposes nothing, so each forward pass scores the pending token alone and commits one token."""

    name = "none"
    hidden_layers = ()
    shares_state = False

    def start(self, target: Target, draft: Target | None = None) -> None:
        """Needs nothing of the target."""

    def admit(self, rows: Sequence[Row]) -> None:
        """Keeps nothing."""

    def release(self, rows: Sequence[Row]) -> None:
        """Keeps nothing."""

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        """The pending token of each row."""
        return TokenTree.bare(state.pending)

    def observe(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        """Learns nothing."""
