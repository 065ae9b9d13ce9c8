"""What a draft model has read of each row, in a cache of its own.

A row's prompt is read while the target prefills it, chunk by chunk, so that it counts as prefill. A row that starts
like another one takes over what was read of that, as the target does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from betoken.models.target import Cache, Scores, Target
from betoken.state import Row, common_prefix
from betoken.tree import RowTree, TokenTree

_SHARED = 32
"""Fewest common tokens for which a row takes over what was read of another."""


@dataclass
class Memory:
    """What the draft model's cache holds of one row."""

    slot: int
    text: list[int] = field(default_factory=list)
    """Tokens in the slot: committed ones, then drafted ones that may be rejected."""
    agreed: int = 0
    """How many of them are known to be committed."""
    readable: bool = True
    """Whether the draft model knows every token so far."""


class Reader:
    """A draft model, its cache, and a slot of it for each row."""

    def __init__(self, model: Target, chunk: int) -> None:
        """`chunk`: most tokens of a row that one forward pass reads."""
        self.model, self.chunk = model, chunk
        self.cache: Cache = model.new_cache()
        self._memories: dict[int, Memory] = {}

    def admit(self, row: Row) -> None:
        """A slot for the row."""
        self._memories[row.id] = Memory(self.cache.open())

    def release(self, row: Row) -> None:
        """Give the row's slot back."""
        memory = self._memories.pop(row.id, None)
        if memory is not None:
            self.cache.close(memory.slot)

    def memory(self, row: Row) -> Memory:
        """What was read of an admitted row."""
        return self._memories[row.id]

    def can_read(self, row: Row, ahead: int) -> bool:
        """Whether the row and `ahead` drafted tokens are within the model's context, and it knows every token."""
        memory = self._memories[row.id]
        fresh = row.tokens[memory.agreed :]
        memory.readable = memory.readable and max(fresh, default=0) < self.model.vocab_size
        return memory.readable and len(row.tokens) + ahead < self.model.context

    def prefill(self, row: Row, chunk: Sequence[int]) -> None:
        """Read on by as much as the target has just read, and with its last chunk to the pending token.

        The target may have begun far into the prompt, where another row has computed the start of it: that the chunk
        is the last shows in its tokens. Text that repeats itself may look so too early, and is then read early.
        """
        memory = self._synchronised(row)
        last = row.tokens[row.cached - len(chunk) : row.cached] == list(chunk)
        left = row.cached - len(memory.text)
        self._read(row, left if last else min(left, len(chunk)))

    def catch_up(self, row: Row) -> None:
        """Drop what was rejected from the row's slot; read all but the last chunk of what was not read."""
        memory = self._synchronised(row)
        left = row.cached - len(memory.text)
        self._read(row, left - left % self.chunk)

    def score(self, rows: Sequence[Row], trees: Sequence[RowTree], kept: Sequence[int]) -> Scores:
        """One forward pass over a tree a row; its leading `kept[b]` nodes, a chain, stay in the cache."""
        memories = [self._memories[row.id] for row in rows]
        slots = [memory.slot for memory in memories]
        scores = self.model.forward(TokenTree.stack(trees), self.cache, slots)
        self.cache.keep(slots, [range(count) for count in kept])
        for memory, tree, count in zip(memories, trees, kept, strict=True):
            memory.text += tree.tokens[:count]
        return scores

    def _read(self, row: Row, count: int) -> None:
        """Read the next `count` tokens of the row."""
        memory = self._memories[row.id]
        end = len(memory.text) + count
        while len(memory.text) < end:
            tokens = row.tokens[len(memory.text) : min(len(memory.text) + self.chunk, end)]
            tree = RowTree.chain(tokens[0], tokens[1:])
            tree.wanted = [False] * len(tree)
            self.score([row], [tree], [len(tree)])

    def _synchronised(self, row: Row) -> Memory:
        """The row's memory without rejected tokens; a new one starts with what was read of another row."""
        memory = self._memories[row.id]
        if not memory.text:
            self._take_over(row, memory)
        memory.agreed += common_prefix(memory.text[memory.agreed :], row.tokens[memory.agreed : row.cached])
        if len(memory.text) > memory.agreed:
            del memory.text[memory.agreed :]
            self.cache.truncate(memory.slot, memory.agreed)
        return memory

    def _take_over(self, row: Row, memory: Memory) -> None:
        wanted = row.tokens[: row.cached]
        shared = [(common_prefix(other.text, wanted), other.slot) for other in self._memories.values()]
        length, slot = max(shared)
        if length >= _SHARED:
            self.cache.close(memory.slot)
            memory.slot = self.cache.fork(slot, length)
            memory.text = wanted[:length]
