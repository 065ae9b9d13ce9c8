"""`betoken bench never-slower`: the prompts on which a drafter is slower than plain decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from betoken.commands import options
from betoken.commands.groups import Measured, grouped
from betoken.commands.progress import counting
from betoken.errors import InputError

TRAINING_FREE = "suffix,prompt-lookup,token-recycling,lookahead,ptd,self-draft"


@grouped
def never_slower(
    models: Measured,
    drafters: Annotated[str, typer.Option(help="Names, separated by commas.")] = TRAINING_FREE,
    setting: Annotated[list[str] | None, typer.Option("--set", help="DRAFTER.KEY=VALUE or verifier.KEY=VALUE.")] = None,
    verifier: Annotated[str, typer.Option(help="What keeps a path of each tree.")] = "replay",
    suite: Annotated[list[str] | None, typer.Option(help="File or name. Repeat it. Default: all of --data.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of suites; else $BETOKEN_DATA.")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts, drawn evenly from all suites.")] = 200,
    adversarial: Annotated[int, typer.Option(help="Prompts besides of random words and of false repeats.")] = 20,
    temperature: Annotated[float, typer.Option(help="Of the suites' prompts; 0 is greedy.")] = 0.0,
    hot: Annotated[float, typer.Option(help="Temperature of the adversarial prompts.")] = 1.5,
    max_new_tokens: Annotated[int, typer.Option(help="Most new tokens of an answer.")] = 96,
    floor: Annotated[float, typer.Option(help="Least speed, as a share of plain decoding's.")] = 0.97,
    repeats: Annotated[int, typer.Option(help="Pairs in which a measurement below the floor is repeated.")] = 5,
    nodes: options.Nodes = "auto",
    seed: Annotated[int, typer.Option(help="Of the draw, the order and the sampling.")] = 0,
    raw: options.PlainText = False,
    out: Annotated[Path, typer.Option(help="Result file; a second run with the same settings continues it.")] = Path(
        "never-slower.jsonl"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Is any prompt slower with a drafter than without? Each drafter right beside plain decoding, on many prompts.

    A measurement below the floor is repeated in alternated pairs, whose median counts. Prints a summary by drafter
    and every prompt that remains below. A finished file is only reported.
    """
    from betoken.bench.floor import FloorSettings, run_floor
    from betoken.bench.floor_report import read_floor, told
    from betoken.bench.methods import parse_drafters
    from betoken.bench.subject import load_subject
    from betoken.bench.suites import find_suite

    settings = FloorSettings(
        model=models.spec(),
        methods=parse_drafters(drafters, setting or [], verifier, nodes),
        suites=tuple(find_suite(name, data) for name in suite) if suite else _all_suites(data),
        prompts=prompts,
        adversarial=adversarial,
        temperature=temperature,
        hot=hot,
        max_new_tokens=max_new_tokens,
        floor=floor,
        repeats=repeats,
        seed=seed,
        raw=raw,
    )
    with counting(f"the same command continues {out}") as progress:
        run_floor(settings, load_subject, out, progress)
    report = read_floor(out)
    typer.echo(json.dumps(report.describe(), ensure_ascii=False) if as_json else told(report).rstrip())
    typer.echo(f"{out}", err=True)


def _all_suites(data: Path | None) -> tuple[Path, ...]:
    from betoken.bench.suites import DATA_VARIABLE, default_folder

    folder = data or default_folder()
    if folder is None:
        raise InputError(f"name the suites: --suite FILE, or their folder with --data or ${DATA_VARIABLE}")
    found = tuple(sorted(folder.glob("*.jsonl")))
    if not found:
        raise InputError(f"{folder}: no .jsonl file in this folder")
    return found
