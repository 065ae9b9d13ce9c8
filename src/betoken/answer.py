"""One answer while it is decoded: its chunks of text and its running costs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from betoken.decode import Advance, Decoder, Prefix
from betoken.models.tokenizer import Tokenizer
from betoken.result import Alternative, Chunk, Logprob, RelaxedToken, Result, Stats
from betoken.sampling import TokenLogprob
from betoken.state import Relaxation, Row
from betoken.text import TextStream


@dataclass(eq=False)
class Answer:
    """A row of the decoder and what its steps have given so far."""

    row: Row
    tokenizer: Tokenizer
    retain: bool = False
    """Keep the row's keys and values in the decoder when it is over."""
    ready: deque[Chunk] = field(default_factory=deque)
    """Chunks that nobody has taken yet."""
    result: Result | None = None
    """Set when the row has left the decoder."""
    prefix: Prefix | None = None
    text: TextStream = field(init=False)
    written: list[str] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    exceptions: list[RelaxedToken] = field(default_factory=list)
    budget: float | None = None
    """Most regret the row may spend, as its verifier says."""
    nodes: int = 0
    draft_s: float = 0.0
    target_s: float = 0.0
    verify_s: float = 0.0

    def __post_init__(self) -> None:
        self.text = TextStream(self.tokenizer, self.row.stop.stop)
        self.budget = self.row.ledger.budget

    @property
    def spent(self) -> float:
        """Regret of the exceptions among the chunks so far."""
        return sum(one.regret for one in self.exceptions)

    @property
    def left(self) -> float | None:
        """Regret that may still be spent; None without a budget."""
        return None if self.budget is None else max(0.0, self.budget - self.spent)

    def take(self, advance: Advance, decoder: Decoder) -> None:
        """Turn what a step committed into chunks; ends the row where a stop string is complete."""
        self.nodes += advance.nodes
        self.draft_s += advance.times.draft
        self.target_s += advance.times.target
        self.verify_s += advance.times.verify
        self.budget = advance.verdict.budget
        before = self.row.generated - len(advance.tokens)
        exceptions = {one.position: one for one in advance.verdict.exceptions}
        for count, token in enumerate(advance.tokens, 1):
            last = count == len(advance.tokens) and self.row.finish_reason is not None
            text = "" if last and token in self.row.end_ids else self.text.push(token)
            if last and not self.text.stopped:
                text += self.text.finish()
            if self.text.stopped:
                decoder.end(self.row, before + count)
            reported = self._logprob(advance.logprobs[count - 1]) if advance.logprobs else None
            relaxed = exceptions.get(before + count - 1)
            self._write(text, token, reported, relaxed, last=last or self.text.stopped)
            if self.text.stopped:
                return

    def _write(self, text: str, token: int, logprob: Logprob | None, relaxed: Relaxation | None, *, last: bool) -> None:
        exception = None if relaxed is None else self._relaxed(relaxed)
        self.written.append(text)
        self.logprobs += [logprob] if logprob is not None else []
        self.exceptions += [exception] if exception is not None else []
        reason = self.row.finish_reason if last else None
        self.ready.append(Chunk(text, token, reason, logprob, exception, self.spent, self.left))

    def _logprob(self, one: TokenLogprob) -> Logprob:
        top = tuple(Alternative(token, self._spell(token), logprob) for token, logprob in one.top)
        return Logprob(one.token, self._spell(one.token), one.logprob, top)

    def _relaxed(self, one: Relaxation) -> RelaxedToken:
        texts = self._spell(one.chosen), self._spell(one.preferred)
        return RelaxedToken(one.position, one.chosen, one.preferred, one.regret, *texts)

    def _spell(self, token: int) -> str:
        return self.tokenizer.token_bytes(token).decode("utf-8", "replace")

    def settle(self, decoder: Decoder, threads: int) -> None:
        """Take the row out of the decoder; `result` is the answer as far as it came."""
        row = self.row
        if row.finish_reason is None:
            self.written.append(self.text.finish())
        stats = self._stats(decoder, threads)
        self.result = Result(
            text="".join(self.written),
            tokens=row.new_tokens,
            prompt_tokens=len(row.prompt),
            finish_reason=row.finish_reason,
            stats=stats,
            sample=row.sample,
            logprobs=None if row.logprobs is None else self.logprobs,
            exceptions=tuple(self.exceptions),
            budget_spent=self.spent,
            budget_left=self.left,
        )
        self.prefix = decoder.release(row, retain=self.retain)

    def _stats(self, decoder: Decoder, threads: int) -> Stats:
        row, target, drafter, verifier = self.row, decoder.target, decoder.drafter, decoder.verifier
        seconds = self.draft_s + self.target_s + self.verify_s
        # A relaxed verifier without budget is strict. What follows the law of plain greedy decoding has its tokens.
        strict = row.ledger.budget == 0 and not verifier.lossless
        exact = target.exact and (verifier.exact or strict or (verifier.lossless and row.sampling.greedy))
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
            lossless=verifier.lossless or strict,
            exact=exact,
            reproducible=exact or fixed,
            drafter=drafter.name,
            verifier="greedy" if greedy else verifier.name,
            model=target.name,
            dtype=target.dtype,
            threads=threads,
        )
