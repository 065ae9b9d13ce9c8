"""One answer while it is decoded: its chunks of text and its running costs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from betoken.decode import Advance, Decoder, Prefix
from betoken.result import Chunk, Result, Stats
from betoken.state import Row
from betoken.text import TextStream


@dataclass(eq=False)
class Answer:
    """A row of the decoder and what its steps have given so far."""

    row: Row
    text: TextStream
    retain: bool = False
    """Keep the row's keys and values in the decoder when it is over."""
    ready: deque[Chunk] = field(default_factory=deque)
    """Chunks that nobody has taken yet."""
    result: Result | None = None
    """Set when the row has left the decoder."""
    prefix: Prefix | None = None
    written: list[str] = field(default_factory=list)
    nodes: int = 0
    draft_s: float = 0.0
    target_s: float = 0.0
    verify_s: float = 0.0

    def take(self, advance: Advance, decoder: Decoder) -> None:
        """Turn what a step committed into chunks; ends the row where a stop string is complete."""
        self.nodes += advance.nodes
        self.draft_s += advance.times.draft
        self.target_s += advance.times.target
        self.verify_s += advance.times.verify
        before = self.row.generated - len(advance.tokens)
        for count, token in enumerate(advance.tokens, 1):
            last = count == len(advance.tokens) and self.row.finish_reason is not None
            text = "" if last and token in self.row.end_ids else self.text.push(token)
            if last and not self.text.stopped:
                text += self.text.finish()
            if self.text.stopped:
                decoder.end(self.row, before + count)
            self._write(text, token, last=last or self.text.stopped)
            if self.text.stopped:
                return

    def _write(self, text: str, token: int, *, last: bool) -> None:
        self.written.append(text)
        self.ready.append(Chunk(text, token, self.row.finish_reason if last else None))

    def settle(self, decoder: Decoder, threads: int) -> None:
        """Take the row out of the decoder; `result` is the answer as far as it came."""
        row = self.row
        if row.finish_reason is None:
            self.written.append(self.text.finish())
        stats = self._stats(decoder, threads)
        self.result = Result("".join(self.written), row.new_tokens, len(row.prompt), row.finish_reason, stats)
        self.prefix = decoder.release(row, retain=self.retain)

    def _stats(self, decoder: Decoder, threads: int) -> Stats:
        row, target, drafter, verifier = self.row, decoder.target, decoder.drafter, decoder.verifier
        seconds = self.draft_s + self.target_s + self.verify_s
        exact = target.exact and verifier.exact
        fixed = decoder.policy.reproducible and not drafter.shares_state
        # The same rule under two names: replay follows the argmax of a greedy row.
        greedy = verifier.name == "replay" and row.sampling.greedy
        return Stats(
            forwards=row.steps,
            committed=row.generated,
            acceptance_length=row.generated / row.steps if row.steps else 0.0,
            nodes_per_forward=self.nodes / row.steps if row.steps else 0.0,
            draft_s=self.draft_s,
            target_s=self.target_s,
            verify_s=self.verify_s,
            prefill_s=decoder.prefill_s[row.id],
            tokens_per_s=row.generated / seconds if seconds else 0.0,
            lossless=verifier.lossless,
            exact=exact,
            reproducible=exact or fixed,
            drafter=drafter.name,
            verifier="greedy" if greedy else verifier.name,
            model=target.name,
            dtype=target.dtype,
            threads=threads,
        )
