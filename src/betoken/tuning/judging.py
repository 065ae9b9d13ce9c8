"""Calibration of a judge on labelled questions: drafts, its confidences, and the settings that they allow.

What is promised: of all answers, at most a share of `bound` are wrong and were accepted whole, with a stated
confidence, on questions like these. Where that cannot be promised, or brings no time, the file says that the target is
to answer alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from betoken.tuning.ceiling import Case, Costs, by_confidence, perfect, speed_up
from betoken.tuning.judges import Auc, Fit, Threshold, auc, choose_threshold, fewest, fit

SPACINGS = (0, 1, 2, 4, 8, 16, 32)
"""Most boundaries of a draft, for the table."""
FASTER = 1.0
"""Least expected speed-up for which judging is worth its risk."""


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
        told["suites"] = [[path.stem, rows] for path, rows in self.suites]
        told["questions_sha256"] = fingerprint_of(labelled)
        return told


@dataclass(frozen=True)
class Row:
    """The table's entry for one threshold and one number of boundaries."""

    threshold: float
    most: int
    """Most boundaries of a draft."""
    spacing: float
    """Mean tokens between two boundaries."""
    accepted: float
    """Share of drafts that are accepted whole."""
    false_accept: float
    """Share of the wrong drafts that are accepted whole."""
    false_reject: float
    """Share of the right drafts that are not."""
    right_thrown_away: float
    """Share of the right drafts' tokens that are written again."""
    wrong_kept: float
    """Share of the tokens of wrong drafts that are kept, those accepted whole included."""
    speed_up: float
    """Expected, over the target alone."""


@dataclass(frozen=True)
class Found:
    """What the records say."""

    cases: tuple[Case, ...]
    auc: Auc
    fitted: Fit | None
    threshold: Threshold | None
    most: int
    """Number of boundaries of the least expected time."""
    expected: float | None
    """Speed-up with this judge at the threshold."""
    ceiling: float
    """With a judge that is never wrong."""
    table: tuple[Row, ...]
    fallback: str | None


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
    """One record for each question, as its draft is judged."""
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
            for place, result in as_they_end(events):
                one = labelled[place]
                record = scoring.judged(one, result.text) | {"finish_reason": result.finish_reason, **evidence[place]}
                record["target"] = _own_answer(pair.target, one, settings, scoring) if settings.with_target else None
                yield record
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


def _own_answer(target: Engine, one: Labelled, settings: JudgingSettings, scoring: Scoring) -> Record:
    prompt, raw = prompt_of(one, target, raw=settings.raw)
    [result] = target.generate(prompt, raw=raw, max_new_tokens=settings.max_new_tokens)
    return {"tokens": len(result.tokens), "correct": scoring.judged(one, result.text)["correct"]}


def costs_of(pair: Pair, chunk: int) -> Costs | None:
    """Measured prices of both models; None where nobody can measure."""
    target, draft = pair.target.costs, None if pair.draft is None else pair.draft.costs
    if target is None or draft is None:
        return None
    return Costs(Rates(target.seconds, chunk), Rates(draft.seconds, chunk))


def judge_of(records: Sequence[Record], settings: JudgingSettings, costs: Costs | None) -> Found:
    """What the records say of the judge, and the settings that they allow.

    With a likelihood two features are fitted, on the first half of the records, so that the threshold is chosen on
    drafts that the fit has not seen; one feature keeps the order of the drafts, whatever is fitted.
    """
    judged = [record for record in records if record["odds"]]
    if not judged:
        raise InputError("no draft could be judged: all are empty, or too long for the target's context")
    two = settings.judge.likelihood != 0.0
    if two and len(judged) < 4:
        raise InputError("a likelihood needs at least 4 judged drafts, half of them to fit it")
    half = len(judged) // 2 if two else len(judged)
    fitted = fit(
        [record["odds"][-1] for record in judged[:half]],
        [record["means"][-1] for record in judged[:half]] if two else None,
        [record["correct"] for record in judged[:half]],
    )
    rest = judged[half:] if two else judged
    used = fitted or Fit(1.0, 0.0, 0.0)
    cases = tuple(_case(record, settings, used) for record in rest)
    right, whole = [case.right for case in cases], [case.whole for case in cases]
    area = auc(whole, right)
    threshold = choose_threshold(whole, right, bound=settings.bound, confidence=settings.confidence)
    priced = costs or Costs(Rates(lambda nodes: 1.0), Rates(lambda nodes: 1.0))
    limit = threshold.value if threshold is not None else max(whole)
    speeds = {most: speed_up(cases, by_confidence(limit, most), priced) for most in SPACINGS}
    most = max(speeds, key=lambda count: (speeds[count], -count))
    expected = speeds[most] if threshold is not None and costs is not None else None
    return Found(
        cases=cases,
        auc=area,
        fitted=fitted,
        threshold=threshold,
        most=most,
        expected=expected,
        ceiling=speed_up(cases, perfect, priced),
        table=_table(cases, limit, priced),
        fallback=_fallback(settings, area, fitted, threshold, expected),
    )


def _case(record: Record, settings: JudgingSettings, used: Fit) -> Case:
    confidences = tuple(used.confidence(odds, mean) for odds, mean in zip(record["odds"], record["means"], strict=True))
    own = record["target"]
    return Case(
        right=record["correct"],
        prompt=record["prompt"],
        before=record["before"],
        suffix=record["suffix"],
        draft=record["draft_tokens"],
        draft_own=record["draft_own_tokens"],
        target=record["draft_tokens"] if own is None else own["tokens"],
        ends=tuple(record["ends"]),
        confidences=confidences,
        again=record["prompt"] if settings.judge.layout == "prompt" else 0,
    )


def _fallback(
    settings: JudgingSettings, area: Auc, fitted: Fit | None, threshold: Threshold | None, expected: float | None
) -> str | None:
    """Why the target should answer alone."""
    many = area.right + area.wrong
    if area.interval.low <= 0.5 or fitted is None:
        low, high = area.interval
        return (
            f"the judge is too weak: AUC {area.value:.2f} (95% interval {low:.2f} to {high:.2f}, {area.right} right "
            f"and {area.wrong} wrong drafts)"
        )
    if threshold is None:
        needed = fewest(settings.bound, settings.confidence)
        more = f"; {needed} questions are needed at least" if many < needed else ""
        return (
            f"no threshold keeps accepted wrong answers under {settings.bound:.1%} with {settings.confidence:.0%} "
            f"confidence on {many} drafts{more}"
        )
    if expected is not None and expected <= FASTER:
        return f"judging does not pay: {expected:.2f} times the target's own speed is expected"
    return None


def _table(cases: Sequence[Case], chosen: float, costs: Costs) -> tuple[Row, ...]:
    ranked = sorted(case.whole for case in cases)
    quantiles = {ranked[(len(ranked) - 1) * part // 4] for part in range(4)}
    thresholds = sorted({0.0, chosen, *quantiles})
    return tuple(_row(cases, threshold, most, costs) for threshold in thresholds for most in SPACINGS)


def _row(cases: Sequence[Case], threshold: float, most: int, costs: Costs) -> Row:
    right = [case for case in cases if case.right]
    wrong = [case for case in cases if not case.right]

    def accepted(some: Sequence[Case]) -> float:
        return sum(case.whole > threshold for case in some) / max(1, len(some))

    def kept(some: Sequence[Case]) -> float:
        tokens = sum(case.draft if case.whole > threshold else case.kept(threshold, most)[0] for case in some)
        return tokens / max(1, sum(case.draft for case in some))

    pieces = sum(min(most, len(case.ends)) + 1 for case in cases)
    return Row(
        threshold=threshold,
        most=most,
        spacing=sum(case.draft for case in cases) / pieces,
        accepted=accepted(cases),
        false_accept=accepted(wrong),
        false_reject=1.0 - accepted(right) if right else 0.0,
        right_thrown_away=1.0 - kept(right) if right else 0.0,
        wrong_kept=kept(wrong),
        speed_up=speed_up(cases, by_confidence(threshold, most), costs),
    )


def _told(
    settings: JudgingSettings, found: Found, pair: Pair, labelled: Sequence[Labelled], records: Sequence[Record]
) -> dict[str, Any]:
    used, threshold = found.fitted or Fit(1.0, 0.0, 0.0), found.threshold
    judge = replace(settings.judge, **asdict(used))
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
