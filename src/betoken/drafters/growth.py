"""What the drafters that grow their drafts inside the target's own forward pass have in common.

Such a drafter sends two things with the pending token: *candidates* from a pool of continuations, to be verified now,
and *probes*, guesses that are scored only to find out what the target would say after them, to fill the pool.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from betoken import noise
from betoken.drafters.offers import Acceptance, Offer, Returns
from betoken.drafters.pool import Trie
from betoken.models.target import Scores, Target
from betoken.state import Row, State
from betoken.tree import Role, RowTree, TokenTree
from betoken.verifiers.verifier import Verdict


class Draft:
    """A row's tree under construction, within its node budget. What sees the same text is one node."""

    def __init__(self, pending: int, limit: int) -> None:
        """`limit`: most nodes, the pending token included."""
        self.tree = RowTree.under(pending)
        self.limit = limit
        self._index: dict[tuple[int, int], int] = {}

    def offer(self, ranked: Sequence[Offer]) -> None:
        """Add candidates, before any probe."""
        for offer in ranked:
            self._index[offer.parent, offer.token] = self.tree.add(
                offer.token, offer.parent, confidence=offer.confidence
            )

    def probe(self, token: int, parent: int, price: float, role: Role = Role.PROBE) -> int | None:
        """A node that scores this token under this parent, added if there is none; None if the tree is full."""
        known = self._index.get((parent, token))
        if known is not None:
            return known
        if len(self.tree) >= self.limit:
            return None
        # The pending token is right for sure, so a probe under it is worth its price and one further down the same.
        node = self.tree.add(token, parent, role, confidence=price if parent == 0 else 1.0)
        self._index[parent, token] = node
        return node

    def probes(self, tokens: Iterable[int], parent: int, price: float) -> int | None:
        """A chain of probes; returns its last node (`parent` if it is empty), None if the tree got full."""
        node = parent
        for token in tokens:
            below = self.probe(token, node, price)
            if below is None:
                return None
            node = below
        return node


class Scored:
    """One row of a forward pass, by what its nodes see. The tree may be a trimmed one."""

    def __init__(self, tree: TokenTree, scores: Scores, verdict: Verdict, b: int, row: Row) -> None:
        """Row `b` of the batch."""
        count = 1 if tree.width == 1 else int(tree.counts[b])
        self.row, self._scores, self._b = row, scores, b
        self.path, bonus = verdict.rows[b].path, verdict.rows[b].bonus
        self._parents, self.probes = [-1], 0
        if count == 1:
            self.tokens, self.committed = [row.tokens[-2]], [bonus]
        else:
            self.tokens = tree.tokens[b, :count].tolist()
            self.committed = [*(self.tokens[node] for node in self.path[1:]), bonus]
            self.probes = tree.probes(b)
            self._parents = tree.parents[b, :count].tolist()
        self._index = {(self._parents[node], self.tokens[node]): node for node in range(count - 1, 0, -1)}

    @cached_property
    def best(self) -> list[int]:
        """The target's argmax after each node. The token that a greedy row was given anyhow is not searched again."""
        if len(self.tokens) == 1 and self.row.sampling.greedy:
            return self.committed
        best: list[int] = self._scores.argmax[self._b, : len(self.tokens)].tolist()
        return best

    @property
    def logits(self) -> NDArray[np.float32]:
        """[nodes, V] the target's logits at each node."""
        return self._scores.host[self._scores.index[self._b, : len(self.tokens)]]

    def find(self, parent: int, token: int) -> int | None:
        """The node that scored this token under this parent."""
        return self._index.get((parent, token))

    def follow(self, tokens: Iterable[int], parent: int) -> int | None:
        """The last node of a chain that was scored under `parent` (`parent` itself if the chain is empty)."""
        node = parent
        for token in tokens:
            below = self._index.get((node, token))
            if below is None:
                return None
            node = below
        return node

    def continuations(self, above: Sequence[int]) -> list[tuple[list[int], Trie]]:
        """For each node the last len(above) tokens up to it, and what follows there: its scored subtree with argmaxes.

        `above`: the last tokens up to the pending one. End tokens are left out. The accepted path comes last, from its
        end up to the pending token, and an argmax is the newest of its siblings: where a pool keeps an order, the text
        itself has the last word.
        """
        count, ends = len(self.tokens), self.row.end_ids
        if count == 1:
            return [] if self.best[0] in ends else [(list(above), {self.best[0]: {}})]
        below: list[Trie] = [{} for _ in range(count)]
        for (parent, _), node in self._index.items():  # last node first
            best = self.best[node]
            if best not in ends:
                below[node][best] = below[node].pop(best, {})
            below[parent][self.tokens[node]] = below[node]
        if self.best[0] not in ends:
            below[0][self.best[0]] = below[0].pop(self.best[0], {})
        texts = [list(above)]
        for node in range(1, count):
            texts.append([*texts[self._parents[node]], self.tokens[node]][-len(above) :])
        order = [*range(count - 1, 0, -1), *reversed(self.path)]
        return [(texts[node], below[node]) for node in order if below[node]]


@dataclass
class Memory:
    """What a drafter knows of one request; each drafter adds its own."""

    acceptance: Acceptance
    returns: Returns = field(default_factory=Returns, init=False)
    offered: list[Offer] = field(default_factory=list, init=False)
    """Candidates of the last tree."""
    asked: bool = field(default=False, init=False)
    """Whether a draft was asked for in this step, even if there was nothing to offer."""


M = TypeVar("M", bound=Memory)


@dataclass
class Growing(ABC, Generic[M]):
    """A drafter with a memory M for each request. A subclass is one rule: what to send, and what to learn from it."""

    shared_pool: bool = False
    """Keep the pool from one request to the next (reports then say "warm"); everything else is forgotten."""
    _memories: dict[int, M] = field(default_factory=dict, init=False, repr=False)
    hidden_layers: ClassVar[tuple[int, ...]] = ()

    @property
    def shares_state(self) -> bool:
        """Whether anything survives from one request to the next."""
        return self.shared_pool

    def start(self, target: Target, draft: Target | None = None) -> None:
        """Fits every target."""

    def admit(self, rows: Sequence[Row]) -> None:
        """A new memory for each of these requests."""
        for row in rows:
            self._memories[row.id] = self._remember(row)

    def release(self, rows: Sequence[Row]) -> None:
        """Forget these requests."""
        for row in rows:
            self._memories.pop(row.id, None)

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        """Candidates and probes of each row, at most `nodes[b]` nodes with the pending token."""
        return TokenTree.stack([self._propose(row, limit) for row, limit in zip(state.rows, nodes, strict=True)])

    def observe(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        """Learn from every row that goes on and that a draft was asked for.

        A step without a draft is plain decoding's: what it would teach is not worth what it takes.
        """
        for b, row in enumerate(state.rows):
            if verdict.rows[b].bonus < 0:
                if row.expects_draft:
                    self._prefill(self._memories[row.id], row)
                continue
            memory = self._memories[row.id]
            if row.finish_reason is not None or not memory.asked:
                continue
            scored = Scored(tree, scores, verdict, b, row)
            right = memory.acceptance.observe(memory.offered, scored.committed)[: len(scored.path) - 1]
            memory.returns.observe(sum(offer.kind % 2 == 0 for offer in right), scored.probes)
            memory.offered, memory.asked = [], False
            self._learn(memory, scored)

    def growing(self, row: Row) -> list[Trie]:
        """What grows for a request that was admitted: one trie for each seed, branch or column, for inspection."""
        return self._grows(self._memories[row.id])

    def _propose(self, row: Row, limit: int) -> RowTree:
        memory = self._memories[row.id]
        memory.offered, memory.asked = [], limit > 1
        return self._draft(memory, row, limit) if memory.asked else RowTree.under(row.pending)

    @abstractmethod
    def _remember(self, row: Row) -> M:
        """The memory of a new request."""

    def _prefill(self, memory: M, row: Row) -> None:
        """A chunk of the row's prompt was read by the target: time to read on, which then counts as prefill."""

    @abstractmethod
    def _draft(self, memory: M, row: Row, limit: int) -> RowTree:
        """The row's tree of at most `limit` nodes, 2 or more; its candidates go to `memory.offered`."""

    @abstractmethod
    def _learn(self, memory: M, scored: Scored) -> None:
        """What a forward pass told; the row's tokens are committed already."""

    @abstractmethod
    def _grows(self, memory: M) -> list[Trie]:
        """The tries of `growing`."""


def prompt_chains(row: Row, lengths: tuple[int, int], count: int, *, step: int = 0) -> list[list[int]]:
    """`count` random stretches of the prompt, of lengths[0] to lengths[1] tokens, without end tokens.

    Numbers from the request's own seed, so the same seed gives the same stretches. A stretch ends early at an end
    token or at the end of the prompt. Empty if the prompt holds nothing but end tokens.
    """
    prompt = row.prompt.tolist()
    starts = [at for at, token in enumerate(prompt) if token not in row.end_ids]
    if not starts:
        return []
    u = noise.uniforms(row.sampling.seed, row.sample, 0, 2 * count, stream=noise.Stream.SEEDS, step=step)
    chains = []
    for place, stretch in u.reshape(count, 2).tolist():
        at = starts[int(place * len(starts))]
        chain: list[int] = []
        for token in prompt[at : at + lengths[0] + int(stretch * (lengths[1] - lengths[0] + 1))]:
            if token in row.end_ids:
                break
            chain.append(token)
        chains.append(chain)
    return chains
