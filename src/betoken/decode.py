"""The loop: propose -> score -> verify -> commit -> observe, over rows that come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter

import numpy as np

from betoken.drafters.drafter import Drafter
from betoken.errors import InputError
from betoken.models.target import Cache, Scores, Target
from betoken.sampling import TokenLogprob, adjust, logprob
from betoken.state import Ledger, Row, SamplingSettings, State, StopSettings, common_prefix
from betoken.tree import RowTree, TokenTree
from betoken.tuning.nodes import NodePolicy, StepTimes
from betoken.verifiers.verifier import RowVerdict, Verdict, Verifier


@dataclass(frozen=True)
class Request:
    """One prompt and what is asked of its answer."""

    prompt: Sequence[int]
    """Token ids, at least one."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    stop: StopSettings = field(default_factory=StopSettings)
    sample: int = 0
    budget: float | None = None
    """Most regret a relaxed verifier may spend on the answer: 0 for plain decoding's tokens, None for its own limit."""
    logprobs: int | None = None
    """How many alternatives to report with each token's log-probability; None reports nothing."""
    hint: Sequence[int] = ()
    """Tokens that the answer may repeat, for drafters that copy; no part of its text."""


@dataclass(frozen=True)
class Advance:
    """What one step did for one row."""

    row: Row
    tokens: list[int]
    """New tokens, 1 or more; cut after the token that ended the row."""
    verdict: RowVerdict
    nodes: int
    """Nodes of the row's tree."""
    times: StepTimes
    """Seconds of the whole step, shared by its rows."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One a token, if the request asked for them."""


@dataclass(frozen=True)
class Prefix:
    """Text whose keys and values are kept for later requests that start with it."""

    slot: int
    tokens: tuple[int, ...]
    row: Row | None = None
    """Whose text it is: the drafter keeps what it knows of it as long."""


Observer = Callable[[TokenTree, Scores, Verdict, State], None]
"""Looks at the steps of a decoder: the tree that was scored, its scores, what was kept, the rows."""


class Decoder:
    """Decodes a batch of rows together. Plain decoding is the drafter `none`."""

    shared_prefix = 32
    """Fewest common tokens for which a row takes over another row's keys and values."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        verifier: Verifier,
        policy: NodePolicy,
        *,
        prefill_chunk: int = 256,
        max_rows: int = 16,
    ) -> None:
        """The drafter must have been started with the target. Requests beyond `max_rows` wait, without memory."""
        self.target, self.drafter, self.verifier, self.policy = target, drafter, verifier, policy
        self.prefill_chunk, self.max_rows = prefill_chunk, max_rows
        self.cache: Cache = target.new_cache()
        self.waiting: list[Row] = []
        self.rows: list[Row] = []
        self.prefixes: list[Prefix] = []
        self.prefill_s: dict[int, float] = {}
        self.observer: Observer | None = None
        """Called at the end of every decoding step, outside the timings, when its tokens are committed already."""
        self._late_s = 0.0
        """What the node policy took after the last step was timed; counts in the next one."""
        self._ids = count()

    def admit(self, request: Request) -> Row:
        """Take a request in; its prefill runs in the next steps.

        Raises InputError for an empty prompt, a token outside the vocabulary, a prompt that fills the context, or
        settings that the verifier cannot serve.
        """
        prompt = np.array(request.prompt, dtype=np.int64)
        if prompt.size == 0:
            raise InputError("the prompt is empty: give at least one token")
        if prompt.min() < 0 or prompt.max() >= self.target.vocab_size:
            raise InputError(f"the prompt has a token id outside 0..{self.target.vocab_size - 1}")
        if prompt.size >= self.target.context:
            raise InputError(
                f"the prompt has {prompt.size} tokens and the model's context is {self.target.context}: shorten it"
            )
        own = () if request.stop.ignore_eos else self.target.eos_ids
        row = Row(
            id=next(self._ids),
            slot=-1,
            prompt=prompt,
            sampling=request.sampling,
            stop=request.stop,
            end_ids=frozenset(own) | frozenset(request.stop.stop_ids),
            context=self.target.context,
            sample=request.sample,
            ledger=Ledger(request.budget),
            logprobs=request.logprobs,
            hint=tuple(request.hint),
        )
        self._check_settings(row)
        self.verifier.check(State((row,)))
        self.drafter.admit([row])
        self.waiting.append(row)
        self.prefill_s[row.id] = 0.0
        return row

    def _check_settings(self, row: Row) -> None:
        size = self.target.vocab_size
        for name, ids in (
            ("logit_bias", row.sampling.logit_bias),
            ("stop_ids", row.stop.stop_ids),
            ("hint", row.hint),
        ):
            if any(not 0 <= token < size for token in ids):
                raise InputError(f"{name} has a token id outside 0..{size - 1}")
        banned = {token for token, bias in row.sampling.logit_bias.items() if bias == -np.inf}
        if len(banned | row.end_ids if row.stop.min_new_tokens else banned) >= size:
            raise InputError("logit_bias and min_new_tokens ban every token: leave at least one")
        if row.logprobs is not None and row.logprobs < 0:
            raise InputError(f"logprobs must be at least 0, not {row.logprobs}")

    def release(self, row: Row, *, retain: bool = False) -> Prefix | None:
        """Remove a row, finished or not; with `retain` its keys and values stay for requests that continue it."""
        prefix = None
        if retain and row.slot >= 0:
            prefix = Prefix(row.slot, tuple(row.tokens[: self.cache.length(row.slot)]), row)
            self.prefixes.append(prefix)
        else:
            self.drafter.release([row])
            if row.slot >= 0:
                self.cache.close(row.slot)
        self.rows = [other for other in self.rows if other is not row]
        self.waiting = [other for other in self.waiting if other is not row]
        self.prefill_s.pop(row.id, None)
        self.policy.release([row])
        return prefix

    def end(self, row: Row, generated: int) -> None:
        """End a row at its first `generated` new tokens, because its text has come to a stop string there.

        What the same step committed after them is forgotten, in the cache too.
        """
        row.end(generated)
        self.cache.truncate(row.slot, row.cached)

    def forget(self, prefix: Prefix) -> None:
        """Give the memory of a retained prefix back."""
        self.cache.close(self.detach(prefix))

    def detach(self, prefix: Prefix) -> int:
        """Share a retained prefix no longer. Returns its slot, which is the caller's to close."""
        self.prefixes.remove(prefix)
        if prefix.row is not None:
            self.drafter.release([prefix.row])
        return prefix.slot

    def step(self) -> list[Advance]:
        """One chunk of prefill for the first waiting row, if any, and one forward pass over all ready rows.

        Rows that finish stay until `release`, but take no further part.
        """
        self._prefill()
        state = State(tuple(row for row in self.rows if row.finish_reason is None))
        return self._decode(state) if state.rows else []

    def _decode(self, state: State) -> list[Advance]:
        began = perf_counter() - self._late_s
        tree = self._draft(state)
        drafted = perf_counter()
        slots = [row.slot for row in state.rows]
        scores = self.target.forward(tree, self.cache, slots, self.drafter.hidden_layers)
        scored = perf_counter()
        verdict = self.verifier.verify(tree, scores, state)
        reported = [_logprobs(tree, scores, verdict, b, row) for b, row in enumerate(state.rows)]
        kept = self._commit(tree, verdict, state)
        verified = perf_counter()
        self.drafter.observe(tree, scores, verdict, state)
        times = StepTimes(
            draft=drafted - began + perf_counter() - verified,
            target=scored - drafted,
            verify=verified - scored,
        )
        began = perf_counter()
        self.policy.observe(tree, verdict, state, times)
        self._late_s = perf_counter() - began
        if self.observer is not None:
            self.observer(tree, scores, verdict, state)
        return [
            Advance(row, tokens, verdict.rows[b], int(tree.counts[b]), times, reported[b][: len(tokens)])
            for b, (row, tokens) in enumerate(zip(state.rows, kept, strict=True))
        ]

    def _draft(self, state: State) -> TokenTree:
        """What this step scores. Where no row may have a draft, the drafter is not even asked."""
        limits = [_most_nodes(n, row) for n, row in zip(self.policy.limits(state), state.rows, strict=True)]
        tree = self.drafter.propose(state, limits) if max(limits) > 1 else TokenTree.bare(state.pending)
        return self.policy.trim(tree, state)

    def _commit(self, tree: TokenTree, verdict: Verdict, state: State) -> list[list[int]]:
        """Append each row's tokens and keep their nodes in the cache. A row that ended keeps what it committed."""
        kept = []
        paths = []
        for b, row in enumerate(state.rows):
            row.steps += 1
            kept.append(row.commit(verdict.tokens(tree, b), verdict.rows[b].exceptions))
            paths.append(verdict.rows[b].path[: len(kept[-1])])
        self.cache.keep([row.slot for row in state.rows], paths)
        return kept

    def _prefill(self) -> None:
        """One chunk for the first waiting row. Rows that find all of their prompt in the cache need none."""
        computed = False
        while self.waiting and len(self.rows) < self.max_rows:
            row = self.waiting[0]
            began = perf_counter()
            if row.slot < 0:
                row.slot, row.expects_draft = self._open(row), self.policy.expects(row)
            if not computed and self.cache.length(row.slot) < row.cached:
                self._score_chunk(row)
                computed = True
            self.prefill_s[row.id] += perf_counter() - began
            if self.cache.length(row.slot) < row.cached:
                return
            self.rows.append(self.waiting.pop(0))

    def _score_chunk(self, row: Row) -> None:
        """The next chunk of what comes before the row's pending token."""
        done = self.cache.length(row.slot)
        chunk = row.tokens[done : min(done + self.prefill_chunk, row.cached)]
        tree = _chunk(chunk)
        scores = self.target.forward(tree, self.cache, [row.slot], self.drafter.hidden_layers)
        path = tuple(range(len(chunk)))
        self.cache.keep([row.slot], [path])
        self.drafter.observe(tree, scores, Verdict((RowVerdict(path, -1),)), State((row,)))

    def _open(self, row: Row) -> int:
        """A slot for the row, with the longest prefix that another row or a retained text has computed already.

        Drafters that read hidden states must see every chunk, so they share nothing.
        """
        best, length = -1, 0
        if not self.drafter.hidden_layers:
            donors = [(prefix.slot, prefix.tokens) for prefix in self.prefixes]
            donors += [(other.slot, tuple(other.tokens[: other.cached])) for other in self.rows]
            for slot, tokens in donors:
                common = min(common_prefix(tokens, row.tokens), row.cached)
                if common > length:
                    best, length = slot, common
        # A short prefix is cheaper to compute than to share, but a whole prompt is ready at once.
        worthwhile = length > 0 and length >= min(self.shared_prefix, row.cached)
        return self.cache.fork(best, length) if worthwhile else self.cache.open()


def _most_nodes(limit: int, row: Row) -> int:
    """No draft for a row that takes one more token, and no node beyond the context.

    Otherwise the tokens that are left bound the depth of a draft, which is the drafter's to see, not its nodes.
    """
    return 1 if row.room <= 1 else max(1, min(limit, row.context - row.cached))


def _logprobs(tree: TokenTree, scores: Scores, verdict: Verdict, b: int, row: Row) -> tuple[TokenLogprob, ...]:
    """Log-probabilities of a verdict's tokens, each at the node before it, for a row that has not committed them."""
    if row.logprobs is None:
        return ()
    tokens = verdict.tokens(tree, b)
    return tuple(
        logprob(adjust(scores.logits(b, node), row, tokens[:depth]), tokens[depth], row.logprobs)
        for depth, node in enumerate(verdict.rows[b].path)
    )


def _chunk(tokens: Sequence[int]) -> TokenTree:
    """Committed text as a tree: one chain, which prefill keeps whole. Nobody reads its logits."""
    tree = RowTree.chain(tokens[0], tokens[1:])
    tree.wanted = [False] * len(tree)
    return TokenTree.stack([tree])
