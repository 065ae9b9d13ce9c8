"""Self-Draft: independent branches of guesses beside the verification, and a pool of the n-grams they pass through.

Every branch sees the committed text and itself. The target's argmax at its end becomes its next token; once it has
`length` tokens its first one goes. The last n tokens of a branch are an n-gram for the pool.
The linear baseline of PTD (arXiv 2607.10661).
"""

from __future__ import annotations

from dataclasses import dataclass

from betoken.drafters.growth import Draft, Growing, Memory, Scored, prompt_chains
from betoken.drafters.offers import Acceptance, Source, offers, split
from betoken.drafters.pool import NgramPool, Trie, chain
from betoken.errors import InputError
from betoken.state import Row
from betoken.tree import RowTree


@dataclass
class _Memory(Memory):
    pool: NgramPool
    branches: list[list[int]]
    """Tokens of each branch; an empty branch is the pending token itself, whose argmax starts it."""
    sent: int = 0
    """How many of the branches, from the first, were in the last tree."""


@dataclass
class SelfDraft(Growing[_Memory]):
    """Branches of guesses and n-gram pool, with the published sizes as defaults."""

    branches: int = 6
    length: int = 6
    """Most tokens of a branch."""
    n: int = 4
    """Tokens of an n-gram, its key counted."""
    grams: int = 10
    """Most n-grams kept for one key, the least recently used goes first."""
    ngram_file: str | None = None
    """Text file of n-grams from earlier outputs, token ids separated by spaces, one n-gram a line."""
    name = "self-draft"

    def __post_init__(self) -> None:
        """Raises InputError for sizes that leave nothing to grow, or an n-gram file that cannot be read."""
        for key, least in (("branches", 1), ("length", 1), ("n", 2), ("grams", 1)):
            if getattr(self, key) < least:
                raise InputError(f"self-draft: {key} must be at least {least}, not {getattr(self, key)}")
        if self.n > self.length + 1:
            raise InputError(f"self-draft: n is {self.n}, more than length + 1 = {self.length + 1}: no n-gram fits")
        self._offline = [] if self.ngram_file is None else _read_ngrams(self.ngram_file)
        self._shared = self._pool()

    @property
    def shares_state(self) -> bool:
        """Warm with a shared pool or an n-gram file."""
        return self.shared_pool or self.ngram_file is not None

    def _pool(self) -> NgramPool:
        pool = NgramPool(self.grams)
        for gram in self._offline:
            pool.add(gram)
        return pool

    def _remember(self, row: Row) -> _Memory:
        chains = prompt_chains(row, (1, 2), self.branches - 1)
        pool = self._shared if self.shared_pool else self._pool()
        return _Memory(Acceptance(((0.4,),)), pool, [[], *chains])

    def _grows(self, memory: _Memory) -> list[Trie]:
        return [chain(branch) for branch in memory.branches if branch]

    def _draft(self, memory: _Memory, row: Row, limit: int) -> RowTree:
        most = min(limit - 1, self.grams * max(self.n - 1, 1))
        ranked = offers([Source(0, 0, memory.pool.trie(row.pending))], memory.acceptance, most)
        price = memory.returns.price
        _, room = split(ranked, sum(map(len, memory.branches)), limit - 1, price)
        memory.sent = _fit(memory.branches, room, self.n - 1)
        sent = memory.branches[: memory.sent]
        memory.offered = ranked[: limit - 1 - sum(map(len, sent))]
        draft = Draft(row.pending, limit)
        draft.offer(memory.offered)
        for branch in sent:
            draft.probes(branch, 0, price)
        return draft.tree

    def _learn(self, memory: _Memory, scored: Scored) -> None:
        for index, branch in enumerate(memory.branches[: memory.sent]):
            node = scored.follow(branch, 0)
            if node is not None:
                memory.branches[index] = self._grown(memory, branch, scored.best[node], index, scored.row)

    def _grown(self, memory: _Memory, branch: list[int], best: int, index: int, row: Row) -> list[int]:
        """The branch one token further; a branch that reaches an end token starts anew."""
        if best in row.end_ids:
            return [] if index == 0 else (prompt_chains(row, (1, 2), index, step=row.steps) or [[]])[-1]
        longer = [*branch, best]
        if len(longer) >= self.n:
            memory.pool.add(longer[-self.n :])
        return longer[-self.length :]


def _fit(branches: list[list[int]], room: int, least: int) -> int:
    """How many branches, from the first, fit into `room` nodes; the last of them loses its oldest tokens if it must.

    A branch of fewer than `least` tokens would never fill an n-gram, so a full one is not cut below that.
    """
    for index, branch in enumerate(branches):
        if len(branch) > room:
            if room < least:
                return index
            del branch[:-room]
        room -= len(branch)
    return len(branches)


def _read_ngrams(path: str) -> list[list[int]]:
    try:
        with open(path, encoding="utf-8") as lines:
            grams = [[int(token) for token in line.split()] for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise InputError(
            f"self-draft: cannot read the n-grams of {path} ({error}); write token ids, one n-gram a line"
        ) from error
    if any(len(gram) < 2 for gram in grams):
        raise InputError(f"self-draft: {path} has a line of a single token; an n-gram needs at least 2")
    return grams
