"""`betoken calibrate`: asd here, parse in `judging`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from betoken.commands import judging, options
from betoken.commands.groups import Measured, Suites, grouped, method_of
from betoken.commands.progress import counting
from betoken.errors import InputError

_app = typer.Typer(help="Choose settings from data.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(_app, name="calibrate")
    _app.command(name="parse", help=judging.HELP)(judging.parse)


@_app.callback()
def calibrate() -> None:
    """Choose settings from data."""


@dataclass(frozen=True, kw_only=True)
class Drawn(Suites):
    """Where rows are drawn from."""

    suite: Annotated[list[str], typer.Option("--suite", help="File or name. Repeat it; rows are drawn from all.")]


@_app.command()
@grouped
def asd(
    suites: Drawn,
    models: Measured,
    drafter: options.DrafterName = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="drafter.KEY=VALUE.")] = None,
    variant: Annotated[int, typer.Option(help="Which of asd's two gates the file is for.")] = 2,
    rows: Annotated[int, typer.Option(help="Prompts; they must not be used to judge the result.")] = 32,
    max_new_tokens: Annotated[int, typer.Option(help="Most new tokens of an answer.")] = 256,
    batch: Annotated[int, typer.Option(help="Rows decoded together.")] = 8,
    nodes: options.Nodes = "8",
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    raw: options.PlainText = False,
    out: Annotated[Path, typer.Option(help="Where to freeze the settings.")] = Path("asd.json"),
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written.")] = False,
) -> None:
    """Propose budget, gate and cap for the verifier asd from what strict decoding rejects.

    The file is for --verifier asd --set verifier.config=FILE; it names its rows, so that they are refused for judging
    it (--without FILE leaves them out).
    """
    if variant not in (1, 2):
        raise InputError(f"--variant must be 1 or 2, not {variant}")
    from betoken.bench.subject import load_subject
    from betoken.tuning import barriers

    settings = barriers.CalibrationSettings(
        model=models.spec(),
        method=method_of(models.draft_model, drafter, "asd", setting or [], nodes),
        suites=suites.paths(),
        variant=1 if variant == 1 else 2,
        rows=rows,
        max_new_tokens=max_new_tokens,
        batch=batch,
        seed=seed,
        raw=raw,
    )
    with counting(None) as progress:
        found = barriers.calibrate(settings, load_subject, out, progress)
    typer.echo(json.dumps(found, ensure_ascii=False) if as_json else told(found, out))


def told(found: dict[str, Any], out: Path) -> str:
    """The proposal in two lines."""
    return (
        f"variant {found['variant']}: budget {found['budget']:.4g}, gate {found['gate']:.4g}, cap {found['cap']}; from "
        f"{found['barriers']} rejections with a regret in {found['proposals']} drafts on {len(found['rows'])} rows\n"
        f"{out}: use it with --verifier asd --set verifier.config={out}, on other rows (--without {out})"
    )
