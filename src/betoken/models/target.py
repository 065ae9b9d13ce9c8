"""What decoding needs of a model: score a tree of tokens in one forward pass, keep one path of it in the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.errors import BetokenError
from betoken.models.student import Student
from betoken.tree import TokenTree


class Scores:
    """What one forward pass returns: logits where they were wanted, hidden states where they were asked for."""

    def __init__(
        self,
        logits: torch.Tensor | NDArray[np.float32],
        index: NDArray[np.int64],
        hidden: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        """`logits` [W, V] on any device, or an array; `index` [B, N] row of each node in it, -1 where none was wanted.

        `hidden` maps a layer number to the residual stream [B, N, H] that enters it (0: embeddings, L: after the
        last layer, before the final norm).
        """
        self._given = logits
        self.index = index
        self.hidden: Mapping[int, torch.Tensor] = hidden or {}

    @cached_property
    def host(self) -> NDArray[np.float32]:
        """All logits that were computed, [W, V] float32 on the host."""
        if isinstance(self._given, np.ndarray):
            return self._given
        host: NDArray[np.float32] = self._given.detach().to("cpu", torch.float32).numpy()
        return host

    @cached_property
    def device_logits(self) -> torch.Tensor:
        """[W, V] where the target computed them, for verifiers that stay on the device."""
        return torch.from_numpy(self._given) if isinstance(self._given, np.ndarray) else self._given

    def logits(self, row: int, node: int) -> NDArray[np.float32]:
        """[V] float32 logits of one node; do not write to them. Raises BetokenError if they were not wanted."""
        at = int(self.index[row, node])
        if at < 0:
            raise BetokenError(f"the logits of node {node} of row {row} were not wanted, so they were not computed")
        return self.host[at]

    def at(self, rows: NDArray[np.int64], nodes: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """[K] logits of K (row, node, token) triples, [K] each, of wanted nodes; only they leave the device."""
        logits = self.device_logits
        flat = torch.from_numpy(self.index[rows, nodes]).to(logits.device)
        found = logits[flat, torch.from_numpy(tokens).to(logits.device)]
        return np.asarray(found.detach().to("cpu", torch.float32).numpy(), dtype=np.float64)

    @cached_property
    def argmax(self) -> NDArray[np.int64]:
        """[B, N] first maximum of each wanted node, -1 elsewhere."""
        best = _first_maximum(self._given)
        return np.append(best, -1)[self.index]


def _first_maximum(logits: torch.Tensor | NDArray[np.float32]) -> NDArray[np.int64]:
    if isinstance(logits, np.ndarray):
        return np.array([row.argmax() for row in logits], dtype=np.int64)
    if logits.device.type == "cpu":
        host = logits.numpy() if logits.dtype in (torch.float32, torch.float64) else logits.float().numpy()
        return np.array([row.argmax() for row in host], dtype=np.int64)
    # torch.argmax leaves open which of several maxima it returns; the smallest id is ours.
    ids = torch.arange(logits.shape[-1], device=logits.device)
    at_top = torch.where(logits == logits.amax(-1, keepdim=True), ids, logits.shape[-1])
    return at_top.amin(-1).cpu().numpy()


class Cache(Protocol):
    """Keys and values of many rows. Each row lives in a slot of its own, of its own length."""

    def open(self) -> int:
        """A new empty slot."""

    def close(self, slot: int) -> None:
        """Give the slot's memory back."""

    def fork(self, slot: int, length: int) -> int:
        """A new slot that starts with the first `length` positions of another (shared where possible)."""

    def length(self, slot: int) -> int:
        """Committed positions in the slot."""

    def truncate(self, slot: int, length: int) -> None:
        """Forget the positions from `length` on."""

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Cache compaction after a forward pass.

        For each of the slots of that pass: the keys and values of the nodes `path` (root first) become the next
        positions of the slot, everything else that the pass wrote is forgotten.
        """


class Target(Protocol):
    """A causal language model that scores token trees."""

    name: str
    vocab_size: int
    """Width of the logits; token ids are below it."""
    num_layers: int
    hidden_size: int
    context: int
    """Most positions of a row."""
    eos_ids: tuple[int, ...]
    dtype: str
    """int8, int4, float32, float64, bfloat16 or float16."""
    device: str
    exact: bool
    """Whether a node's logits are bit-identical however many nodes, rows and chunks are scored with it."""

    def new_cache(self) -> Cache:
        """An empty cache."""

    def forward(self, tree: TokenTree, cache: Cache, slots: Sequence[int], hidden_layers: Sequence[int] = ()) -> Scores:
        """Score the B trees of `tree` for the rows in `slots` [B].

        A node at cache length c sees its row's first `tree.visible_cache` positions, its ancestors and itself. The
        pass writes the nodes' keys and values behind the committed ones; `cache.keep` decides what stays.
        Token ids must be in [0, vocab_size) and `length + nodes` must fit the context plus one tree.
        """


@runtime_checkable
class TakesStudent(Protocol):
    """A target that also scores probes with auxiliary inputs, by the weights of a student (PTP)."""

    def attach(self, student: Student) -> None:
        """Score such probes by this student from now on; all other nodes score as before.

        A target has one student: another one takes its place, also for whoever attached the first.
        Raises InputError for a student of another model.
        """
