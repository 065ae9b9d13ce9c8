"""A toy target with a perfect student: its auxiliary nodes know what the numbers they read will pick.

They know it from the tree alone, by the definition of the two objectives, so an input that belongs to another
position, or a branch under another draft, makes them wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.models.student import Student
from betoken.models.target import Cache, Scores
from betoken.sampling import law, pick_inverse_cdf
from betoken.state import SamplingSettings
from betoken.testing import ToyCache, ToyTarget
from betoken.tree import START_INPUT, Role, TokenTree


class PerfectToy(ToyTarget):
    """A toy whose student is always right under the law `sampling`, or in a share `accuracy` of its nodes."""

    def __init__(self, sampling: SamplingSettings, *, accuracy: float = 1.0, seed: int = 0, context: int = 512) -> None:
        super().__init__(6, seed=seed, context=context, far=True)
        self.sampling, self.accuracy = sampling, accuracy
        self.eos_ids = ()
        self.objective = ""
        self.trees: list[TokenTree] = []

    def attach(self, student: Student) -> None:
        """Only the objective matters: the weights are those of a perfect student."""
        self.objective = student.card.objective

    def forward(self, tree: TokenTree, cache: Cache, slots: Sequence[int], hidden_layers: Sequence[int] = ()) -> Scores:
        assert isinstance(cache, ToyCache)
        self.trees.append(tree)
        plain = super().forward(tree, cache, slots, hidden_layers)
        logits = plain.host.copy()
        lengths = np.array([cache.length(slot) for slot in slots], dtype=np.int64)
        positions = tree.positions(lengths)
        for b, slot in enumerate(slots):
            for node in range(int(tree.counts[b])):
                if np.isnan(tree.inputs[b, node]):
                    continue
                path = tree.path(b, node)
                tokens = [int(tree.tokens[b, n]) for n in path if tree.roles[b, n] != Role.PROBE]
                text = cache.slots[slot] + tokens
                inputs = [float(tree.inputs[b, n]) for n in path if tree.roles[b, n] == Role.PROBE]
                assert positions[b, node] == len(text) + len(inputs) - 2
                if tree.wanted[b, node]:
                    logits[plain.index[b, node]] = self.branch(text, inputs)
        return Scores(torch.from_numpy(logits), plain.index)

    def branch(self, text: Sequence[int], inputs: Sequence[float]) -> NDArray[np.float32]:
        """[V] logits of the last node of a branch behind `text`."""
        text = list(text)
        if self.objective == "o-ptp":
            for u in inputs:
                text.append(self.picked(text, u))
            return self.spoilt(np.where(np.arange(self.vocab_size) == text[-1], 20.0, 0.0), text)
        if self.objective == "independent":
            assert set(inputs) == {START_INPUT}
            return self.next_logits(text)
        assert inputs[0] == START_INPUT
        for u in inputs[1:]:
            text.append(self.picked(text, u))
        return self.spoilt(self.next_logits(text), text)

    def picked(self, text: Sequence[int], u: float) -> int:
        logits = self.next_logits(text)
        return int(logits.argmax()) if self.sampling.greedy else pick_inverse_cdf(law(logits, self.sampling), u)

    def spoilt(self, logits: NDArray[np.floating], text: Sequence[int]) -> NDArray[np.float32]:
        right = np.random.default_rng(len(text) * 1000 + sum(text)).random() < self.accuracy
        return np.asarray(logits if right else np.roll(logits, 1), dtype=np.float32)
