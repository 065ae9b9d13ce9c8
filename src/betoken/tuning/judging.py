"""Calibration of a judge on labelled questions: drafts, its confidences, and the settings that they allow.

What is promised: of all answers, at most a share of `bound` are wrong and were accepted whole, with a stated
confidence, on questions like these. Where that cannot be promised, or brings no time, the file says that the target is
to answer alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from betoken.answers.boundaries import Kind, boundaries
from betoken.answers.calibration import KIND
from betoken.answers.desk import Desk
from betoken.answers.hearing import Hearing
from betoken.answers.judge import Judge
from betoken.answers.method import Question, Writing
from betoken.answers.packed import Docket
from betoken.answers.plan import MOST, Rates
from betoken.answers.together import Together
from betoken.bench import provenance
from betoken.bench.evaluation import Scoring, chosen, fingerprint_of
from betoken.bench.held_out import fingerprint
from betoken.bench.pair import Pair, PairLoader, as_they_end, prompt_of
from betoken.bench.results import Progress, Record, ResultFile
from betoken.bench.subject import Method, ModelSpec
from betoken.bench.suites import Labelled, check_suites
from betoken.engine import Engine
from betoken.errors import InputError
from betoken.settings import GenerationSettings
from betoken.tuning.ceiling import Costs
from betoken.tuning.choosing import Found, judge_of
from betoken.tuning.judges import Fit


@dataclass(frozen=True)
class JudgingSettings:
    """What is asked and how it is judged: the same settings continue a record file."""

    model: ModelSpec
    method: Method
    """How both models write."""
    suites: tuple[tuple[Path, int | None], ...]
    """Files, and how many rows of each; None is all."""
    judge: Judge
    """Its layout, instruction and words; likelihood 1 if the draft's mean log-probability is to be weighed."""
    boundaries: Kind = "sentence"
    every: int = 32
    bound: float = 0.05
    confidence: float = 0.9
    max_new_tokens: int = 512
    batch: int = 1
    seed: int = 0
    raw: bool = False
    chunk: int = 512
    with_target: bool = False
    """Whether the target answers too, to know how long and how right its answers are."""

    def __post_init__(self) -> None:
        self.method.check()
        boundaries([], self.boundaries, every=self.every)
        GenerationSettings(max_new_tokens=self.max_new_tokens)
        for name in ("bound", "confidence"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise InputError(f"{name} must be above 0 and below 1, not {getattr(self, name):g}")
        if self.model.draft_model is None:
            raise InputError("calibrate parse needs a draft model: --draft-model")
        if self.judge.layout == "auto":
            raise InputError("a calibration is for one layout: suffix or prompt, not auto")
        if self.batch < 1 or self.chunk < 1:
            raise InputError("batch and chunk must be at least 1")
        check_suites([path for path, _ in self.suites])

    def questions(self) -> list[Labelled]:
        """The rows of every suite. Raises InputError for a suite without a scorer or with fewer rows."""
        return [one for path, rows in self.suites for one in chosen(path, rows, self.seed)]

    def describe(self, labelled: Sequence[Labelled]) -> dict[str, Any]:
        """What the records depend on, as JSON values: bound and confidence may change afterwards."""
        told = asdict(self)
        del told["bound"], told["confidence"]
        told["judge"]["instruction"] = self.judge.asks  # the general question may be another in another version
        told["suites"] = [[path.stem, rows] for path, rows in self.suites]
        told["questions_sha256"] = fingerprint_of(labelled)
        return told


def calibrate(
    settings: JudgingSettings,
    load: PairLoader,
    out: Path,
    records: Path,
    progress: Progress = lambda done, total, what: None,
) -> tuple[dict[str, Any], Found]:
    """Ask what `records` does not hold yet, choose settings, freeze them in `out`; returns what was written.

    An interruption loses the questions under way, nothing else. Raises InputError for records of other settings, and
    for what loader and models refuse.
    """
    labelled = settings.questions()
    with ResultFile(records, settings.describe(labelled)) as results:
        done = {record["question"] for record in results.records}
        left = [one for one in labelled if one.question.id not in done]
        progress(len(results.records), len(labelled), f"loading {settings.model.label}")
        pair = load(settings.model, settings.method)
        for record in examined(pair, settings, left):
            results.append(record)
            progress(len(results.records), len(labelled), record["suite"])
        found = judge_of(results.records, settings, costs_of(pair, settings.chunk))
        told = _told(settings, found, pair, labelled, results.records)
    provenance.replace(out, json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return told, found


def examined(pair: Pair, settings: JudgingSettings, labelled: Sequence[Labelled]) -> Iterator[Record]:
    """One record for each question, as its draft is judged; `batch` at a time if the target answers too."""
    if pair.draft is None:
        raise InputError("calibrate parse needs a draft model: --draft-model")
    docket, asked = Docket(), GenerationSettings(max_new_tokens=settings.max_new_tokens)
    evidence: dict[int, Record] = {}
    writings = []
    for place, one in enumerate(labelled):
        prompt, raw = prompt_of(one, pair.target, raw=settings.raw)
        question = Question(prompt, pair.target, pair.draft, asked, raw, docket)
        writings.append(_examine(question, settings, evidence, place))
    events = Together(writings, settings.batch)
    with Scoring(labelled) as scoring:
        try:
            finished = as_they_end(events)
            while ended := list(islice(finished, settings.batch if settings.with_target else 1)):
                asked_of = [labelled[place] for place, _ in ended]
                own = _own_answers(pair.target, asked_of, settings, scoring) if settings.with_target else [None]
                for (place, result), one, answered in zip(ended, asked_of, own, strict=True):
                    record = scoring.judged(one, result.text) | {"finish_reason": result.finish_reason}
                    yield record | evidence[place] | {"target": answered}
        finally:
            events.close()


def _examine(question: Question, settings: JudgingSettings, evidence: dict[int, Record], place: int) -> Writing:
    """The draft as the answer; the judge's evidence in it and in all its prefixes goes into `evidence`."""
    desk = Desk(question, "draft")
    draft, finish = yield from desk.draft()
    pieces = [desk.target.tokenizer.token_bytes(token) for token in draft]
    ends: list[int] = []
    found: list[tuple[float, float]] = []
    before, suffix = 0, 0
    if draft:
        with Hearing(desk, settings.judge, draft, settings.chunk) as hearing:
            before, suffix = len(hearing.asked.before), len(hearing.asked.suffix)
            if hearing.complete:
                ends = boundaries(pieces, settings.boundaries, every=settings.every, most=MOST)
                yield from hearing.confidences([*ends, len(draft)])
                found = hearing.evidence
    evidence[place] = {
        "prompt": len(desk.prompt),
        "before": before,
        "suffix": suffix,
        "draft_tokens": len(draft),
        "draft_own_tokens": desk.draft_tokens,
        "ends": ends,
        "odds": [odds for odds, _ in found],
        "means": [mean for _, mean in found],
    }
    desk.kept = len(draft)
    return desk.result(list(draft), desk.text(draft), finish)


def _own_answers(
    target: Engine, asked: Sequence[Labelled], settings: JudgingSettings, scoring: Scoring
) -> list[Record]:
    """What the target answers itself, all questions together."""
    put = [prompt_of(one, target, raw=settings.raw) for one in asked]
    raw = put[0][1]  # of the model, not of the question
    results = target.generate([prompt for prompt, _ in put], raw=raw, max_new_tokens=settings.max_new_tokens)
    return [
        {"tokens": len(result.tokens), "correct": scoring.judged(one, result.text)["correct"]}
        for one, result in zip(asked, results, strict=True)
    ]


def costs_of(pair: Pair, chunk: int) -> Costs | None:
    """Measured prices of both models; None where nobody can measure."""
    target, draft = pair.target.costs, None if pair.draft is None else pair.draft.costs
    if target is None or draft is None:
        return None
    return Costs(Rates(target.seconds, chunk), Rates(draft.seconds, chunk))


def _told(
    settings: JudgingSettings, found: Found, pair: Pair, labelled: Sequence[Labelled], records: Sequence[Record]
) -> dict[str, Any]:
    used, threshold = found.fitted or Fit(1.0, 0.0, 0.0), found.threshold
    judge = replace(settings.judge, **asdict(used), instruction=settings.judge.asks)
    targets: list[Mapping[str, Any]] = [record["target"] for record in records if record["target"] is not None]
    return {
        "kind": KIND,
        "fallback": found.fallback,
        "settings": {
            **asdict(judge),
            "threshold": 1.0 if threshold is None else threshold.value,
            "accepts": 0.0 if threshold is None else threshold.accepted / threshold.answers,
            "chunk": settings.chunk,
            "boundaries": settings.boundaries,
            "every": settings.every,
            "most": found.most,
        },
        "target": pair.target.target.name,
        "draft": "" if pair.draft is None else pair.draft.target.name,
        "bound": settings.bound,
        "confidence": settings.confidence,
        "threshold": None if threshold is None else asdict(threshold),
        "auc": {
            "value": found.auc.value,
            "interval": list(found.auc.interval),
            "right": found.auc.right,
            "wrong": found.auc.wrong,
        },
        "signals": {name: area.value for name, area in found.signals.items()},
        "expected_speed_up": found.expected,
        "ceiling": found.ceiling,
        "draft_right": sum(record["correct"] for record in records),
        "target_right": sum(one["correct"] for one in targets) if targets else None,
        "questions": len(records),
        "not_judged": sum(not record["odds"] for record in records),
        "table": [asdict(row) for row in found.table],
        "model": asdict(settings.model),
        "method": settings.method.describe(),
        "max_new_tokens": settings.max_new_tokens,
        "seed": settings.seed,
        "rows": {one.question.id: fingerprint(one.question) for one in labelled},
        "session": provenance.session(),
    }
