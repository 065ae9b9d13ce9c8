"""What a new drafter or verifier must pass, and the toy target it is tried on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.models.target import Scores
from betoken.tree import Role, TokenTree


class ToyCache:
    """The tokens of each slot: what a real cache holds keys and values of."""

    def __init__(self) -> None:
        """An empty cache."""
        self.slots: dict[int, list[int]] = {}
        self.scratch: dict[int, list[int]] = {}
        self._next = 0

    def open(self) -> int:
        """A new empty slot."""
        self._next += 1
        self.slots[self._next] = []
        return self._next

    def close(self, slot: int) -> None:
        """Forget a slot."""
        del self.slots[slot]

    def fork(self, slot: int, length: int) -> int:
        """A new slot with the first `length` tokens of another."""
        new = self.open()
        self.slots[new] = self.slots[slot][:length]
        return new

    def length(self, slot: int) -> int:
        """Committed tokens in the slot."""
        return len(self.slots[slot])

    def truncate(self, slot: int, length: int) -> None:
        """Forget the tokens from `length` on."""
        del self.slots[slot][length:]

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Append the tokens of the kept nodes of the last forward pass."""
        for slot, path in zip(slots, paths, strict=True):
            self.slots[slot] += [self.scratch[slot][node] for node in path]


class ToyTarget:
    """A language model small enough to enumerate: the next token's logits depend on the last `order` tokens.

    It sees a node's text through the cache and the tree exactly as a real target does, so a wrong cache, anchor or
    parent changes its logits.
    """

    name = "toy"
    dtype = "float32"
    device = "cpu"
    exact = True
    num_layers = 1

    def __init__(
        self,
        vocab_size: int = 5,
        *,
        order: int = 2,
        seed: int = 0,
        sharpness: float = 2.0,
        context: int = 512,
    ) -> None:
        """`sharpness` scales the random logits; token 0 is the end token."""
        self.vocab_size, self.order, self.context = vocab_size, order, context
        self.hidden_size = vocab_size
        self.eos_ids = (0,)
        shape = (vocab_size + 1,) * order
        self.table = (np.random.default_rng(seed).normal(size=(*shape, vocab_size)) * sharpness).astype(np.float32)

    def next_logits(self, text: Sequence[int]) -> NDArray[np.float32]:
        """[V] logits of the token after `text`."""
        padded = [self.vocab_size] * self.order + list(text)
        return self.table[tuple(padded[-self.order :])]

    def new_cache(self) -> ToyCache:
        """An empty cache."""
        return ToyCache()

    def forward(
        self, tree: TokenTree, cache: ToyCache, slots: Sequence[int], hidden_layers: Sequence[int] = ()
    ) -> Scores:
        """Score every wanted node from the text it sees."""
        lengths = np.array([cache.length(slot) for slot in slots], dtype=np.int64)
        seen = tree.visible_cache(lengths)
        index = np.full(tree.tokens.shape, -1, dtype=np.int64)
        logits: list[NDArray[np.float32]] = []
        for b, slot in enumerate(slots):
            cache.scratch[slot] = tree.tokens[b].tolist()
            for node in range(tree.width):
                if tree.roles[b, node] != Role.PADDING and tree.wanted[b, node]:
                    own = [int(tree.tokens[b, n]) for n in tree.path(b, node)]
                    index[b, node] = len(logits)
                    logits.append(self.next_logits(cache.slots[slot][: seen[b, node]] + own))
        stacked = np.stack(logits) if logits else np.zeros((0, self.vocab_size), dtype=np.float32)
        hidden = {layer: torch.zeros(tree.batch, tree.width, self.hidden_size) for layer in hidden_layers}
        return Scores(torch.from_numpy(stacked), index, hidden)
