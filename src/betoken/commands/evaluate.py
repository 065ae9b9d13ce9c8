"""`betoken eval`: accuracy on suites."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands import answer_evaluation, options
from betoken.commands.groups import OneMethod, Questions, grouped
from betoken.commands.progress import counting
from betoken.commands.scoring import result_file, right, unextracted, warn_of_gaps
from betoken.errors import InputError

if TYPE_CHECKING:
    from betoken.bench.evaluate import SuiteReport

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
    from betoken.bench.evaluate import EvalSettings, run_eval
    from betoken.bench.subject import load_subject

    settings = EvalSettings(
        model=decoding.spec(),
        method=decoding.method(),
        temperature=temperature,
        letters="logits" if letters == "logits" else "text",
        **asked.settings(),
    )
    warn_of_gaps(settings.suites)
    with result_file(out) as (place, resume):
        with counting(resume) as progress:
            reports = run_eval(settings, load_subject, place, progress)
        for report in reports:
            typer.echo(json.dumps(report.describe(), ensure_ascii=False) if as_json else told(report))


def told(report: SuiteReport) -> str:
    """One line for a suite."""
    line = (
        f"{report.suite}: {right(report)}; {report.tokens_per_forward:.3f} tokens a forward, "
        f"{report.mean_tokens:.1f} tokens an answer, {100 * report.cut / report.answers:.1f} % cut at the limit"
        f"{unextracted(report)}"
    )
    if report.exceptions:
        line += f"; {report.exceptions} tokens that plain decoding would not have written, regret {report.regret:.3f}"
    return line
