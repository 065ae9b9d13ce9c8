"""The running account of one answer, wherever its models are, and the statistics that come of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from betoken.answers.method import AnswerStats, name_of
from betoken.answers.plan import Plan
from betoken.engine import Engine
from betoken.remote import RemoteModel

SERVER = "server"
"""Stands in statistics for what only the server knows."""


@dataclass(kw_only=True)
class Account:
    """What an answer has cost so far; fields without a comment are those of `AnswerStats`."""

    began: float = field(default_factory=perf_counter, init=False)
    confidence: float | None = None
    prefix_confidences: tuple[tuple[int, float], ...] = ()
    draft_tokens: int = 0
    drafted: int = 0
    """Length of the draft, in the unit of `kept`."""
    kept: int = 0
    """How much of it stands: tokens of the target, pieces of text where that is behind HTTP."""
    target_tokens: int = 0
    target_forwards: int = 0
    judge_forwards: int = 0
    judge_nodes: int = 0
    draft_s: float = 0.0
    judge_s: float = 0.0
    target_s: float = 0.0
    plan: Plan | None = None
    resumed: int = 0
    fallback: str | None = None

    def stats(
        self, method: str, target: Engine | RemoteModel, draft: Engine | RemoteModel | None, tokens: int
    ) -> AnswerStats:
        """The statistics of an answer of so many tokens that ends now."""
        total = perf_counter() - self.began
        here = None if isinstance(target, RemoteModel) else target
        return AnswerStats(
            method=method,
            accepted_whole=self.draft_tokens > 0 and self.target_tokens == 0 and self.kept == self.drafted,
            kept_fraction=self.kept / self.drafted if self.drafted else 0.0,
            confidence=self.confidence,
            prefix_confidences=self.prefix_confidences,
            draft_tokens=self.draft_tokens,
            kept_tokens=self.kept,
            target_tokens=self.target_tokens,
            judge_forwards=self.judge_forwards,
            judge_nodes=self.judge_nodes,
            target_forwards=self.target_forwards,
            draft_s=self.draft_s,
            judge_s=self.judge_s,
            target_s=self.target_s,
            total_s=total,
            tokens_per_s=tokens / total,
            lossless=here is not None and self.draft_tokens == 0 and here.decoder.verifier.lossless,
            model=name_of(target),
            draft_model=None if draft is None else name_of(draft),
            drafter=SERVER if here is None else here.decoder.drafter.name,
            verifier=SERVER if here is None else here.decoder.verifier.name,
            dtype=SERVER if here is None else here.target.dtype,
            threads=0 if here is None else here.threads,
            plan=self.plan,
            resumed=self.resumed,
            fallback=self.fallback,
        )
