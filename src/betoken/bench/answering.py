"""How many answers of two models are right, how much of the drafts is kept, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from betoken.answers import check, stream_all
from betoken.bench.evaluation import Evaluation, Numbered, Report, Scoring, complete, counted
from betoken.bench.held_out import check_config
from betoken.bench.metrics import Interval, bootstrap, percentile, wilson
from betoken.bench.pair import Pair, PairLoader, as_they_end, prompt_of
from betoken.bench.results import Progress, Record
from betoken.bench.suites import Labelled
from betoken.bench.trial import digest
from betoken.settings import GenerationSettings

STATS = (
    "accepted_whole",
    "kept_fraction",
    "confidence",
    "prefix_confidences",
    "draft_tokens",
    "kept_tokens",
    "target_tokens",
    "target_forwards",
    "judge_forwards",
    "judge_nodes",
    "draft_s",
    "judge_s",
    "target_s",
    "total_s",
    "resumed",
    "fallback",
)
"""Of an answer's statistics, those that a record keeps."""


@dataclass(frozen=True, kw_only=True)
class AnswerEvalSettings(Evaluation):
    """What two models are asked; `method` is how both decode."""

    answering: str
    """A name of `answers.METHODS`. `model` names a draft model if it needs one."""
    answering_settings: Mapping[str, object] = field(default_factory=dict)
    batch: int = 1
    """Most questions that are answered together; their times are shared then."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.answering, self.answering_settings, has_draft=self.model.draft_model is not None)

    def questions(self) -> list[Labelled]:
        """The rows of every suite. Raises InputError for a suite without a scorer, and for rows that chose settings."""
        found = super().questions()
        check_config(self.answering_settings, [one.question for one in found])
        return found


@dataclass(frozen=True, kw_only=True)
class AnswerReport(Report):
    """How a suite went."""

    answering: str
    accepted_whole: float
    """Share of drafts that are the answer."""
    accepted_interval: Interval
    accepted_wrong: int
    """Answers that are wrong and were accepted whole."""
    kept_fraction: float
    """Mean share of a draft that is kept."""
    kept_interval: Interval
    """95% bootstrap interval."""
    judge_nodes_per_token: float
    """Tokens scored to judge, for each token of the answers."""
    all_rejected: float | None
    """Times the target alone, if every draft were rejected from its first token: (draft + judge + target) / target.
    None where the target wrote nothing to time it by."""
    latency_p50_s: float
    latency_p95_s: float
    tokens_per_s: float
    """Tokens of all answers / seconds of all, prefills included."""
    fallbacks: int
    """Answers that the target wrote alone because the calibration says so."""


def run_answers(
    settings: AnswerEvalSettings,
    load: PairLoader,
    out: Path,
    progress: Progress = lambda done, total, what: None,
) -> list[AnswerReport]:
    """Answer what `out` does not hold yet, and report each suite over all its rows.

    An interruption loses the answers under way, nothing else. Raises InputError for a result file of other settings,
    and for what loader, models and methods refuse.
    """
    drafts = check(settings.answering, settings.answering_settings, has_draft=True)
    model = settings.model if drafts else settings.model.alone()

    def answer(left: list[Numbered]) -> Iterator[Record]:
        return records(load(model, settings.method), settings, left)

    found = complete(settings, answer, out, progress)
    return [summarise(suite, settings.answering, own) for suite, own in found.items()]


def records(pair: Pair, settings: AnswerEvalSettings, numbered: Sequence[Numbered]) -> Iterator[Record]:
    """Scored answers as they end; `numbered`: rows with their index in the draw."""
    prompts = [prompt_of(one, pair.target, raw=settings.raw) for _, one in numbered]
    events = stream_all(
        [prompt for prompt, _ in prompts],
        method=settings.answering,
        target=pair.target,
        draft=pair.draft,
        batch=settings.batch,
        raw=any(raw for _, raw in prompts),
        method_settings=settings.answering_settings,
        settings=[
            GenerationSettings(
                max_new_tokens=settings.max_new_tokens, temperature=settings.temperature, seed=settings.seed + index
            )
            for index, _ in numbered
        ],
    )
    with Scoring(one for _, one in numbered) as scoring:
        try:
            for place, result in as_they_end(events):
                stats = asdict(result.stats)
                yield {
                    **scoring.judged(numbered[place][1], result.text),
                    "tokens": len(result.tokens),
                    "sha256": digest(result.tokens),
                    "finish_reason": result.finish_reason,
                    **{name: stats[name] for name in STATS},
                    "plan": None
                    if result.stats.plan is None
                    else [result.stats.plan.layout, result.stats.plan.passes, len(result.stats.plan.ends)],
                }
        finally:
            events.close()


def summarise(suite: str, answering: str, own: Sequence[Record]) -> AnswerReport:
    """The report of one suite from its records."""

    def total(name: str) -> float:
        return float(sum(record[name] for record in own))

    accepted = int(total("accepted_whole"))
    tokens, seconds, kept = total("tokens"), total("total_s"), [record["kept_fraction"] for record in own]
    by_target = total("target_s") / total("target_tokens") if total("target_tokens") else None
    return AnswerReport(
        **counted(suite, own),
        answering=answering,
        accepted_whole=accepted / len(own),
        accepted_interval=wilson(accepted, len(own)),
        accepted_wrong=sum(record["accepted_whole"] and not record["correct"] for record in own),
        kept_fraction=sum(kept) / len(own),
        kept_interval=bootstrap(kept, "mean"),
        judge_nodes_per_token=total("judge_nodes") / max(tokens, 1.0),
        all_rejected=1.0 + (total("draft_s") + total("judge_s")) / (tokens * by_target) if by_target else None,
        latency_p50_s=percentile([record["total_s"] for record in own], 50),
        latency_p95_s=percentile([record["total_s"] for record in own], 95),
        tokens_per_s=tokens / seconds if seconds else 0.0,
        fallbacks=sum(record["fallback"] is not None for record in own),
    )
