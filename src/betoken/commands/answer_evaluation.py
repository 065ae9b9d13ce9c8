"""`betoken eval --method`: accuracy and cost of answers of two models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from betoken.commands import options
from betoken.commands.groups import OneMethod, Questions, method_of
from betoken.commands.progress import counting
from betoken.commands.scoring import result_file, right, unextracted, warn_of_gaps
from betoken.errors import InputError

if TYPE_CHECKING:
    from betoken.bench.answering import AnswerReport


def evaluate(
    answering: str,
    asked: Questions,
    decoding: OneMethod,
    temperature: float,
    letters: str,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Ask, and print one line or one JSON object a suite. Raises InputError for options that do not fit."""
    if letters != "text":
        raise InputError("--letters logits writes no answer, so it has no --method")
    from betoken.bench import pair
    from betoken.bench.answering import AnswerEvalSettings, run_answers

    texts = decoding.set_ or []
    own = options.parse_set([text for text in texts if text.startswith("answer.")], ("answer",))["answer"]
    writing = [text for text in texts if not text.startswith("answer.")]
    settings = AnswerEvalSettings(
        model=decoding.spec(),
        answering=answering,
        method=method_of(None, decoding.drafter, decoding.verifier or "replay", writing, decoding.nodes),
        answering_settings=own,
        temperature=temperature,
        **asked.settings(),
    )
    warn_of_gaps(settings.suites)
    with result_file(out) as (place, resume):
        with counting(resume) as progress:
            reports = run_answers(settings, pair.load_pair, place, progress)
        for report in reports:
            typer.echo(json.dumps(report.describe(), ensure_ascii=False) if as_json else told(report))


def told(report: AnswerReport) -> str:
    """One paragraph for a suite."""
    first = (
        f"{report.suite}, {report.answering}: {right(report)}; {report.mean_tokens:.1f} tokens an answer, "
        f"{report.tokens_per_s:.2f}/s; latency p50 {report.latency_p50_s:.2f} s, p95 {report.latency_p95_s:.2f} s"
        f"{unextracted(report)}"
    )
    if report.fallbacks:
        first += f"; the target answered {report.fallbacks} alone, as the calibration says"
    if report.answering in ("draft", "target") or report.fallbacks == report.answers:
        return first
    (low, high), (least, most) = report.accepted_interval, report.kept_interval
    rejected = (
        "" if report.all_rejected is None else f"; all rejected would take {report.all_rejected:.2f} x the target"
    )
    return (
        f"{first}\n  accepted whole {report.accepted_whole:.1%} ({100 * low:.1f} to {100 * high:.1f}), "
        f"{report.accepted_wrong} of them wrong; kept {report.kept_fraction:.1%} of a draft ({100 * least:.1f} to "
        f"{100 * most:.1f}); {report.judge_nodes_per_token:.2f} judge tokens an answer token{rejected}"
    )
