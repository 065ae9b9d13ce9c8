"""From what a judge said of labelled drafts to the settings that its records allow, and what they would bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from betoken.answers.plan import Rates
from betoken.bench.results import Record
from betoken.errors import InputError
from betoken.tuning.ceiling import Case, Costs, by_confidence, perfect, speed_up
from betoken.tuning.judges import Auc, Fit, Threshold, auc, choose_threshold, fewest, fit

if TYPE_CHECKING:
    from betoken.tuning.judging import JudgingSettings

SPACINGS = (0, 1, 2, 4, 8, 16, 32)
"""Most boundaries of a draft, for the table."""
FASTER = 1.0
"""Least expected speed-up for which judging is worth its risk."""


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
    signals: Mapping[str, Auc]
    """What each kind of evidence tells alone, over all judged drafts."""


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
        signals=_signals(judged, two=two),
    )


def _signals(judged: Sequence[Record], *, two: bool) -> dict[str, Auc]:
    kinds = {"verdict": "odds"} | ({"mean log-probability": "means"} if two else {})
    right = [record["correct"] for record in judged]
    return {name: auc([record[key][-1] for record in judged], right) for name, key in kinds.items()}


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
