"""Lookahead decoding (arXiv 2402.02057): Jacobi guesses in a window, and a pool of the n-grams they pass through.

The window has n - 1 rows of guesses. Row 0 is a chain whose first column is the pending token; row r, column j hangs
under row r - 1, column j. The argmaxes at the last row are the next last row, and each column together with its
argmax is an n-gram for the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from betoken.drafters.growth import Draft, Growing, Memory, Scored, prompt_chains
from betoken.drafters.offers import Acceptance, Source, offers, split
from betoken.drafters.pool import NgramPool, Trie, chain
from betoken.errors import InputError
from betoken.state import Row
from betoken.tree import Role, RowTree


class _Preset(NamedTuple):
    n: int
    window: int
    grams: int


_PRESETS = {"auto": _Preset(4, 4, 4), "7b": _Preset(5, 7, 7), "1b": _Preset(7, 20, 20)}


@dataclass
class _Memory(Memory):
    pool: NgramPool
    window: list[list[int]]
    """Rows of guesses; row 0, column 0 stands for the pending token, whatever it holds."""
    read: int = 0
    """Tokens of the row that the pool has taken in, with `from_text`."""


@dataclass
class Lookahead(Growing[_Memory]):
    """Window of Jacobi guesses and n-gram pool. A setting that is none is the preset's."""

    preset: Literal["auto", "7b", "1b"] = "auto"
    """`7b` and `1b`: n, window, grams = 5, 7, 7 and 7, 20, 20 as published; `auto`: 4, 4, 4, for a CPU."""
    n: int | None = None
    """Tokens of an n-gram, its key counted; at least 2."""
    window: int | None = None
    """Columns of guesses."""
    grams: int | None = None
    """Most n-grams kept for one key, the least recently used goes first."""
    from_text: bool = False
    """Whether the pool also reads the prompt and the committed tokens."""
    name = "lookahead"

    def __post_init__(self) -> None:
        """Raises InputError for a size that leaves no window or no pool."""
        base = _PRESETS[self.preset]
        given = {key: getattr(self, key) for key in base._fields}
        self._own = base._replace(**{key: value for key, value in given.items() if value is not None})
        for key, value in self._own._asdict().items():
            if value < (least := 2 if key == "n" else 1):
                raise InputError(f"lookahead: {key} must be at least {least}, not {value}")
        self._shared = NgramPool(self._own.grams)

    def _remember(self, row: Row) -> _Memory:
        n, window, grams = self._own
        chains = prompt_chains(row, (1, 1), window + n - 3)
        guesses = [row.pending, *(chain[0] for chain in chains)]
        pool = self._shared if self.shared_pool else NgramPool(grams)
        return _Memory(Acceptance(((0.4,),)), pool, [guesses])

    def _grows(self, memory: _Memory) -> list[Trie]:
        return [chain(column) for column in zip(*memory.window, strict=True)]

    def _draft(self, memory: _Memory, row: Row, limit: int) -> RowTree:
        n, window, grams = self._own
        if self.from_text and memory.read < len(row.tokens):
            memory.pool.read(row.tokens, memory.read, n, row.end_ids)
            memory.read = len(row.tokens)
        source = [Source(0, 0, memory.pool.trie(row.pending))]
        ranked = offers(source, memory.acceptance, min(limit - 1, grams * (n - 1)))
        price = memory.returns.price
        rows = len(memory.window)
        most = max(window, len(memory.window[0]))
        _, room = split(ranked, most * rows - 1, limit - 1, price)
        columns = min(most, (room + 1) // rows)
        self._resize(memory, row, columns)
        growing = max(0, len(memory.window[0]) * rows - 1) if columns else 0
        memory.offered = ranked[: limit - 1 - growing]
        draft = Draft(row.pending, limit)
        draft.offer(memory.offered)
        if columns:
            _plant(draft, memory.window, price)
        return draft.tree

    def _resize(self, memory: _Memory, row: Row, columns: int) -> None:
        """Drop the columns that the budget does not reach; once it does, new ones are stretches of the prompt."""
        have = len(memory.window[0])
        if 0 < columns < have:
            memory.window = [line[:columns] for line in memory.window]
        elif columns > have and (len(memory.window) == self._own.n - 1 or have == 0):
            rows = len(memory.window)
            for stretch in prompt_chains(row, (rows, rows), min(columns, self._own.window) - have, step=row.steps):
                for line, token in zip(memory.window, stretch + stretch[-1:] * (rows - len(stretch)), strict=True):
                    line.append(token)

    def _learn(self, memory: _Memory, scored: Scored) -> None:
        fresh = _fresh(memory.window, scored)
        if not fresh:
            return
        rows = [line[: len(fresh)] for line in memory.window]
        rows[0][0] = scored.tokens[0]
        if len(rows) == self._own.n - 1:
            for gram in zip(*rows, fresh, strict=True):
                if scored.row.end_ids.isdisjoint(gram):
                    memory.pool.add(gram)
            memory.window = [*rows[1:], self._without_end(fresh, scored.row)]
        else:  # still filling: one more row, and the columns move up with the pending token
            memory.window = [line[1:] for line in (*rows, self._without_end(fresh, scored.row))]

    def _without_end(self, guesses: list[int], row: Row) -> list[int]:
        """Guesses with end tokens replaced by tokens of the prompt."""
        if row.end_ids.isdisjoint(guesses):
            return guesses
        chains = prompt_chains(row, (1, 1), len(guesses), step=row.steps) or [[row.pending]] * len(guesses)
        return [chain[0] if guess in row.end_ids else guess for guess, chain in zip(guesses, chains, strict=True)]


def _plant(draft: Draft, window: list[list[int]], price: float) -> None:
    """Add row 0 as a chain of probes, and each column as a branch under its place in row 0."""
    top = 0
    for index, (first, *column) in enumerate(zip(*window, strict=True)):
        below = draft.probe(first, top, price, Role.SEED) if index else 0
        if below is None or draft.probes(column, below, price) is None:
            break
        top = below


def _fresh(window: list[list[int]], scored: Scored) -> list[int]:
    """The target's argmax at the last row of each column, as far as the columns were scored."""
    out: list[int] = []
    top = 0
    for index, (first, *column) in enumerate(zip(*window, strict=True)):
        below = scored.find(top, first) if index else 0
        if below is None or (last := scored.follow(column, below)) is None:
            break
        out.append(scored.best[last])
        top = below
    return out
