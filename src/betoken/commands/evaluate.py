"""`betoken eval`: accuracy on suites."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands import answer_evaluation, options
from betoken.commands.groups import OneMethod, Questions, grouped
from betoken.commands.progress import counting
from betoken.errors import InputError

if TYPE_CHECKING:
    from betoken.bench.evaluate import EvalSettings, SuiteReport

HELP = """How many answers are right? Accuracy with 95% Wilson intervals, and what decoding took.

GSM8K, MATH-500, MMLU, HumanEval and MBPP. Generated code runs in a process without network, time or memory to
spare, and with no way to write outside an empty folder.

[bold]Examples[/bold]

  betoken eval --suite gsm8k --data FOLDER --rows 100 --out gsm8k.jsonl

  betoken eval --suite mmlu --suite humaneval --drafter suffix --verifier asd --set verifier.budget=4

  betoken eval --suite gsm8k --method parse --model qwen2.5-coder-1.5b --draft-model qwen2.5-coder-0.5b \
--set answer.config=parse.json --without parse.json --batch 1"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="eval", help=HELP)(evaluate)


@grouped
def evaluate(
    asked: Questions,
    decoding: OneMethod,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    letters: Annotated[
        str, typer.Option(help="MMLU: text reads the answer's letter, logits compares the first token's four.")
    ] = "text",
    answering: Annotated[
        str | None,
        typer.Option("--method", help="A method of betoken answer; --draft-model writes whole answers then."),
    ] = None,
    out: options.Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a suite.")] = False,
) -> None:
    if letters not in ("text", "logits"):
        raise InputError(f"--letters must be text or logits, not {letters}")
    if answering is not None:
        answer_evaluation.evaluate(answering, asked, decoding, temperature, letters, out, as_json=as_json)
        return
    from betoken.bench.evaluate import EvalSettings

    settings = EvalSettings(
        model=decoding.spec(),
        method=decoding.method(),
        suites=asked.paths(),
        rows=asked.rows,
        max_new_tokens=asked.max_new_tokens,
        temperature=temperature,
        seed=asked.seed,
        batch=asked.batch,
        raw=asked.raw,
        letters="logits" if letters == "logits" else "text",
        without=tuple(asked.without or ()),
    )
    with tempfile.TemporaryDirectory() as scratch:
        for report in _run(settings, out or Path(scratch) / "eval.jsonl", kept=out is not None):
            typer.echo(json.dumps(report.describe(), ensure_ascii=False) if as_json else told(report))
    if out is not None:
        typer.echo(f"{out}", err=True)


def told(report: SuiteReport) -> str:
    """One line for a suite."""
    low, high = report.interval
    line = (
        f"{report.suite}: {100 * report.accuracy:.1f} % right ({report.correct} of {report.answers}, 95% interval "
        f"{100 * low:.1f} to {100 * high:.1f}); {report.tokens_per_forward:.3f} tokens a forward, "
        f"{report.mean_tokens:.1f} tokens an answer, {100 * report.cut / report.answers:.1f} % cut at the limit"
    )
    if report.unextracted:
        line += f"; no answer found in {report.unextracted}"
    if report.exceptions:
        line += f"; {report.exceptions} tokens that plain decoding would not have written, regret {report.regret:.3f}"
    return line


def warn_of_gaps(suites: Sequence[Path]) -> None:
    """Say on standard error what the kernel does not keep generated code from, before any runs."""
    from betoken.bench.scorers.sandbox import gaps
    from betoken.bench.suites import read_labelled

    if any(read_labelled(path)[0].format in ("humaneval", "mbpp") for path in suites) and (gap := gaps()):
        typer.echo(f"note: {gap}", err=True)


def resume_by(out: Path, *, kept: bool) -> str:
    """How an interrupted evaluation goes on."""
    return f"the same command continues {out}" if kept else "use --out FILE to be able to continue"


def _run(settings: EvalSettings, out: Path, *, kept: bool) -> list[SuiteReport]:
    from betoken.bench.evaluate import run_eval
    from betoken.bench.subject import load_subject

    warn_of_gaps(settings.suites)
    with counting(resume_by(out, kept=kept)) as progress:
        return run_eval(settings, load_subject, out, progress)
