"""Calibration of the verifier asd: what strict decoding rejects first, and how near the draft was.

A barrier is the first rejection of one proposal: the drafted token's regret r, over the draft that hangs on it, q.
The lower quartile of the positive r / q of strict decoding becomes the gate (arXiv 2608.03447, calibration).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from betoken.bench.batching import decode_all
from betoken.bench.held_out import fingerprint
from betoken.bench.provenance import replace, session
from betoken.bench.results import Progress
from betoken.bench.subject import Loader, Method, ModelSpec
from betoken.bench.suites import Question, check_suites, draw, read_suite
from betoken.decode import Request
from betoken.errors import InputError
from betoken.models.target import Scores
from betoken.state import State, StopSettings
from betoken.tree import TokenTree
from betoken.verifiers.calibration import KIND
from betoken.verifiers.regrets import regrets
from betoken.verifiers.verifier import Verdict

PERCENTILE = 25.0


@dataclass(frozen=True)
class CalibrationSettings:
    """What is traced."""

    model: ModelSpec
    method: Method
    """Its verifier must be asd; its settings are not used, since the trace is strict."""
    suites: tuple[Path, ...]
    variant: Literal[1, 2] = 2
    rows: int = 32
    """Prompts, drawn evenly from all suites; not for evaluation afterwards."""
    max_new_tokens: int = 256
    batch: int = 8
    seed: int = 0
    raw: bool = False

    def __post_init__(self) -> None:
        self.method.check()
        StopSettings(self.max_new_tokens)
        if self.variant not in (1, 2):
            raise InputError(f"variant must be 1 or 2, not {self.variant}")
        if self.batch < 1:
            raise InputError(f"batch must be at least 1, not {self.batch}")
        check_suites(self.suites)

    def questions(self) -> list[Question]:
        """The seeded draw."""
        return draw([read_suite(path) for path in self.suites], self.rows, self.seed)


@dataclass(frozen=True)
class Barrier:
    """The first rejection of one proposal."""

    regret: float
    """r: how much the target prefers its own token, in logits."""
    position: int
    """i: drafted tokens that were accepted before it."""
    length: int
    """K: drafted tokens on the longest path through it."""

    def steepness(self, variant: int) -> float:
        """r / q, which the gate is compared with: q = K - i in variant 1, (K - i) / K in variant 2."""
        hanging = float(self.length - self.position)
        return self.regret / (hanging if variant == 1 else hanging / self.length)


@dataclass
class Trace:
    """Collects barriers from a decoder's steps (its `observer`)."""

    proposals: int = 0
    """Trees with at least one drafted token."""
    barriers: list[tuple[Barrier, ...]] = field(default_factory=list)
    """For each proposal that met one, the rejected tokens side by side: one in a chain, several in a tree."""

    def __call__(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        """Look at one step of greedy rows without penalties."""
        rows = range(tree.batch)
        found = regrets(tree, scores, state, list(rows), np.full(tree.batch, np.inf))
        for b in rows:
            self.proposals += bool(tree.children(b, 0))
            path, ends = verdict.rows[b].path, state.rows[b].end_ids
            if any(int(tree.tokens[b, node]) in ends for node in path[1:]):
                continue  # what lies behind an end token is never committed
            rejected = tuple(
                Barrier(float(found.regret[b, node]), len(path) - 1, len(path) - 1 + _height(tree, b, node))
                for node in tree.children(b, path[-1])
                if np.isfinite(found.regret[b, node])  # an end token on either side is never forgiven
            )
            if rejected:
                self.barriers.append(rejected)

    def steepness(self, variant: int) -> list[float]:
        """The least r / q of each proposal's barrier, those above 0."""
        least = [min(one.steepness(variant) for one in rejected) for rejected in self.barriers]
        return [value for value in least if value > 0]


def _height(tree: TokenTree, b: int, node: int) -> int:
    """Nodes on the longest path from a node down, itself included."""
    below = [(node, 1)]
    highest = 1
    while below:
        current, height = below.pop()
        highest = max(highest, height)
        below += [(child, height + 1) for child in tree.children(b, current)]
    return highest


@dataclass(frozen=True)
class Proposal:
    """Settings for one variant. The budget pays for one mismatch that just passes the gate at a draft's start."""

    budget: float
    gate: float
    cap: int
    barriers: int
    """Rejections with a positive regret, from which the gate was taken."""


def propose(trace: Trace, variant: int) -> Proposal:
    """Gate = lower quartile of r / q (linear interpolation), cap = 1, budget = gate times the largest q.

    In variant 2 that q is 1, so budget = gate as published. In variant 1 it is the draft's length; the median is
    taken, since drafts vary. Raises InputError if no barrier was met.
    """
    steepness = trace.steepness(variant)
    if not steepness:
        raise InputError(
            f"{trace.proposals} drafts, and none of them was rejected at a token with a regret: "
            "take more rows, longer answers or another drafter"
        )
    gate = float(np.percentile(steepness, PERCENTILE))
    lengths = [max(one.length for one in rejected) for rejected in trace.barriers]
    budget = gate if variant == 2 else gate * float(np.median(lengths))
    return Proposal(budget, gate, 1, len(steepness))


def calibrate(
    settings: CalibrationSettings, load: Loader, out: Path, progress: Progress = lambda done, total, what: None
) -> dict[str, Any]:
    """Trace strict decoding and freeze the proposal in `out`; returns what was written.

    Raises InputError if nothing was rejected, if `out` cannot be written, and for whatever loader and drafter refuse.
    """
    questions = settings.questions()
    progress(0, len(questions), f"loading {settings.model.label}")
    subject = load(settings.model.fit_for([settings.method]))
    decoder = settings.method.decoder(subject, settings.batch)
    decoder.observer = trace = Trace()
    stop = StopSettings(max_new_tokens=settings.max_new_tokens)
    requests = [Request(subject.prompt(one, raw=settings.raw), stop=stop, budget=0.0) for one in questions]
    for done, _ in enumerate(decode_all(decoder, requests, settings.batch), 1):
        progress(done, len(questions), "strict decoding")
    told = _told(settings, trace, questions)
    replace(out, json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return told


def _told(settings: CalibrationSettings, trace: Trace, questions: Sequence[Question]) -> dict[str, Any]:
    proposals = {variant: propose(trace, variant) for variant in (1, 2)}
    frozen = proposals[settings.variant]
    return {
        "kind": KIND,
        "variant": settings.variant,
        "budget": frozen.budget,
        "gate": frozen.gate,
        "cap": frozen.cap,
        "barriers": frozen.barriers,
        "proposals": trace.proposals,
        "both_variants": {str(variant): asdict(one) for variant, one in proposals.items()},
        "percentile": PERCENTILE,
        "model": asdict(settings.model),
        "drafter": {"name": settings.method.drafter, "settings": dict(settings.method.settings)},
        "nodes": settings.method.nodes,
        "max_new_tokens": settings.max_new_tokens,
        "seed": settings.seed,
        "rows": {question.id: fingerprint(question) for question in questions},
        "session": session(),
    }
