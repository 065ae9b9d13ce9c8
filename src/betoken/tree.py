"""The token tree: what one forward pass of the target scores.

Every method adds some tree under the committed text and keeps one path of it. A node sees the cached text up to its
root's *anchor*, its own ancestors and itself; nothing else. Visibility and positions follow from the parents, the
anchors and the shifts alone: no method builds a mask. A node's *shift* moves its position and those of its descendants
(by -1 where a node stands beside its parent, as PTP's auxiliary nodes do); what it sees is the same.

The tree lives on the host as numpy arrays, whatever device the target uses: it is small integers that drafters and
verifiers walk node by node (docs/design/0001-host-trees.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from betoken.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

WHOLE_CACHE = -1
"""Anchor of a root that sees every committed position of its row."""

START_INPUT = -1.0
"""Auxiliary input of a probe that reads the student's start vector, not the embedding of a random number."""


class Role(IntEnum):
    """What a node is for. Only candidates can be committed; probes (seeds among them) ride along to be read."""

    PADDING = 0
    PENDING = 1
    CANDIDATE = 2
    PROBE = 3
    SEED = 4
    """A probe that the drafter has planted: others grow under it."""

    @property
    def rides_along(self) -> bool:
        """Whether the node is a probe, planted or grown."""
        return self >= Role.PROBE


_PROBE, _SEED = int(Role.PROBE), int(Role.SEED)


@dataclass
class RowTree:
    """The tree of one row while a drafter grows it. Node 0 is the pending token; parents come before children."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)
    anchors: list[int] = field(default_factory=list)
    shifts: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    """Estimated probability that the node is right, given that its parent is. 1.0 where nothing is known."""
    inputs: list[float] = field(default_factory=list)
    """Auxiliary input of a probe that has one instead of a token (PTP): u in [0, 1), or START_INPUT; nan for an
    ordinary node."""
    wanted: list[bool] = field(default_factory=list)
    laws: dict[int, Floats] = field(default_factory=dict)
    """Parent node -> law [V] that its candidate children were drawn from, in order, without replacement. A parent
    that has candidate children and no entry here has deterministic ones (q = 1)."""

    @classmethod
    def under(cls, pending: int) -> RowTree:
        """The empty draft: nothing but the pending token."""
        tree = cls()
        tree._append(pending, -1, Role.PENDING, WHOLE_CACHE, 0, 1.0, float("nan"), True)
        return tree

    @classmethod
    def chain(cls, pending: int, draft: Sequence[int], confidence: Sequence[float] | None = None) -> RowTree:
        """The pending token followed by one chain of candidates."""
        tree = cls.under(pending)
        for depth, token in enumerate(draft):
            tree.add(token, depth, confidence=1.0 if confidence is None else confidence[depth])
        return tree

    def add(
        self,
        token: int,
        parent: int,
        role: Role = Role.CANDIDATE,
        *,
        shift: int = 0,
        confidence: float = 1.0,
        u: float = float("nan"),
        wanted: bool = True,
    ) -> int:
        """Add a child of `parent` at position parent + 1 + shift; returns its node index.

        Raises InputError if there is no such parent.
        """
        if not 0 <= parent < len(self.tokens):
            raise InputError(f"tree node {len(self.tokens)}: there is no parent {parent}")
        return self._append(token, parent, role, WHOLE_CACHE, shift, confidence, u, wanted)

    def root(
        self,
        token: int,
        *,
        anchor: int = WHOLE_CACHE,
        shift: int = 0,
        u: float = float("nan"),
        wanted: bool = True,
    ) -> int:
        """Add a probe that sees only the first `anchor` cached positions; its own position is anchor + shift."""
        return self._append(token, -1, Role.PROBE, anchor, shift, 1.0, u, wanted)

    def child(self, node: int, token: int) -> int | None:
        """The first candidate child of `node` with this token."""
        for index in range(node + 1, len(self.tokens)):
            if self.parents[index] == node and self.tokens[index] == token and self.roles[index] == Role.CANDIDATE:
                return index
        return None

    def __len__(self) -> int:
        return len(self.tokens)

    def _append(
        self,
        token: int,
        parent: int,
        role: Role,
        anchor: int,
        shift: int,
        confidence: float,
        u: float,
        wanted: bool,
    ) -> int:
        self.tokens.append(int(token))
        self.parents.append(parent)
        self.roles.append(role)
        self.anchors.append(anchor)
        self.shifts.append(shift)
        self.confidence.append(confidence)
        self.inputs.append(u)
        self.wanted.append(wanted)
        return len(self.tokens) - 1


@dataclass(frozen=True)
class TokenTree:
    """The trees of a batch of B rows, padded to N nodes. Immutable."""

    tokens: Ints
    """[B, N] token ids; 0 in padding."""
    parents: Ints
    """[B, N] index of the parent, -1 for a root and for padding. A parent's index is smaller than its children's."""
    roles: NDArray[np.int8]
    """[B, N] values of Role."""
    anchors: Ints
    """[B, N] cached positions that a root sees, WHOLE_CACHE for all; meaningful at roots only."""
    shifts: Ints
    """[B, N] how far a node stands from the position after its parent's, or a root from its anchor."""
    confidence: Floats
    """[B, N] estimated probability that a node is right, given that its parent is."""
    inputs: Floats
    """[B, N] auxiliary input of a probe, u in [0, 1) or START_INPUT; nan where the token is the input."""
    wanted: Bools
    """[B, N] nodes whose logits will be read: the output layer runs only there."""
    laws: tuple[dict[int, Floats], ...]
    """One dictionary a row: parent node -> law [V] its candidate children were drawn from, without replacement."""

    @classmethod
    def stack(cls, rows: Sequence[RowTree]) -> TokenTree:
        """Pad the trees of several rows to one batch."""
        width = max(len(row.tokens) for row in rows)
        gaps = [width - len(row.tokens) for row in rows]

        def padded(values: list[list[Any]], fill: float) -> list[list[Any]]:
            return [own + [fill] * gap if gap else own for own, gap in zip(values, gaps, strict=True)]

        # One array a type: every step builds these, and small arrays cost by the piece.
        integers = np.array(
            [
                padded([row.tokens for row in rows], 0),
                padded([row.parents for row in rows], -1),
                padded([row.anchors for row in rows], WHOLE_CACHE),
                padded([row.shifts for row in rows], 0),
            ],
            dtype=np.int64,
        )
        reals = np.array([padded([row.confidence for row in rows], 0.0), padded([row.inputs for row in rows], np.nan)])
        flags = np.array([padded([row.roles for row in rows], 0), padded([row.wanted for row in rows], 0)], np.int8)
        return cls(
            tokens=integers[0],
            parents=integers[1],
            roles=flags[0],
            anchors=integers[2],
            shifts=integers[3],
            confidence=reals[0],
            inputs=reals[1],
            wanted=flags[1].view(np.bool_),
            laws=tuple([dict(row.laws) for row in rows]),
        )

    @classmethod
    def bare(cls, pending: Sequence[int]) -> TokenTree:
        """Nothing but the pending token of each row: a step of plain decoding."""
        return cls.stack([RowTree.under(token) for token in pending])

    @property
    def batch(self) -> int:
        """B, the number of rows."""
        return int(self.tokens.shape[0])

    @property
    def width(self) -> int:
        """N, the padded number of nodes."""
        return int(self.tokens.shape[1])

    @cached_property
    def counts(self) -> Ints:
        """[B] nodes of each row without padding."""
        return np.array([self.width - row.count(0) for row in self.roles.tolist()], dtype=np.int64)

    @cached_property
    def depths(self) -> Ints:
        """[B, N] edges between a node and its root; 0 in padding."""
        depths = np.zeros_like(self.parents)
        for node in range(1, self.width):
            parent = self.parents[:, node]
            above = np.take_along_axis(depths, np.maximum(parent, 0)[:, None], axis=1)[:, 0]
            depths[:, node] = np.where(parent >= 0, above + 1, 0)
        return depths

    @cached_property
    def offsets(self) -> Ints:
        """[B, N] position of a node relative to its root's anchor: its depth plus the shifts on its path."""
        offsets = self.shifts.copy()
        for node in range(1, self.width):
            parent = self.parents[:, node]
            above = np.take_along_axis(offsets, np.maximum(parent, 0)[:, None], axis=1)[:, 0]
            offsets[:, node] += np.where(parent >= 0, 1 + above, 0)
        return offsets

    @cached_property
    def roots(self) -> Ints:
        """[B, N] index of each node's root."""
        roots = np.tile(np.arange(self.width, dtype=np.int64), (self.batch, 1))
        for node in range(1, self.width):
            parent = self.parents[:, node]
            above = np.take_along_axis(roots, np.maximum(parent, 0)[:, None], axis=1)[:, 0]
            roots[:, node] = np.where(parent >= 0, above, node)
        return roots

    @cached_property
    def ancestors(self) -> Bools:
        """[B, N, N] entry (b, i, j): node j is node i itself or one of its ancestors (never padding)."""
        seen = np.zeros((self.batch, self.width, self.width), dtype=np.bool_)
        rows = np.arange(self.batch)
        for node in range(self.width):
            parent = self.parents[:, node]
            seen[:, node] = seen[rows, np.maximum(parent, 0)] & (parent >= 0)[:, None]
            seen[:, node, node] = True
        real = self.roles != Role.PADDING
        return seen & real[:, :, None] & real[:, None, :]

    def visible_cache(self, lengths: Ints) -> Ints:
        """[B, N] cached positions each node sees, for rows with `lengths` [B] committed positions in the cache."""
        anchors = np.take_along_axis(self.anchors, self.roots, axis=1)
        return np.where(anchors == WHOLE_CACHE, lengths[:, None], np.minimum(anchors, lengths[:, None]))

    def positions(self, lengths: Ints) -> Ints:
        """[B, N] position of each node: its anchor, its depth and the shifts on its path in all; never negative."""
        return np.maximum(self.visible_cache(lengths) + self.offsets, 0)

    def probes(self, row: int) -> int:
        """How many nodes of the row ride along."""
        roles = self.roles[row].tolist()
        return roles.count(_PROBE) + roles.count(_SEED)

    def path(self, row: int, node: int) -> list[int]:
        """Nodes from the root down to `node`, both included."""
        path = [node]
        while (parent := int(self.parents[row, path[-1]])) >= 0:
            path.append(parent)
        return path[::-1]

    def children(self, row: int, node: int) -> list[int]:
        """Candidate children of `node`, in the order in which the drafter added them."""
        return self._children[row].get(node, [])

    def child(self, row: int, node: int, token: int) -> int | None:
        """The candidate child of `node` with this token. A verifier that walks by this never follows a probe."""
        for index in self.children(row, node):
            if self.tokens[row, index] == token:
                return index
        return None

    @cached_property
    def _children(self) -> list[dict[int, list[int]]]:
        found: list[dict[int, list[int]]] = [{} for _ in range(self.batch)]
        if self.width == 1:
            return found
        candidate = int(Role.CANDIDATE)
        for below, roles, parents in zip(found, self.roles.tolist(), self.parents.tolist(), strict=True):
            for node, role in enumerate(roles):
                if role == candidate:
                    below.setdefault(parents[node], []).append(node)
        return found
