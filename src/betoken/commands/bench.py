"""`betoken bench`, `betoken bench report` and, from its own module, `betoken bench never-slower`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands import options
from betoken.commands.floor import never_slower
from betoken.commands.groups import Measured, grouped
from betoken.commands.progress import counting
from betoken.errors import InputError

if TYPE_CHECKING:
    from betoken.bench.plan import BenchSettings

_app = typer.Typer(
    help="Measure the speed of drafters against plain decoding.",
    epilog="Try: betoken bench --suite FILE.jsonl --drafters suffix,prompt-lookup --out result.jsonl",
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(_app, name="bench")


_app.command("never-slower")(never_slower)


@_app.callback(invoke_without_command=True)
@grouped
def bench(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="TOML file: each [\\[run]] is a model with its settings.")] = None,
    *,
    models: Measured,
    drafters: Annotated[str, typer.Option(help="Names, separated by commas.")] = "suffix",
    setting: Annotated[list[str] | None, typer.Option("--set", help="DRAFTER.KEY=VALUE or verifier.KEY=VALUE.")] = None,
    verifiers: Annotated[
        str,
        typer.Option("--verifiers", "--verifier", help="Each drafter under each of them: a,b or a:KEY=VALUE,b."),
    ] = "replay",
    suite: Annotated[list[str] | None, typer.Option(help="File or name, :N for N rows a category. Repeat it.")] = None,
    data: options.Data = None,
    per_category: Annotated[int, typer.Option(help="Rows drawn from each category.")] = 10,
    temperatures: Annotated[
        str, typer.Option("--temperatures", "--temperature", help="One, or several separated by commas.")
    ] = "0",
    top_k: Annotated[int, typer.Option(help="Sample from the K most probable tokens; 0: from all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample from the most probable tokens that together reach P.")] = 1.0,
    batches: Annotated[
        str,
        typer.Option("--batches", "--batch", help="Rows decoded together: one size, or several separated by commas."),
    ] = "1",
    max_new_tokens: Annotated[int, typer.Option(help="Most new tokens of an answer.")] = 128,
    nodes: options.Nodes = "auto",
    seed: Annotated[int, typer.Option(help="Of the draw, the order and the sampling.")] = 0,
    repeats: Annotated[int, typer.Option(help="Measurements of each question, alternated.")] = 1,
    raw: options.PlainText = False,
    out: Annotated[
        Path,
        typer.Option(help="Result file; the same settings continue it. With --config one a run: OUT-NAME.jsonl."),
    ] = Path("bench.jsonl"),
) -> None:
    """Measure plain decoding and drafters in alternation on a seeded sample of questions, each request cold."""
    if context.invoked_subcommand is not None:
        return
    from betoken.bench.config import read_toml, result_path
    from betoken.bench.methods import parse_drafters
    from betoken.bench.plan import BenchSettings, SuiteSpec

    if config is not None:
        given = [name for name in context.params if _given(context, name) and name not in ("config", "out")]
        if given:
            raise InputError(f"--{given[0].replace('_', '-')} and --config exclude each other: write it into {config}")
        for run in read_toml(config):
            _run(run.settings, result_path(out, run.name))
        return
    _run(
        BenchSettings(
            models=(models.spec(),),
            methods=parse_drafters(drafters, setting or [], verifiers, nodes),
            suites=tuple(SuiteSpec.parse(name, per_category, data) for name in suite or []),
            temperatures=options.parse_numbers("--temperatures", temperatures),
            top_k=top_k,
            top_p=top_p,
            batches=options.parse_whole_numbers("--batches", batches),
            max_new_tokens=max_new_tokens,
            seed=seed,
            repeats=repeats,
            raw=raw,
        ),
        out,
    )


@_app.command()
def report(
    results: Annotated[list[Path], typer.Argument(help="Result files of betoken bench.")],
    wide: Annotated[
        bool, typer.Option("--wide", help="Also times of tokens, overhead, memory, and every slow prompt.")
    ] = False,
    readme: Annotated[
        bool, typer.Option("--readme", help="Put the tables into README.md, between its markers.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a result instead of tables.")] = False,
    png: Annotated[Path | None, typer.Option(help="Folder for plots of the speed-up by category.")] = None,
) -> None:
    """Medians with 95% intervals of the speed-up over plain decoding, by category and over all."""
    from betoken.bench.plots import plot_speedups
    from betoken.bench.readme import update_readme
    from betoken.bench.report import read_report
    from betoken.bench.tables import markdown

    found = [read_report(result) for result in results]
    for one in found:
        typer.echo(json.dumps(one.describe(), ensure_ascii=False) if as_json else markdown(one, wide=wide).rstrip())
    if readme:
        update_readme(Path("README.md"), "\n\n".join(markdown(one, wide=wide).strip() for one in found))
    for path in [path for one in found for path in (plot_speedups(one, png) if png is not None else [])]:
        typer.echo(f"{path}", err=True)


def _run(settings: BenchSettings, out: Path) -> None:
    from betoken.bench.report import read_report
    from betoken.bench.runner import run_bench
    from betoken.bench.subject import load_subject
    from betoken.bench.tables import markdown

    with counting(f"the same command continues {out}") as progress:
        run_bench(settings, load_subject, out, progress)
    if len(settings.all_methods) > 1:
        typer.echo(markdown(read_report(out)).rstrip())
    typer.echo(f"{out}", err=True)


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
