"""The comparison of strict and relaxed decoding, from the records of `run_quality`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from betoken.bench.metrics import Interval, paired
from betoken.bench.results import Record

DRIFT = 0.03
"""Most difference between the two strict passes for the speed to be trusted (arXiv 2608.03447)."""
LENGTH = 0.03
"""Most change of the mean completion length (same source)."""

Verdict = Literal["kept", "lost", "cannot tell", "not judged"]


@dataclass(frozen=True)
class SpeedReport:
    """Three timed passes over the same prompts at the same length."""

    strict_tokens_per_s: tuple[float, float]
    """Before and after the relaxed pass; prefill apart."""
    relaxed_tokens_per_s: float
    ratio: float
    """Relaxed over strict: the mean time of the strict passes over the relaxed one's."""
    drift: float
    """Second strict pass over the first, minus 1."""
    strict_tokens_per_forward: float
    relaxed_tokens_per_forward: float
    strict_equal: bool
    """Whether both strict passes gave the same tokens."""

    @property
    def steady(self) -> bool:
        """Whether the machine held its speed, so that the ratio can be trusted."""
        return abs(self.drift) <= DRIFT


@dataclass(frozen=True)
class AccuracyReport:
    """Answers of both sides to the same questions."""

    suite: str
    answers: int
    judged: bool
    """Whether right and wrong are told apart; otherwise the answers are only compared."""
    strict_correct: int
    relaxed_correct: int
    lost: int
    """Answers that only strict decoding got right."""
    gained: int
    """Answers that only relaxed decoding got right."""
    interval: Interval
    """95% interval of the difference of the accuracies, relaxed minus strict; -1 to 1 where nothing is judged."""
    differing: int
    """Answers whose tokens differ."""
    strict_mean_tokens: float
    relaxed_mean_tokens: float
    strict_tokens_per_forward: float
    relaxed_tokens_per_forward: float
    exceptions: int
    """Tokens that strict decoding would not have committed."""
    regret: float
    """Their regret in all."""
    verdict: Verdict
    """Kept or lost if the whole interval lies above or below minus the margin; otherwise the sample is too small."""

    @property
    def difference(self) -> float:
        """Accuracy of relaxed minus accuracy of strict."""
        return (self.relaxed_correct - self.strict_correct) / self.answers

    @property
    def length_change(self) -> float:
        """Mean completion length, relaxed over strict, minus 1."""
        return self.relaxed_mean_tokens / self.strict_mean_tokens - 1.0

    def describe(self) -> dict[str, Any]:
        """The report as JSON values."""
        told = asdict(self) | {"difference": self.difference, "length_change": self.length_change}
        return told | {"interval": list(self.interval), "differing_share": self.differing / self.answers}


@dataclass(frozen=True)
class QualityReport:
    """What the audit found."""

    speed: SpeedReport
    suites: tuple[AccuracyReport, ...]
    """Each suite, and after several of them all that are judged together."""
    margin: float

    @property
    def overall(self) -> AccuracyReport:
        """All suites that are judged, together."""
        return self.suites[-1]

    def describe(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "speed": asdict(self.speed) | {"steady": self.speed.steady},
            "accuracy": [one.describe() for one in self.suites],
            "margin": self.margin,
            "verdict": self.overall.verdict,
        }


def judge(interval: Interval, margin: float) -> Verdict:
    """Whether an accuracy was kept within the margin, by the interval of its change."""
    if interval.low >= -margin:
        return "kept"
    return "lost" if interval.high < -margin else "cannot tell"


def summarise(records: Sequence[Record], margin: float) -> QualityReport:
    """The report of a complete set of records."""
    judged = [record for record in records if record["phase"] == "accuracy"]
    names = list(dict.fromkeys(record["suite"] for record in judged))
    reports = [_accuracy(name, [one for one in judged if one["suite"] == name], margin) for name in names]
    if len(names) > 1:
        scored = [record for record in judged if record["correct"] is not None]
        reports.append(_accuracy("all", scored or judged, margin))
    return QualityReport(_speed([one for one in records if one["phase"] == "speed"]), tuple(reports), margin)


def _speed(records: Sequence[Record]) -> SpeedReport:
    passes = {
        name: sorted((one for one in records if one["pass"] == name), key=lambda one: int(one["group"]))
        for name in ("strict 1", "relaxed", "strict 2")
    }
    first, relaxed, second = (sum(one["decode_s"] for one in own) for own in passes.values())
    tokens = [sum(one["tokens"] for one in own) for own in passes.values()]
    texts = [[row["sha256"] for one in own for row in one["rows"]] for own in passes.values()]
    return SpeedReport(
        strict_tokens_per_s=(tokens[0] / first, tokens[2] / second),
        relaxed_tokens_per_s=tokens[1] / relaxed,
        ratio=(tokens[1] / relaxed) / ((tokens[0] + tokens[2]) / (first + second)),
        drift=(tokens[2] / second) / (tokens[0] / first) - 1.0,
        strict_tokens_per_forward=_per_forward([*passes["strict 1"], *passes["strict 2"]]),
        relaxed_tokens_per_forward=_per_forward(passes["relaxed"]),
        strict_equal=texts[0] == texts[2],
    )


def _per_forward(records: Sequence[Record]) -> float:
    rows = [row for record in records for row in record["rows"]]
    return float(sum(row["tokens"] for row in rows) / sum(row["forwards"] for row in rows))


def _accuracy(suite: str, records: Sequence[Record], margin: float) -> AccuracyReport:
    strict = {one["question"]: one for one in records if one["pass"] == "strict"}
    relaxed = {one["question"]: one for one in records if one["pass"] == "relaxed"}
    pairs = [(own, relaxed[question]) for question, own in strict.items()]
    told = all(own["correct"] is not None for own, _ in pairs)
    lost = sum(bool(own["correct"]) and not other["correct"] for own, other in pairs)
    gained = sum(bool(other["correct"]) and not own["correct"] for own, other in pairs)
    interval = paired(lost, gained, len(pairs) if told else 0)
    tokens = [sum(one["tokens"] for one in side.values()) for side in (strict, relaxed)]
    forwards = [sum(one["forwards"] for one in side.values()) for side in (strict, relaxed)]
    return AccuracyReport(
        suite=suite,
        answers=len(pairs),
        judged=told,
        strict_correct=sum(bool(own["correct"]) for own, _ in pairs),
        relaxed_correct=sum(bool(other["correct"]) for _, other in pairs),
        lost=lost,
        gained=gained,
        interval=interval,
        differing=sum(own["sha256"] != other["sha256"] for own, other in pairs),
        strict_mean_tokens=tokens[0] / len(pairs),
        relaxed_mean_tokens=tokens[1] / len(pairs),
        strict_tokens_per_forward=tokens[0] / forwards[0],
        relaxed_tokens_per_forward=tokens[1] / forwards[1],
        exceptions=sum(other["exceptions"] for _, other in pairs),
        regret=sum(other["regret"] for _, other in pairs),
        verdict=judge(interval, margin) if told else "not judged",
    )
