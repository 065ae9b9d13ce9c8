"""Targets whose next token is a rule one can follow by hand, and budgets that jump about."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from betoken.decode import Decoder, Request
from betoken.drafters.drafter import Drafter
from betoken.drafters.pool import Trie
from betoken.models.target import Scores, Target
from betoken.state import SamplingSettings, State, StopSettings
from betoken.testing import ToyTarget
from betoken.tree import Role, TokenTree
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Replay
from betoken.verifiers.verifier import Verdict


class Ruled(ToyTarget):
    """A target whose argmax after a text is `rule(text)`."""

    def __init__(self, rule: Callable[[Sequence[int]], int], vocab_size: int = 100) -> None:
        super().__init__(2, order=1)
        self.rule, self.vocab_size = rule, vocab_size

    def next_logits(self, text: Sequence[int], position: int | None = None) -> NDArray[np.float32]:
        logits = np.zeros(self.vocab_size, dtype=np.float32)
        logits[self.rule(text)] = 1.0
        return logits


class JumpingNodes(FixedNodes):
    """A node policy whose limits come from a fixed random sequence, 1 included."""

    def __init__(self, most: int, seed: int = 0) -> None:
        super().__init__(most)
        self._rng = np.random.default_rng(seed)

    def limits(self, state: State) -> list[int]:
        return self._rng.integers(1, self.nodes + 1, len(state.rows)).tolist()


class Stepper:
    """One request, step by step, with the tree of the last step at hand."""

    def __init__(
        self, target: Target, drafter: Drafter, prompt: Sequence[int], nodes: int = 200, seed: int = 0
    ) -> None:
        drafter.start(target)
        self.policy = FixedNodes(nodes)
        self.decoder = Decoder(target, drafter, Replay(), self.policy)
        self.decoder.observer = self._look
        self.row = self.decoder.admit(Request(prompt, SamplingSettings(seed=seed), StopSettings(max_new_tokens=400)))
        self.tree: TokenTree | None = None

    def step(self) -> TokenTree:
        self.decoder.step()
        assert self.tree is not None
        return self.tree

    def _look(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        self.tree = tree


def trie_of(tree: TokenTree, *roles: Role, b: int = 0) -> Trie:
    """The nodes of these roles as a trie under the pending token (parents of another role are followed too)."""
    out: Trie = {}
    for node in range(1, int(tree.counts[b])):
        if tree.roles[b, node] in roles:
            below = out
            for step in tree.path(b, node)[1:]:
                below = below.setdefault(int(tree.tokens[b, step]), {})
    return out


def run_batch(
    drafter: Drafter, target: Target, requests: Sequence[Request], most: int, seed: int = 0
) -> tuple[list[list[int]], list[TokenTree]]:
    """All requests in one batch with jumping budgets: their new tokens and every tree that was scored."""
    drafter.start(target)
    decoder = Decoder(target, drafter, Replay(), JumpingNodes(most, seed))
    trees: list[TokenTree] = []
    decoder.observer = lambda tree, scores, verdict, state: trees.append(tree)
    rows = [decoder.admit(request) for request in requests]
    while any(row.finish_reason is None for row in rows):
        decoder.step()
    for row in rows:
        decoder.release(row)
    return [row.new_tokens for row in rows], trees


def ragged_requests(count: int = 4, vocab_size: int = 12, most_new: int = 40) -> list[Request]:
    """Greedy and sampled requests of different lengths; ends included for some."""
    return [
        Request(
            [(1 + i + j * (i + 1)) % vocab_size for j in range(1 + 4 * i)],
            SamplingSettings(temperature=0.9 * (i % 2), seed=i),
            StopSettings(max_new_tokens=most_new - 5 * i, ignore_eos=i % 3 == 0),
        )
        for i in range(count)
    ]
