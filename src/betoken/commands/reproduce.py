"""`betoken reproduce`: claims of papers, repeated here from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
def trips(
    out: Annotated[Path, typer.Option(help="Folder of the findings and the models.")],
    seeds: Annotated[str, typer.Option(help="Of data, weights and numbers; comma-separated.")] = "1",
    threads: Annotated[int | None, typer.Option(help="Cores to use; all if not given.")] = None,
) -> None:
    numbers = _seeds(seeds)
    if threads is not None and threads < 1:
        raise InputError(f"threads must be at least 1, not {threads}")
    import torch

    from betoken.training import reproduce as repeated

    if threads is not None:
        torch.set_num_threads(threads)
    settings = repeated.TripSettings()
    found = [repeated.reproduce_trips(settings, seed, out, counting) for seed in numbers]
    typer.echo(repeated.publish(settings, found, out))


def _seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--seeds must be numbers from 0 up, separated by commas, not {text!r}")
    return [int(part) for part in parts]
