"""PTD: the draft tree grows inside the target's own forward pass (arXiv 2607.10661).

Seeds form a chain under the pending token, each with a subtree. All of them ride the verification forward as probes:
a node's argmax becomes its child, a tree that has grown deep enough is harvested into a pool keyed by the tokens
before, and the pool's entry for the last committed token is the next candidate tree.

That is the published rule, `preset=paper`. The default feeds the pool from every node in every step, reads the
request's own text too, and joins what it knows of shorter and longer contexts (docs/design/0009-ptd.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from betoken.drafters.growth import Draft, Growing, Memory, Scored, prompt_chains
from betoken.drafters.offers import Acceptance, Source, needed, ranked_offers, split
from betoken.drafters.pool import Key, SubtreePool, Trie, levels, size
from betoken.drafters.text_pool import Reader, TextPool
from betoken.errors import InputError
from betoken.state import Row
from betoken.tree import Role, RowTree


class Shape(NamedTuple):
    """Size of the growing tree."""

    seeds: int
    width: int
    depth: int

    @property
    def nodes(self) -> int:
        """Most probes of a forward pass: every node gets one child a step until it has `width`."""
        return self.seeds * _grown(self.width, self.depth - 1)


@cache
def _grown(width: int, steps: int) -> int:
    return 1 + sum(_grown(width, steps - 1 - child) for child in range(min(width, steps)))


class _Preset(NamedTuple):
    seeds: int
    width: int
    depth: int
    pool_nodes: int
    candidates: int
    text: bool
    context: int
    eager: bool
    joined: bool


_PRESETS = {
    "paper": _Preset(4, 4, 6, 60, 60, text=False, context=1, eager=False, joined=False),
    "auto": _Preset(4, 2, 4, 60, 60, text=True, context=4, eager=True, joined=True),
}
_SHAPES = [Shape(*shape) for shape in ((4, 4, 6), (4, 2, 6), (4, 4, 4), (3, 2, 4), (2, 2, 4), (2, 1, 4), (1, 1, 4))]
_PRIORS = ((0.3, 0.4, 0.55, 0.65), (0.3, 0.5, 0.7, 0.85))
"""Of what was grown and of what was read from the text, by tokens of context from 1 on."""
_GROWN_CONTEXT = 2
"""Most tokens of a key of what was grown: longer ones hardly ever come again."""
_LEAST = 0.003
"""Least chance of being committed that is worth a node, if entries are joined: they could go on for ever."""
_COPY = 8
"""Tokens that are remembered after each key of the text."""


@dataclass
class _Memory(Memory):
    pool: SubtreePool
    text: Reader
    seeds: list[tuple[int, Trie]]
    shape: Shape


@dataclass
class PTD(Growing[_Memory]):
    """Progressive tree drafting. A setting that is none is the preset's."""

    preset: Literal["auto", "paper"] = "auto"
    """`paper`: the published rule and size. `auto`: a smaller tree, and more that feeds the pool."""
    seeds: int | None = None
    """Most seeds in the chain."""
    width: int | None = None
    """Most children of a growing node."""
    depth: int | None = None
    """Levels of a seed's tree, the seed counted, at which it is harvested (unless `eager`) and then promoted."""
    pool_nodes: int | None = None
    """Most pool nodes under one key."""
    candidates: int | None = None
    """Most candidates a step."""
    growth: int | None = None
    """Most new nodes a step; none is one for each node scored."""
    text: bool | None = None
    """Whether the pool also reads the prompt and the committed tokens."""
    context: int | None = None
    """Most tokens of a pool key, 1 to 4; of what was grown 2 at most."""
    eager: bool | None = None
    """Whether what follows every scored node, candidates included, enters the pool in the same step."""
    joined: bool | None = None
    """Whether below a candidate go on all pool entries of the tokens there, not only the one that led to it."""
    name = "ptd"

    def __post_init__(self) -> None:
        """Raises InputError for a setting that leaves nothing to grow."""
        base = _PRESETS[self.preset]
        given = {key: getattr(self, key) for key in base._fields}
        own = base._replace(**{key: value for key, value in given.items() if value is not None})
        for key, value in own._asdict().items():
            if value < (1 if key in ("seeds", "width", "depth", "pool_nodes", "context") else 0):
                raise InputError(f"ptd: {key} must be at least 1, not {value}")
        if own.context > 4:
            raise InputError(f"ptd: context must be 1 to 4, not {own.context}")
        self._own, self._full = own, Shape(own.seeds, own.width, own.depth)
        fitting = [s for s in _SHAPES if all(a <= b for a, b in zip(s, self._full, strict=True))]
        self._shapes = [self._full, *fitting]
        self._shared = self._pools()

    def _pools(self) -> tuple[SubtreePool, TextPool]:
        nodes = self._own.pool_nodes
        return SubtreePool(nodes, refresh=self.preset != "paper"), TextPool(nodes, _COPY)

    def _remember(self, row: Row) -> _Memory:
        pool, text = self._shared if self.shared_pool else self._pools()
        return _Memory(Acceptance(_PRIORS), pool, Reader(text, self._own.context), self._start_seeds(row), self._full)

    def _prefill(self, memory: _Memory, row: Row) -> None:
        if self._own.text and not memory.text.text:
            memory.text.read(row.tokens[:-1], row.end_ids)

    def _start_seeds(self, row: Row) -> list[tuple[int, Trie]]:
        chains = prompt_chains(row, (1, 2), min(2, self._own.seeds), step=row.steps)
        return [(chain[0], {token: {} for token in chain[1:]}) for chain in chains]

    def _grows(self, memory: _Memory) -> list[Trie]:
        return [{token: trie} for token, trie in memory.seeds]

    def _keys(self, tokens: Sequence[int]) -> list[Key]:
        """Keys of what was grown after these tokens, the longest first."""
        most = min(self._own.context, _GROWN_CONTEXT, len(tokens))
        return [tuple(tokens[-length:]) for length in range(most, 0, -1)]

    def _known(self, memory: _Memory, tokens: Sequence[int]) -> list[Source]:
        """All that is known to follow these tokens, the longest keys first."""
        found: list[Source] = []
        last = tuple(tokens[-self._own.context :])
        text: Trie | None = {}
        for depth in range(len(last)):
            key = last[-1 - depth :]
            if depth < _GROWN_CONTEXT and (grown := memory.pool.get(key)):
                found.append(Source(0, depth, grown))
            if text is not None and (text := memory.text.pool.find(key)):
                found.append(Source(1, depth, text))
            if text is None and depth + 1 >= _GROWN_CONTEXT:  # where a key is new, so are longer ones
                break
        found.reverse()
        return found

    def _fit(self, nodes: int) -> Shape:
        """The largest shape of at most this many probes."""
        one = Shape(1, 1, max(1, min(nodes, self._own.depth)))
        return next((shape for shape in self._shapes if shape.nodes <= nodes), one)

    def _draft(self, memory: _Memory, row: Row, limit: int) -> RowTree:
        own, tail = self._own, tuple(row.tokens[-self._own.context :])
        if own.text:
            memory.text.read(row.tokens[len(memory.text.text) :], row.end_ids)
        known, most = self._known(memory, tail), min(own.candidates, limit - 1)
        more, least = (lambda path: self._known(memory, tail + path), _LEAST) if own.joined else (None, 0.0)
        price, growing = memory.returns.price, sum(1 + size(trie) for _, trie in memory.seeds)
        found = ranked_offers(known, memory.acceptance, most, more, least=least)
        ranked = needed(found, self._full.nodes, growing, limit - 1, price)
        _, room = split(ranked, self._full.nodes, limit - 1, price)
        memory.shape = self._fit(room)
        memory.offered = ranked[: max(0, limit - 1 - min(growing, room))]
        draft = Draft(row.pending, limit)
        draft.offer(memory.offered)
        if room > 0:
            _plant(draft, memory, price)
        return draft.tree

    def _learn(self, memory: _Memory, scored: Scored) -> None:
        fresh = len(scored.committed)
        before = scored.row.tokens[-fresh - _GROWN_CONTEXT : -fresh]
        if self._own.eager:
            for text, trie in scored.continuations(before):
                for key in self._keys(text):
                    memory.pool.merge(key, trie)
        else:
            for key in self._keys(before):
                memory.pool.merge(key, _verified(memory.pool.get(key), 0, scored))
        if len(scored.tokens) > 1:
            self._tend(memory, scored, before[-1])
        if not memory.seeds:
            memory.seeds = self._start_seeds(scored.row)

    def _tend(self, memory: _Memory, scored: Scored, above: int) -> None:
        """Harvest, grow, start a new seed, promote: in this order."""
        shape, node = memory.shape, 0
        left = [len(scored.tokens) if self.growth is None else self.growth]
        alive: list[tuple[int, Trie]] = []
        reached = 0
        for seed in memory.seeds:
            token, trie = seed
            at = scored.find(node, token)
            if at is None:
                break
            if not self._own.eager and levels(trie) + 1 >= shape.depth:
                self._harvest(memory.pool, scored, above, token, trie, at)
            if _grow(trie, at, scored, shape.width, left):
                alive.append(seed)
            node, above, reached = at, token, reached + 1
        last = memory.seeds[-1] if memory.seeds else None
        memory.seeds = [*alive, *memory.seeds[reached:]]
        if alive and alive[-1] is last and len(memory.seeds) < shape.seeds:
            best = scored.best[node]
            if best not in scored.row.end_ids:
                memory.seeds.append((best, last[1].pop(best, {})))
        for seed in alive:
            if levels(seed[1]) >= shape.depth:
                _promote(memory.seeds, seed)

    def _harvest(self, pool: SubtreePool, scored: Scored, above: int, token: int, trie: Trie, node: int) -> Trie:
        """Merge what grew under each node, with the fresh argmaxes, into the pool under that node's token."""
        grown: Trie = {}
        for child, below in trie.items():
            at = scored.find(node, child)
            grown[child] = {} if at is None else self._harvest(pool, scored, token, child, below, at)
        if scored.best[node] not in scored.row.end_ids:
            grown.setdefault(scored.best[node], {})
        for key in self._keys([above, token]):
            pool.merge(key, grown)
        return grown


def _plant(draft: Draft, memory: _Memory, price: float) -> None:
    """Add the seeds as a chain of probes and their subtrees level by level, as far as the shape and the budget go."""
    queue: deque[tuple[int, int, Trie]] = deque()
    top = 0
    for token, trie in memory.seeds[: memory.shape.seeds]:
        if (below := draft.probe(token, top, price, Role.SEED)) is None:
            return
        queue.append((1, below, trie))
        top = below
    while queue:
        level, node, trie = queue.popleft()
        if level == memory.shape.depth:
            continue
        for token in list(trie)[: memory.shape.width]:
            if (child := draft.probe(token, node, price)) is None:
                return
            queue.append((level + 1, child, trie[token]))


def _grow(trie: Trie, node: int, scored: Scored, width: int, left: list[int]) -> bool:
    """Give every scored node its argmax as a child, if that is new and there is room.

    Branches that reach an end token are removed; returns whether anything but such a branch stands here.
    """
    ended = set(scored.row.end_ids)
    for token, below in list(trie.items()):
        at = scored.find(node, token)
        if at is not None and not _grow(below, at, scored, width, left):
            del trie[token]
            ended.add(token)
    best = scored.best[node]
    if best in ended:
        return bool(trie)
    if best not in trie and len(trie) < width and left[0] > 0:
        trie[best] = {}
        left[0] -= 1
    return True


def _promote(seeds: list[tuple[int, Trie]], seed: tuple[int, Trie]) -> None:
    """Replace a seed by its earliest child that equals no seed, at the end of the chain."""
    taken = {token for token, _ in seeds}
    at = next(index for index, other in enumerate(seeds) if other is seed)
    del seeds[at]
    for token, below in seed[1].items():
        if token not in taken:
            seeds.append((token, below))
            break


def _verified(trie: Trie, node: int, scored: Scored) -> Trie:
    """The scored part of a pool trie with the target's argmax under each of its nodes."""
    out = {
        token: _verified(below, at, scored)
        for token, below in trie.items()
        if (at := scored.find(node, token)) is not None
    }
    if scored.best[node] not in scored.row.end_ids:
        out.setdefault(scored.best[node], {})
    return out
