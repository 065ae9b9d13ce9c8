"""Prompt lookup: copy what followed the last few tokens where they stood before.

Saxena, Prompt Lookup Decoding (2023). Pays where the answer repeats its prompt or itself: edits, summaries, code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal

from betoken.drafters.index import NgramIndex
from betoken.errors import InputError
from betoken.models.target import Scores, Target
from betoken.state import Row, State
from betoken.tree import RowTree, TokenTree
from betoken.verifiers.verifier import Verdict

END_OF_HINT = -1
"""Stands between a row's hint and its text; no token, never drafted."""


@dataclass
class PromptLookup:
    """Finds the longest n-gram that ends the row's text and stands in it, or its hint, before; drafts what followed."""

    max_ngram: int = 3
    """Longest n-gram that is looked for."""
    min_ngram: int = 1
    """Shortest n-gram that counts as a match."""
    max_draft: int = 10
    """Most tokens copied in a step."""
    prefer: Literal["first", "last"] = "first"
    """Which of several occurrences is copied; `first` is the published rule."""
    _rows: dict[int, NgramIndex] = field(default_factory=dict, init=False, repr=False)

    name = "prompt-lookup"
    hidden_layers = ()
    shares_state = False

    def __post_init__(self) -> None:
        """Raises InputError for sizes that allow no match or no draft."""
        if not 1 <= self.min_ngram <= self.max_ngram:
            raise InputError(
                f"prompt-lookup needs 1 <= min_ngram <= max_ngram, not {self.min_ngram} and {self.max_ngram}"
            )
        if self.max_draft < 1:
            raise InputError(f"prompt-lookup: max_draft must be at least 1, not {self.max_draft}")

    def start(self, target: Target, draft: Target | None = None) -> None:
        """Fits every target."""

    def admit(self, rows: Sequence[Row]) -> None:
        """An empty index for each row."""
        for row in rows:
            self._rows[row.id] = NgramIndex(self.min_ngram, self.max_ngram, last=self.prefer == "last")

    def release(self, rows: Sequence[Row]) -> None:
        """Forget the rows' text."""
        for row in rows:
            self._rows.pop(row.id, None)

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        """One chain a row, or nothing where no n-gram matches."""
        trees = []
        for row, limit in zip(state.rows, nodes, strict=True):
            draft = self._copy(row, min(limit - 1, row.room - 1, self.max_draft)) if limit > 1 else []
            trees.append(RowTree.chain(row.pending, draft))
        return TokenTree.stack(trees)

    def observe(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        """Reads prompts while they are prefilled; what is committed later, the next `propose` reads."""
        for row in state.rows:
            if row.generated == 0 and row.expects_draft:
                self._read(row)

    def _read(self, row: Row) -> NgramIndex:
        """The row's index, with all of its hint and text."""
        index = self._rows[row.id]
        if row.hint and not index.text:
            index.extend([*row.hint, END_OF_HINT])
        index.extend(row.tokens[len(index.text) - (len(row.hint) + 1 if row.hint else 0) :])
        return index

    def _copy(self, row: Row, most: int) -> list[int]:
        index = self._read(row)
        for size in range(self.max_ngram, self.min_ngram - 1, -1):
            at = index.lookup(size)
            if at is not None:
                return list(takewhile(lambda token: token != END_OF_HINT, index.text[at : at + most]))
        return []
