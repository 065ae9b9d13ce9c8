"""Is it the same text? Plain decoding against each drafter, and a row alone against the same row in a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from betoken.bench.batching import decode_all
from betoken.bench.results import Progress, Record, ResultFile
from betoken.bench.subject import PLAIN, Loader, Method, ModelSpec, Subject, check_methods, check_temperature
from betoken.bench.suites import Question, check_suites, draw, read_suite
from betoken.decode import Decoder, Request
from betoken.drafters.plain import Plain
from betoken.errors import InputError
from betoken.models.target import Scores, Target
from betoken.state import SamplingSettings, State, StopSettings
from betoken.tree import TokenTree
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.verifier import RowVerdict, Verdict

REFERENCE = "plain, alone"
"""The pass that all others are compared with: plain decoding, one row at a time."""


@dataclass(frozen=True)
class AuditSettings:
    """What is audited: the same settings continue a result file, others need another."""

    model: ModelSpec
    methods: tuple[Method, ...]
    suites: tuple[Path, ...]
    rows: int = 200
    """Questions, drawn evenly from all suites."""
    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    """Of the draw, and of the rows: row i samples with seed + i."""
    batch: int = 8
    """Rows that are decoded together in every pass but the reference; 1 decodes them alone."""
    raw: bool = False

    def __post_init__(self) -> None:
        check_methods(self.methods)
        check_temperature(self.methods, self.temperature)
        StopSettings(self.max_new_tokens)
        if self.batch < 1:
            raise InputError(f"batch must be at least 1, not {self.batch}")
        check_suites(self.suites)

    @property
    def passes(self) -> list[Pass]:
        """The reference, plain decoding in a batch, and each drafter."""
        many = f"batch {self.batch}" if self.batch > 1 else "alone"
        methods = [method for method in self.methods if method.label != PLAIN]
        found = [Pass(REFERENCE, Method.plain(), 1)]
        if self.batch > 1:
            found.append(Pass(f"plain, {many}", Method.plain(), self.batch))
        return found + [Pass(f"{method.label}, {many}", method, self.batch) for method in methods]

    def questions(self) -> list[Question]:
        """The seeded draw."""
        return draw([read_suite(path) for path in self.suites], self.rows, self.seed)

    def describe(self, questions: Sequence[Question]) -> dict[str, Any]:
        """The settings as JSON values."""
        told = asdict(self)
        told["suites"] = [path.stem for path in self.suites]
        told["methods"] = [method.describe() for method in self.methods]
        told["questions"] = [question.id for question in questions]
        return told


class Pass(NamedTuple):
    """All questions decoded in one way."""

    name: str
    method: Method
    batch: int


@dataclass(frozen=True)
class Difference:
    """Where one answer left the plain one."""

    question: str
    position: int
    """Which new token, from 0."""
    plain_token: int | None
    """None: the plain answer ended before."""
    token: int | None
    """None: this answer ended before."""
    plain_text: str
    text: str
    logit_gap: float | None
    """Logit of the plain token minus that of the other, in plain decoding of the common text; None at an end."""


@dataclass(frozen=True)
class PassReport:
    """How one pass compares with plain decoding of each row alone."""

    name: str
    answers: int
    equal: int
    differences: tuple[Difference, ...]
    forwards: int
    acceptance_length: float
    """Committed tokens a forward; 1.0 means that nothing was drafted, or nothing right."""
    nodes_per_forward: float
    promised: bool
    """Whether equality is promised here: target and verifier are exact."""

    @property
    def failed(self) -> bool:
        """Whether a promise was broken."""
        return self.promised and self.equal < self.answers

    @property
    def drafted(self) -> bool:
        """Whether more than the pending token was ever scored: without, equality says nothing about drafting."""
        return self.nodes_per_forward > 1.0

    def describe(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)


def run_audit(
    settings: AuditSettings, load: Loader, out: Path, progress: Progress = lambda done, total, what: None
) -> Iterator[PassReport]:
    """Decode what `out` does not hold yet, row by row, and yield one report a pass, the reference left out.

    Rows join a batch as others leave it, so that neighbours are ragged. Raises InputError for a result file of
    other settings, and for what the loader, a drafter or a verifier refuses.
    """
    questions = settings.questions()
    with ResultFile(out, settings.describe(questions)) as results:
        subject = load(settings.model.fit_for(one.method for one in settings.passes))
        for one in settings.passes:
            one.method.decoder(subject)  # what does not fit this model is refused before the first answer
        total = len(settings.passes) * len(questions)
        for one in settings.passes:
            done = {record["question"] for record in results.records if record["pass"] == one.name}
            left = [index for index, question in enumerate(questions) if question.id not in done]
            requests = [_request(subject, questions[index], settings, index) for index in left]
            progress(len(results.records), total, one.name)
            for index, answer in _decode(one.method.decoder(subject, one.batch), requests, one.batch):
                results.append({"pass": one.name, "question": questions[left[index]].id, **answer})
                progress(len(results.records), total, one.name)
            if one.name != REFERENCE:
                yield _compare(one, results.records, subject, questions, settings)


def _request(subject: Subject, question: Question, settings: AuditSettings, index: int) -> Request:
    sampling = SamplingSettings(temperature=settings.temperature, seed=settings.seed + index)
    return Request(
        subject.prompt(question, raw=settings.raw),
        sampling,
        StopSettings(max_new_tokens=settings.max_new_tokens),
    )


def _decode(decoder: Decoder, requests: Sequence[Request], batch: int) -> Iterator[tuple[int, Record]]:
    """Answers as they finish, each with the index of its request; up to `batch` rows at a time."""
    for index, row, nodes in decode_all(decoder, requests, batch):
        yield (
            index,
            {"tokens": row.new_tokens, "finish_reason": row.finish_reason, "forwards": row.steps, "nodes": nodes},
        )


def _compare(
    one: Pass,
    records: Sequence[Record],
    subject: Subject,
    questions: Sequence[Question],
    settings: AuditSettings,
) -> PassReport:
    plain = {record["question"]: record for record in records if record["pass"] == REFERENCE}
    own = {record["question"]: record for record in records if record["pass"] == one.name}
    differences = [
        _difference(question, plain[question.id], own[question.id], subject, settings.raw)
        for question in questions
        if _said(plain[question.id]) != _said(own[question.id])
    ]
    forwards = sum(record["forwards"] for record in own.values())
    return PassReport(
        name=one.name,
        answers=len(own),
        equal=len(own) - len(differences),
        differences=tuple(differences),
        forwards=forwards,
        acceptance_length=sum(len(record["tokens"]) for record in own.values()) / forwards,
        nodes_per_forward=sum(record["nodes"] for record in own.values()) / forwards,
        promised=subject.target.exact and one.method.verifying.exact,
    )


def _said(record: Record) -> tuple[object, ...]:
    return record["tokens"], record["finish_reason"]


def _difference(question: Question, plain: Record, own: Record, subject: Subject, raw: bool) -> Difference:
    expected, found = plain["tokens"], own["tokens"]
    pairs = zip(expected, found, strict=False)
    position = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(found)))
    left = expected[position] if position < len(expected) else None
    right = found[position] if position < len(found) else None
    gap = None
    if left is not None and right is not None:
        logits = next_logits(subject.target, subject.prompt(question, raw=raw) + expected[:position])
        gap = float(logits[left]) - float(logits[right])
    return Difference(
        question=question.id,
        position=position,
        plain_token=left,
        token=right,
        plain_text=_text(subject, left, plain),
        text=_text(subject, right, own),
        logit_gap=gap,
    )


def _text(subject: Subject, token: int | None, record: Record) -> str:
    return subject.codec.decode([token], skip_special=False) if token is not None else f"({record['finish_reason']})"


def next_logits(target: Target, tokens: Sequence[int]) -> NDArray[np.float32]:
    """[V] logits of the token after `tokens`, as plain decoding computes them. Raises InputError like `admit`."""
    reader = _Reader()
    decoder = Decoder(target, Plain(), reader, FixedNodes(1))
    row = decoder.admit(Request(tokens, stop=StopSettings(max_new_tokens=1)))
    while row.finish_reason is None:
        decoder.step()
    decoder.release(row)
    assert reader.logits is not None
    return reader.logits


class _Reader:
    """A verifier that keeps the pending token's logits to look at."""

    name = "reader"
    lossless = True
    exact = True

    def __init__(self) -> None:
        self.logits: NDArray[np.float32] | None = None

    def check(self, state: State) -> None:
        """Serves everything."""

    def verify(self, tree: TokenTree, scores: Scores, state: State) -> Verdict:
        """Plain greedy decoding of one row."""
        self.logits = scores.logits(0, 0)
        return Verdict((RowVerdict((0,), int(self.logits.argmax())),))
