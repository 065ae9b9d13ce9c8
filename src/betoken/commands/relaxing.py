"""`betoken audit frontier` and `betoken audit quality-table`: what relaxed verifiers cost and bring, at length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands import options
from betoken.commands.groups import Measured, OneMethod, Questions, grouped
from betoken.commands.progress import counting
from betoken.commands.scoring import result_file, warn_of_gaps
from betoken.errors import InputError

if TYPE_CHECKING:
    from betoken.tuning.frontier import Point

Numbers = Annotated[str, typer.Option(help="Separated by commas.")]


@grouped
def frontier(
    asked: Questions,
    decoding: OneMethod,
    budgets: Numbers = "1,2,4,8,16",
    gates: Numbers = "0.1,0.25,0.5",
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw the points into this PNG or SVG file.")] = None,
    out: options.Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a point.")] = False,
) -> None:
    """Tokens a forward against accuracy, over the budgets and gates of verifier asd, on one suite with one drafter.

    Strict decoding, which is the same verifier with a budget of 0, is the point that the others are compared with.
    Its cap and variant are settings: --set verifier.cap=2.
    """
    from betoken.bench.evaluate import EvalSettings
    from betoken.bench.subject import load_subject
    from betoken.tuning.frontier import FrontierSettings, run_frontier
    from betoken.tuning.frontier_plot import plot_frontier

    if decoding.verifier not in (None, "asd"):
        raise InputError(f"the frontier is one of verifier asd, not {decoding.verifier}: leave --verifier out")
    judged = EvalSettings(model=decoding.spec(), method=decoding.method("asd"), **asked.settings())
    settings = FrontierSettings(
        judged, options.parse_numbers("--budgets", budgets), options.parse_numbers("--gates", gates)
    )
    warn_of_gaps(judged.suites)
    with result_file(out) as (place, resume), counting(resume) as progress:
        found = run_frontier(settings, load_subject, place, progress)
    for point in found:
        typer.echo(json.dumps(point.describe()) if as_json else told(point))
    if picture is not None:
        where = f"{judged.suites[0].stem}, {judged.model.label}, {judged.method.drafter}"
        plot_frontier(found, picture, where)


@grouped
def quality_table(
    asked: Questions,
    models: Measured,
    out: Annotated[Path, typer.Option("--out", help="Folder of the result files; the same command continues them.")],
    drafters: Annotated[str, typer.Option(help="Names, separated by commas.")] = "suffix",
    verifier: Annotated[str, typer.Option(help="A relaxed verifier.")] = "asd",
    setting: Annotated[list[str] | None, typer.Option("--set", help="DRAFTER.KEY=VALUE or verifier.KEY=VALUE.")] = None,
    nodes: options.Nodes = "8",
    speed_rows: Annotated[int, typer.Option(help="Prompts of each timed pass.")] = 8,
    fixed_tokens: Annotated[int, typer.Option(help="New tokens of each prompt in a timed pass.")] = 256,
    margin: Annotated[float, typer.Option(help="Points of accuracy that may be lost and still count as kept.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line of the table.")] = False,
) -> None:
    """Strict against relaxed for several suites and drafters: audit quality for each pair, as one Markdown table.

    Suites without a scorer (Spec-Bench, MT-Bench) are decoded and compared, not judged.
    """
    from betoken.bench.methods import parse_drafters
    from betoken.bench.subject import load_subject
    from betoken.tuning.quality import QualitySettings
    from betoken.tuning.quality_table import cells_of, markdown, run_table

    methods = parse_drafters(drafters, setting or [], verifier, nodes)
    template = QualitySettings(
        model=models.spec(),
        method=methods[0],
        speed_rows=speed_rows,
        fixed_tokens=fixed_tokens,
        margin=margin / 100,
        **asked.settings(),
    )
    cells = cells_of(template, methods)
    warn_of_gaps(template.suites)
    with counting(f"the same command continues {out}") as progress:
        found = list(run_table(cells, load_subject, out, progress))
    if as_json:
        for cell in found:
            typer.echo(json.dumps(cell.describe(), ensure_ascii=False))
    else:
        typer.echo(markdown(found))


def told(point: Point) -> str:
    """One line for a point."""
    where = "strict" if point.gate is None else f"budget {point.budget:g}, gate {point.gate:g}"
    low, high = (100 * end for end in point.difference_interval)
    against = f" ({100 * point.difference:+.1f} points, 95% interval {low:+.1f} to {high:+.1f})"
    return (
        f"{'*' if point.best else ' '} {where}: {point.tokens_per_forward:.3f} tokens a forward, "
        f"{100 * point.accuracy:.1f} % right of {point.answers}{'' if point.gate is None else against}; "
        f"{100 * point.differing / point.answers:.1f} % of answers differ"
    )
