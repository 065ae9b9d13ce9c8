"""`betoken reproduce`: claims of papers, repeated here from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from betoken.commands.groups import Cores, grouped
from betoken.commands.progress import counting
from betoken.errors import InputError

_app = typer.Typer(help="Repeat a paper's claim here, from nothing.", no_args_is_help=True)

TRIPS = """PTP on grid trips (arXiv 2512.21323, section 5, on synthetic trips whose entropy is known).

Trains, for each seed: an autoregressive model; a model of the same size from scratch that reads random numbers
(C-PTP), to compare perplexities; and two students of the first, one that reads random numbers (O-PTP) and one that
does not, to compare how many tokens in a row they get right. Prints a table; findings, models and a provenance file
stay in --out.

[bold]Example[/bold]

  betoken reproduce trips --seeds 1,2,3 --out trips

Allow an hour a seed on two cores. The same command continues an interrupted run."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.add_typer(_app, name="reproduce")


@_app.callback()
def reproduce() -> None:
    """Repeat a paper's claim here, from nothing."""


@_app.command(help=TRIPS)
@grouped
def trips(
    out: Annotated[Path, typer.Option(help="Folder of the findings and the models.")],
    seeds: Annotated[str, typer.Option(help="Of data, weights and numbers; comma-separated.")] = "1",
    *,
    cores: Cores,
) -> None:
    numbers = _seeds(seeds)
    cores.use()
    from betoken.training import reproduce as repeated

    settings = repeated.TripSettings()
    found = [repeated.reproduce_trips(settings, seed, out, counting) for seed in numbers]
    typer.echo(repeated.publish(settings, found, out))


def _seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--seeds must be numbers from 0 up, separated by commas, not {text!r}")
    return [int(part) for part in parts]
