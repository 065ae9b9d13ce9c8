"""`betoken audit quality`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands import options
from betoken.commands.groups import OneMethod, Questions, grouped
from betoken.commands.progress import counting
from betoken.commands.scoring import result_file, warn_of_gaps

if TYPE_CHECKING:
    from betoken.tuning.quality_report import AccuracyReport, QualityReport


@dataclass(frozen=True, kw_only=True)
class RelaxedMethod(OneMethod):
    """Which models are judged, with a way of decoding that is not lossless."""

    verifier: Annotated[str, typer.Option("--verifier", help="A relaxed verifier.")] = "asd"


@grouped
def quality(
    asked: Questions,
    decoding: RelaxedMethod,
    speed_rows: Annotated[int, typer.Option(help="Prompts of each timed pass.")] = 8,
    speed_batch: Annotated[int, typer.Option(help="Prompts decoded together in a timed pass.")] = 1,
    fixed_tokens: Annotated[int, typer.Option(help="New tokens of each prompt in a timed pass.")] = 256,
    margin: Annotated[float, typer.Option(help="Points of accuracy that may be lost and still count as kept.")] = 1.0,
    out: options.Out = None,
    as_json: options.AsJson = False,
) -> None:
    """What does a relaxed verifier cost and bring? Strict, relaxed, strict for speed; then judged answers of both.

    Strict is the same verifier with a budget of 0. The verdict is kept, lost, or cannot tell at this sample size,
    by the 95% interval of the paired difference. Exit code 1 if accuracy was lost, 0 otherwise.
    """
    from betoken.bench.subject import load_subject
    from betoken.tuning.quality import QualitySettings, run_quality

    settings = QualitySettings(
        model=decoding.spec(),
        method=decoding.method(),
        speed_rows=speed_rows,
        speed_batch=speed_batch,
        fixed_tokens=fixed_tokens,
        margin=margin / 100,
        **asked.settings(),
    )
    warn_of_gaps(settings.suites)
    with result_file(out) as (place, resume), counting(resume) as progress:
        report = run_quality(settings, load_subject, place, progress)
    typer.echo(json.dumps(report.describe(), ensure_ascii=False) if as_json else told(report))
    if report.overall.verdict == "lost":
        raise typer.Exit(1)


def told(report: QualityReport) -> str:
    """A line for the speed, and one for each suite."""
    speed = report.speed
    before, after = speed.strict_tokens_per_s
    lines = [
        f"speed at a fixed length: {speed.ratio:.3f} times strict; {before:.2f} tokens/s strict, "
        f"{speed.relaxed_tokens_per_s:.2f} relaxed, {after:.2f} strict again (drift {100 * speed.drift:+.1f} %); "
        f"{speed.strict_tokens_per_forward:.3f} and {speed.relaxed_tokens_per_forward:.3f} tokens a forward"
    ]
    if not speed.steady:
        lines.append("  the two strict passes differ by more than 3 %: the machine was not steady, so do not trust it")
    if not speed.strict_equal:
        lines.append("  the two strict passes gave DIFFERENT TOKENS: strict is not exact on this target")
    return "\n".join([*lines, *(_told_suite(one, report.margin) for one in report.suites)])


def _told_suite(one: AccuracyReport, margin: float) -> str:
    low, high = (100 * end for end in one.interval)
    verdict = "cannot tell at this sample size" if one.verdict == "cannot tell" else one.verdict
    accuracy = (
        f"{verdict} (margin {100 * margin:g} points); {one.strict_correct} strict and "
        f"{one.relaxed_correct} relaxed of {one.answers} right, {one.lost} lost and {one.gained} gained: "
        f"{100 * one.difference:+.1f} points, 95% interval {low:+.1f} to {high:+.1f}"
    )
    return (
        f"{one.suite}: {accuracy if one.judged else f'{one.answers} answers, not judged'}; "
        f"{100 * one.differing / one.answers:.1f} % of answers differ, length {100 * one.length_change:+.1f} %, "
        f"{one.strict_tokens_per_forward:.3f} and {one.relaxed_tokens_per_forward:.3f} tokens a forward; "
        f"{one.exceptions} exceptions of regret {one.regret:.3f}"
    )
