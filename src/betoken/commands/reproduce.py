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

Trains, for each seed: an autoregressive model; two students of it, one that reads random numbers (O-PTP) and one that
does not, to compare how many tokens in a row they get right; and a model of the same size from scratch that reads
random numbers (C-PTP), to compare perplexities. Prints a table; findings, models and a provenance file
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
    layers: Annotated[int, typer.Option(help="Of every model.", min=1)] = 4,
    hidden: Annotated[int, typer.Option(help="Width of every model, a multiple of 4.", min=4)] = 64,
    batch: Annotated[int, typer.Option(help="Trips of a step.", min=1)] = 32,
    lr: Annotated[float, typer.Option(help="Greatest learning rate.")] = 2e-3,
    window: Annotated[int, typer.Option(help="Nodes of a student's branch.")] = 32,
    cuts: Annotated[int, typer.Option(help="Branches over each trip.", min=1)] = 4,
    lm_steps: Annotated[int, typer.Option(help="Of the autoregressive model.", min=1)] = 1500,
    student_steps: Annotated[int, typer.Option(help="Of each student.", min=1)] = 1500,
    scratch_steps: Annotated[int, typer.Option(help="Of the model from scratch.", min=1)] = 1200,
    scratch_window: Annotated[int, typer.Option(help="Nodes of its branch; 101 is a whole trip.")] = 101,
    scratch_cuts: Annotated[int, typer.Option(help="Its branches over each trip.", min=1)] = 1,
    *,
    cores: Cores,
) -> None:
    numbers = _seeds(seeds)
    cores.use()
    from betoken.training import reproduce as repeated

    settings = repeated.TripSettings(
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        batch=batch,
        lr=lr,
        window=window,
        cuts=cuts,
        lm_steps=lm_steps,
        student_steps=student_steps,
        scratch_steps=scratch_steps,
        scratch_window=scratch_window,
        scratch_cuts=scratch_cuts,
    )
    found = [repeated.reproduce_trips(settings, seed, out, counting) for seed in numbers]
    typer.echo(repeated.publish(settings, found, out))


def _seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--seeds must be numbers from 0 up, separated by commas, not {text!r}")
    return [int(part) for part in parts]
