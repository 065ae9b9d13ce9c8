"""A target small enough to enumerate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.errors import InputError
from betoken.models.target import Cache, Scores
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
    """A language model small enough to enumerate: logits depend on the position and the last `order` tokens.

    It sees a node's text through the cache and the tree exactly as a real target does, so a wrong cache, anchor,
    parent or position changes its logits; with `far`, a wrong token however far back does.
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
        far: bool = False,
    ) -> None:
        """`sharpness` scales the random logits; `far`: they feel the whole text; token 0 is the end token."""
        self.vocab_size, self.order, self.context, self.far = vocab_size, order, context, far
        self.hidden_size = vocab_size
        self.eos_ids: tuple[int, ...] = (0,)
        shape = (vocab_size + 1,) * order
        rng = np.random.default_rng(seed)
        self.table = (rng.normal(size=(*shape, vocab_size)) * sharpness).astype(np.float32)
        self.text_table = (rng.normal(size=(7, vocab_size)) * sharpness / 4).astype(np.float32)

    def next_logits(self, text: Sequence[int], position: int | None = None) -> NDArray[np.float32]:
        """[V] logits of the token after `text`, whose last token is at `position` (by default where it stands)."""
        padded = [self.vocab_size] * self.order + list(text)
        place = len(text) - 1 if position is None else position
        digest = sum(token * (index + 1) for index, token in enumerate(text)) if self.far else 0
        logits: NDArray[np.float32] = self.table[tuple(padded[-self.order :])] + self.text_table[(place + digest) % 7]
        return logits

    def new_cache(self) -> ToyCache:
        """An empty cache."""
        return ToyCache()

    def forward(self, tree: TokenTree, cache: Cache, slots: Sequence[int], hidden_layers: Sequence[int] = ()) -> Scores:
        """Score every wanted node from the text it sees. Raises InputError for another target's cache."""
        if not isinstance(cache, ToyCache):
            raise InputError("a ToyTarget reads only the caches that its new_cache() makes")
        lengths = np.array([cache.length(slot) for slot in slots], dtype=np.int64)
        seen, positions = tree.visible_cache(lengths), tree.positions(lengths)
        index = np.full(tree.tokens.shape, -1, dtype=np.int64)
        logits: list[NDArray[np.float32]] = []
        for b, slot in enumerate(slots):
            cache.scratch[slot] = tree.tokens[b].tolist()
            for node in range(tree.width):
                if tree.roles[b, node] != Role.PADDING and tree.wanted[b, node]:
                    own = [int(tree.tokens[b, n]) for n in tree.path(b, node)]
                    index[b, node] = len(logits)
                    text = cache.slots[slot][: seen[b, node]] + own
                    logits.append(self.next_logits(text, int(positions[b, node])))
        stacked = np.stack(logits) if logits else np.zeros((0, self.vocab_size), dtype=np.float32)
        hidden = {layer: torch.zeros(tree.batch, tree.width, self.hidden_size) for layer in hidden_layers}
        return Scores(torch.from_numpy(stacked), index, hidden)
