"""`betoken eval`: accuracy on suites."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands.options import parse_set
from betoken.commands.progress import counting
from betoken.errors import InputError

if TYPE_CHECKING:
    from betoken.bench.evaluate import EvalSettings, SuiteReport
    from betoken.bench.subject import Method

HELP = """How many answers are right? Accuracy with 95% Wilson intervals, and what decoding took.

GSM8K, MATH-500, MMLU, HumanEval and MBPP. Generated code runs in a process without network, time or memory to
spare, and with no way to write outside an empty folder.

[bold]Examples[/bold]

  betoken eval --suite gsm8k --data FOLDER --rows 100 --out gsm8k.jsonl

  betoken eval --suite mmlu --suite humaneval --drafter suffix --verifier asd --set verifier.budget=4"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="eval", help=HELP)(evaluate)


def evaluate(
    suite: Annotated[list[str], typer.Option(help="File or name. Repeat it.")],
    model: Annotated[str, typer.Option(help="Store name, folder, GGUF file or Hub id.")] = "smollm2-135m",
    draft_model: Annotated[str | None, typer.Option(help="For the drafter draft-model.")] = None,
    drafter: Annotated[str | None, typer.Option(help="Default: suffix, or draft-model with --draft-model.")] = None,
    verifier: Annotated[str, typer.Option(help="What keeps a path of each tree.")] = "replay",
    setting: Annotated[list[str] | None, typer.Option("--set", help="drafter.KEY=VALUE or verifier.KEY=VALUE.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of named suites; else $BETOKEN_DATA.")] = None,
    rows: Annotated[int | None, typer.Option(help="Questions of each suite; all of them if not given.")] = None,
    without: Annotated[
        list[Path] | None, typer.Option(help="Leave out the rows that made this file of betoken calibrate asd.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most new tokens of an answer.")] = 512,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the draw and of the sampling.")] = 0,
    batch: Annotated[int, typer.Option(help="Rows decoded together.")] = 8,
    nodes: Annotated[str, typer.Option(help="Most nodes that a step scores, or auto.")] = "8",
    raw: Annotated[bool, typer.Option("--raw", help="Plain text instead of the chat template.")] = False,
    letters: Annotated[
        str, typer.Option(help="MMLU: text reads the answer's letter, logits compares the first token's four.")
    ] = "text",
    dtype: Annotated[str | None, typer.Option(help="int8, float32 or bfloat16.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Cores to use; all of them if not given.")] = None,
    out: Annotated[Path | None, typer.Option(help="File of all answers; the same command continues it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a suite.")] = False,
) -> None:
    if letters not in ("text", "logits"):
        raise InputError(f"--letters must be text or logits, not {letters}")
    from betoken.bench.evaluate import EvalSettings
    from betoken.bench.subject import ModelSpec
    from betoken.bench.suites import find_suite

    settings = EvalSettings(
        model=ModelSpec(model, draft_model, dtype, device, threads),
        method=method_of(draft_model, drafter, verifier, setting or [], nodes),
        suites=tuple(find_suite(name, data) for name in suite),
        rows=rows,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        batch=batch,
        raw=raw,
        letters="logits" if letters == "logits" else "text",
        without=tuple(without or ()),
    )
    with tempfile.TemporaryDirectory() as scratch:
        for report in _run(settings, out or Path(scratch) / "eval.jsonl", kept=out is not None):
            typer.echo(json.dumps(report.describe(), ensure_ascii=False) if as_json else told(report))
    if out is not None:
        typer.echo(f"{out}", err=True)


def method_of(draft_model: str | None, drafter: str | None, verifier: str, settings: list[str], nodes: str) -> Method:
    """The way of decoding that options ask for. Raises InputError for names and settings that do not exist."""
    from betoken.bench.subject import Method

    name = drafter or ("suffix" if draft_model is None else "draft-model")
    own = parse_set(settings)
    count = int(nodes) if nodes.isdigit() else nodes
    method = Method(name, name, own["drafter"], verifier, own["verifier"], 1 if name == "none" else count)
    method.check()
    return method


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


def _run(settings: EvalSettings, out: Path, *, kept: bool) -> list[SuiteReport]:
    from betoken.bench.evaluate import run_eval
    from betoken.bench.subject import load_subject

    warn_of_gaps(settings.suites)
    resume = f"the same command continues {out}" if kept else "use --out FILE to be able to continue"
    with counting(resume) as progress:
        return run_eval(settings, load_subject, out, progress)
