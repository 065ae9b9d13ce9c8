"""`betoken audit exact`, `betoken audit perplexity` and, from modules of their own, what relaxed verifiers cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands import options
from betoken.commands.groups import Measured, Suites, grouped
from betoken.commands.progress import counting
from betoken.commands.quality import quality
from betoken.commands.relaxing import frontier, quality_table
from betoken.commands.scoring import result_file

if TYPE_CHECKING:
    from betoken.tuning.audit import Difference, PassReport
    from betoken.tuning.perplexity import Price

_app = typer.Typer(help="Check what is promised about the text.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(_app, name="audit")


@_app.callback()
def audit() -> None:
    """Check what is promised about the text."""


@_app.command()
@grouped
def exact(
    suites: Suites,
    models: Measured,
    drafters: Annotated[str, typer.Option(help="Names, separated by commas.")] = "suffix,prompt-lookup",
    setting: Annotated[list[str] | None, typer.Option("--set", help="DRAFTER.KEY=VALUE or verifier.KEY=VALUE.")] = None,
    verifier: Annotated[str, typer.Option(help="What keeps a path of each tree.")] = "replay",
    rows: Annotated[int, typer.Option(help="Questions, drawn evenly from all suites.")] = 200,
    max_new_tokens: Annotated[int, typer.Option(help="Most new tokens of an answer.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the draw and of the sampling.")] = 0,
    batch: Annotated[int, typer.Option(help="Rows decoded together; 1 decodes each alone.")] = 8,
    nodes: options.Nodes = "8",
    raw: options.PlainText = False,
    out: options.Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a pass.")] = False,
) -> None:
    """Is the text the same? Each drafter, and a batch, against plain decoding of each row alone.

    Exit code 0 if all answers are equal, or if equality is not promised (target or verifier are not
    exact); 1 otherwise.
    """
    from betoken.bench.methods import parse_drafters
    from betoken.bench.subject import load_subject
    from betoken.tuning.audit import AuditSettings, run_audit

    settings = AuditSettings(
        model=models.spec(),
        methods=parse_drafters(drafters, setting or [], verifier, nodes),
        suites=suites.paths(),
        rows=rows,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        batch=batch,
        raw=raw,
    )
    failed = False
    with result_file(out) as (place, resume), counting(resume) as progress:
        for report in run_audit(settings, load_subject, place, progress):
            typer.echo(json.dumps(report.describe(), ensure_ascii=False) if as_json else told(report))
            failed = failed or report.failed
    if failed:
        raise typer.Exit(1)


@_app.command()
def perplexity(
    text: Annotated[list[Path], typer.Option(help="Text file, or a suite (.jsonl): questions and answers. Repeat it.")],
    model: options.Model = options.DEFAULT_MODEL,
    dtype: Annotated[str, typer.Option(help="What is compared with float32: int8 or int4.")] = "int8",
    tokens: Annotated[int, typer.Option(help="Most tokens of each text.")] = 4096,
    threads: options.Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a text.")] = False,
) -> None:
    """What does int8, or int4, cost? Its perplexity and float32's, and how often their greedy choices agree."""
    from betoken.bench.subject import ModelSpec, load_subject
    from betoken.tuning.perplexity import price_of_rounding

    with counting(None) as progress:
        spec = ModelSpec(model, threads=threads)
        prices = list(price_of_rounding(spec, text, load_subject, tokens, progress, dtype))
    for price in prices:
        typer.echo(json.dumps(price.describe(), ensure_ascii=False) if as_json else priced(price))


_app.command()(quality)
_app.command()(frontier)
_app.command()(quality_table)


def priced(price: Price) -> str:
    """One line for a text."""
    return (
        f"{price.text}: perplexity {price.float32:.4g} in float32, "
        f"{price.rounded:.4g} in {price.dtype} ({price.increase:+.2f} %); "
        f"the same greedy choice at {100 * price.agreement:.1f} % of {price.tokens} tokens"
    )


def told(report: PassReport) -> str:
    """One line for a pass and one for each difference."""
    line = (
        f"{report.name}: {report.equal} of {report.answers} answers equal; {report.forwards} forwards, "
        f"acceptance length {report.acceptance_length:.3f}, {report.nodes_per_forward:.1f} nodes a forward"
    )
    if not report.name.startswith("plain,") and not report.drafted:
        line += "; NOTHING WAS DRAFTED, so this says nothing about the drafter"
    if not report.promised:
        line += "; equality is not promised here (target or verifier are not exact)"
    return "\n".join([line, *map(_told_difference, report.differences)])


def _told_difference(one: Difference) -> str:
    gap = "" if one.logit_gap is None else f", logit gap {one.logit_gap:+.4g}"
    return (
        f"  {one.question}, new token {one.position}: plain {one.plain_token} {one.plain_text!r}, "
        f"here {one.token} {one.text!r}{gap}"
    )
