"""The contract of a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from betoken.models.target import Scores, Target
    from betoken.state import Row, State
    from betoken.tree import TokenTree
    from betoken.verifiers.verifier import Verdict


class Drafter(Protocol):
    """Proposes a tree of tokens for each row. A dataclass whose fields are its settings."""

    @property
    def name(self) -> str:
        """Its name in the table and in every report."""

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Target layers whose states it reads in `observe`; () if none."""

    @property
    def shares_state(self) -> bool:
        """Whether anything survives from one request to the next (reports then say "warm")."""

    def start(self, target: Target, draft: Target | None = None) -> None:
        """Called once, before the first request. Raises InputError if it does not fit the target."""

    def admit(self, rows: Sequence[Row]) -> None:
        """These requests join. Their prompts are known, their prefill has not run."""

    def release(self, rows: Sequence[Row]) -> None:
        """These requests left, and no text of theirs is retained for others: forget them."""

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        """A tree for each row of at most `nodes[b]` nodes, the pending token (node 0) and probes included.

        Not called in a step in which no row may have a draft (all of `nodes` are 1): such a step is plain decoding's.
        Candidates deeper than `row.room - 1` cannot be committed; proposing them is a waste, not an error.
        """

    def observe(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        """What the target made of it. Called after every forward pass, when the tokens are committed already.

        Prefill chunks come as one chain whose whole path is kept and whose bonus is -1.
        """
