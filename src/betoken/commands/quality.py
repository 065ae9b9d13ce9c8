"""`betoken audit quality`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands.evaluate import method_of, warn_of_gaps
from betoken.commands.progress import counting

if TYPE_CHECKING:
    from betoken.tuning.quality import QualitySettings
    from betoken.tuning.quality_report import AccuracyReport, QualityReport


def quality(
    suite: Annotated[list[str], typer.Option(help="File or name. Repeat it.")],
    model: Annotated[str, typer.Option(help="Store name, folder, GGUF file or Hub id.")] = "smollm2-135m",
    draft_model: Annotated[str | None, typer.Option(help="For the drafter draft-model.")] = None,
    drafter: Annotated[str | None, typer.Option(help="Default: suffix, or draft-model with --draft-model.")] = None,
    verifier: Annotated[str, typer.Option(help="A relaxed verifier.")] = "asd",
    setting: Annotated[list[str] | None, typer.Option("--set", help="drafter.KEY=VALUE or verifier.KEY=VALUE.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of named suites; else $BETOKEN_DATA.")] = None,
    rows: Annotated[int | None, typer.Option(help="Judged answers of each suite; all if not given.")] = None,
    without: Annotated[
        list[Path] | None, typer.Option(help="Leave out the rows that made this file of betoken calibrate asd.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most new tokens of a judged answer.")] = 512,
    batch: Annotated[int, typer.Option(help="Judged answers decoded together.")] = 8,
    speed_rows: Annotated[int, typer.Option(help="Prompts of each timed pass.")] = 8,
    speed_batch: Annotated[int, typer.Option(help="Prompts decoded together in a timed pass.")] = 1,
    fixed_tokens: Annotated[int, typer.Option(help="New tokens of each prompt in a timed pass.")] = 256,
    margin: Annotated[float, typer.Option(help="Points of accuracy that may be lost and still count as kept.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    nodes: Annotated[str, typer.Option(help="Most nodes that a step scores, or auto.")] = "8",
    raw: Annotated[bool, typer.Option("--raw", help="Plain text instead of the chat template.")] = False,
    dtype: Annotated[str | None, typer.Option(help="int8, float32 or bfloat16.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Cores to use; all of them if not given.")] = None,
    out: Annotated[Path | None, typer.Option(help="Result file; the same command continues it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What does a relaxed verifier cost and bring? Strict, relaxed, strict for speed; then judged answers of both.

    Strict is the same verifier with a budget of 0. The verdict is kept, lost, or cannot tell at this sample size,
    by the 95% interval of the paired difference. Exit code 1 if accuracy was lost, 0 otherwise.
    """
    from betoken.bench.subject import ModelSpec
    from betoken.bench.suites import find_suite
    from betoken.tuning.quality import QualitySettings

    settings = QualitySettings(
        model=ModelSpec(model, draft_model, dtype, device, threads),
        method=method_of(draft_model, drafter, verifier, setting or [], nodes),
        suites=tuple(find_suite(name, data) for name in suite),
        rows=rows,
        max_new_tokens=max_new_tokens,
        batch=batch,
        speed_rows=speed_rows,
        speed_batch=speed_batch,
        fixed_tokens=fixed_tokens,
        margin=margin / 100,
        seed=seed,
        raw=raw,
        without=tuple(without or ()),
    )
    with tempfile.TemporaryDirectory() as scratch:
        report = _run(settings, out or Path(scratch) / "quality.jsonl", kept=out is not None)
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
    return (
        f"{one.suite}: {verdict} (margin {100 * margin:g} points); {one.strict_correct} strict and "
        f"{one.relaxed_correct} relaxed of {one.answers} right, {one.lost} lost and {one.gained} gained: "
        f"{100 * one.difference:+.1f} points, 95% interval {low:+.1f} to {high:+.1f}; "
        f"{100 * one.differing / one.answers:.1f} % of answers differ, length {100 * one.length_change:+.1f} %, "
        f"{one.strict_tokens_per_forward:.3f} and {one.relaxed_tokens_per_forward:.3f} tokens a forward; "
        f"{one.exceptions} exceptions of regret {one.regret:.3f}"
    )


def _run(settings: QualitySettings, out: Path, *, kept: bool) -> QualityReport:
    from betoken.bench.subject import load_subject
    from betoken.tuning.quality import run_quality

    warn_of_gaps(settings.suites)
    resume = f"the same command continues {out}" if kept else "use --out FILE to be able to continue"
    with counting(resume) as progress:
        return run_quality(settings, load_subject, out, progress)
