"""`betoken reproduce`: claims of papers, repeated here from nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from betoken.commands.groups import Cores, grouped
from betoken.commands.options import parse_whole_numbers
from betoken.commands.progress import counting
from betoken.errors import InputError

_app = typer.Typer(help="Repeat a paper's claim here, from nothing.", no_args_is_help=True)

TRIPS = """PTP on grid trips (arXiv 2512.21323, section 5, on synthetic trips whose entropy is known).

Trains, for each seed: an autoregressive model; two students of it, one that reads random numbers (O-PTP) and one that
does not, to compare how many tokens in a row they get right; and a model of the same size from scratch that reads
random numbers (C-PTP), to compare perplexities. Then decodes trips with both students in every mode and compares each
answer with plain sampling. Prints two tables; findings, models, answers and a provenance file stay in --out.

[bold]Example[/bold]

  betoken reproduce trips --seeds 1,2,3 --out trips

Allow an hour a seed on two cores. The same command continues an interrupted run."""

EMBEDDINGS = """Three ways to read a random number (PTP, arXiv 2512.21323), on the same grid trips.

Trains, for each seed, an autoregressive model and three O-PTP students of it that differ only in how a number becomes
an input vector: its bits, its binary digits, or a point between three learned vectors. Prints a table; findings, models
and a provenance file stay in --out.

[bold]Example[/bold]

  betoken reproduce embeddings --seeds 1,2,3 --out embeddings

Allow an hour a seed on two cores. The same command continues an interrupted run."""

PYTHON = """PTP on Python source (arXiv 2512.21323, section 5): the standard library of the running interpreter.

Trains, for each seed: a teacher; an ordinary smaller model to draft for it; and two students of the teacher, one that
reads random numbers (O-PTP) and one that does not. Then decodes with each of them and compares every answer with plain
sampling. Prints two tables; they, a picture, findings, models, answers and a provenance file stay in --out.

[bold]Example[/bold]

  betoken reproduce python --out python

Allow two hours a seed on two cores. The same command continues an interrupted run."""

Out = Annotated[Path, typer.Option(help="Folder of the findings and the models.")]
Seeds = Annotated[str, typer.Option(help="Of data, weights and numbers; comma-separated.")]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Sizes of the models of grid trips."""

    learnt: Annotated[int, typer.Option("--trips", help="Trips to learn from.", min=2)] = 20_000
    layers: Annotated[int, typer.Option(help="Of every model.", min=1)] = 4
    hidden: Annotated[int, typer.Option(help="Width of every model, a multiple of 8.", min=8)] = 64
    batch: Annotated[int, typer.Option(help="Trips of a step.", min=1)] = 32
    lr: Annotated[float, typer.Option(help="Greatest learning rate.")] = 2e-3
    window: Annotated[int, typer.Option(help="Nodes of a student's branch.")] = 32
    cuts: Annotated[int, typer.Option(help="Branches over each trip.", min=1)] = 4
    lm_steps: Annotated[int, typer.Option(help="Of the autoregressive model.", min=1)] = 1500
    student_steps: Annotated[int, typer.Option(help="Of each student.", min=1)] = 1500

    def sizes(self) -> dict[str, Any]:
        """The same as fields of `GridSettings`."""
        return {
            "trips": self.learnt,
            "hidden_size": self.hidden,
            "intermediate_size": 3 * self.hidden,
            "num_hidden_layers": self.layers,
            "batch": self.batch,
            "lr": self.lr,
            "window": self.window,
            "cuts": self.cuts,
            "lm_steps": self.lm_steps,
            "student_steps": self.student_steps,
        }


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """The model of grid trips that has no teacher."""

    scratch_steps: Annotated[int, typer.Option(help="Of the model from scratch.", min=1)] = 1200
    scratch_window: Annotated[int, typer.Option(help="Nodes of its branch; 101 is a whole trip.")] = 101
    scratch_cuts: Annotated[int, typer.Option(help="Its branches over each trip.", min=1)] = 1
    scratch_objective: Annotated[
        str, typer.Option(help="Where it gets its numbers: scratch (its branches) or c-ptp (its reading of the text).")
    ] = "scratch"


@dataclass(frozen=True, kw_only=True)
class Source:
    """The models of Python source, and what is decoded with them: fields of `PythonSettings` by other names."""

    source: Annotated[Path | None, typer.Option(help="Folder of .py files instead of the standard library.")] = None
    vocabulary: Annotated[int, typer.Option(help="Tokens of the byte-level BPE.", min=258)] = 1024
    context: Annotated[int, typer.Option(help="Tokens of a row, and of a text.")] = 256
    layers: Annotated[int, typer.Option(help="Of the teacher and its students.", min=1)] = 4
    hidden: Annotated[int, typer.Option(help="Their width, a multiple of 8.", min=8)] = 192
    drafter_layers: Annotated[int, typer.Option(help="Of the small model.", min=1)] = 2
    drafter_hidden: Annotated[int, typer.Option(help="Its width, a multiple of 8.", min=8)] = 96
    batch: Annotated[int, typer.Option(help="Rows of a step.", min=1)] = 16
    lr: Annotated[float, typer.Option(help="Greatest learning rate.")] = 1e-3
    window: Annotated[int, typer.Option(help="Nodes of a student's branch.")] = 16
    cuts: Annotated[int, typer.Option(help="Branches over each row.", min=1)] = 8
    teacher_steps: Annotated[int, typer.Option(help="Of the teacher.", min=1)] = 2000
    drafter_steps: Annotated[int, typer.Option(help="Of the small model.", min=1)] = 2000
    student_steps: Annotated[int, typer.Option(help="Of each student.", min=1)] = 1500
    validation_share: Annotated[float, typer.Option(help="Share of the files that no model learns from.")] = 0.08
    validation_rows: Annotated[int, typer.Option(help="Most rows of them to measure on.", min=1)] = 384
    temperature: Annotated[float, typer.Option(help="Of the law that students learn and answers are drawn from.")] = 1.0
    top_k: Annotated[int, typer.Option(help="Of it; 0 keeps all.")] = 0
    top_p: Annotated[float, typer.Option(help="Of it; 1 keeps all.")] = 1.0
    prompts: Annotated[int, typer.Option(help="Files whose middles are continued.")] = 24
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 96
    max_new_tokens: Annotated[int, typer.Option(help="Most new tokens of an answer.")] = 64
    nodes: Annotated[int, typer.Option(help="Nodes of a forward pass in decoding.")] = 16

    def sizes(self) -> dict[str, Any]:
        """The fields of `PythonSettings`."""
        named = {"layers": "num_hidden_layers", "hidden": "hidden_size", "drafter_hidden": "drafter_hidden_size"}
        told = {named.get(name, name): value for name, value in vars(self).items()}
        return told | {"source": None if self.source is None else str(self.source)}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.add_typer(_app, name="reproduce")


@_app.callback()
def reproduce() -> None:
    """Repeat a paper's claim here, from nothing."""


@_app.command(help=TRIPS)
@grouped
def trips(
    out: Out,
    seeds: Seeds = "1",
    *,
    grid: Grid,
    scratch: Scratch,
    decoded: Annotated[int, typer.Option(help="Trips to decode in each way.", min=1)] = 20,
    nodes: Annotated[str, typer.Option(help="Nodes of a forward pass in decoding; comma-separated.")] = "16,32,64",
    claims: Annotated[
        str, typer.Option(help="Which to test: perplexity (from scratch), runs (the students), or both.")
    ] = "perplexity,runs",
    cores: Cores,
) -> None:
    numbers, counts = _seeds(seeds), parse_whole_numbers("--nodes", nodes)
    cores.use()
    from betoken.training.reproduce.trips import TripSettings, publish_trips, reproduce_trips

    tested: Any = tuple(part.strip() for part in claims.split(","))
    parts: dict[str, Any] = vars(scratch)
    settings = TripSettings(**grid.sizes(), **parts, decoded=decoded, nodes=counts, claims=tested)
    found = [reproduce_trips(settings, seed, out, counting) for seed in numbers]
    typer.echo(publish_trips(settings, found, out))


@_app.command(help=EMBEDDINGS)
@grouped
def embeddings(out: Out, seeds: Seeds = "1", *, grid: Grid, cores: Cores) -> None:
    numbers = _seeds(seeds)
    cores.use()
    from betoken.training.reproduce.embeddings import publish_embeddings, reproduce_embeddings
    from betoken.training.reproduce.trips import GridSettings

    settings = GridSettings(**grid.sizes())
    found = [reproduce_embeddings(settings, seed, out, counting) for seed in numbers]
    typer.echo(publish_embeddings(settings, found, out))


@_app.command(help=PYTHON)
@grouped
def python(out: Out, seeds: Seeds = "1", *, source: Source, cores: Cores) -> None:
    numbers = _seeds(seeds)
    cores.use()
    from betoken.pictures import new_figure
    from betoken.training.reproduce.python import PythonSettings, publish_python, reproduce_python

    settings = PythonSettings(**source.sizes())
    new_figure(1, 1)  # without matplotlib, say so before hours of training and not after them
    found = [reproduce_python(settings, seed, out, counting) for seed in numbers]
    typer.echo(publish_python(settings, found, out))


def _seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--seeds must be numbers from 0 up, separated by commas, not {text!r}")
    return [int(part) for part in parts]
