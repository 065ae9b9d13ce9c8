"""Options of `betoken train`, declared once, and what they mean to the library."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from betoken.commands import options
from betoken.commands.groups import Cores
from betoken.errors import InputError

if TYPE_CHECKING:
    from betoken.state import SamplingSettings
    from betoken.training.fit import FitSettings
    from betoken.training.jobs import DataSettings, ModelSettings, StudentSettings
    from betoken.training.ptp import PtpSettings

WHAT, DATA, HOW = "What is trained", "The data", "How it is trained"

Out = Annotated[Path, typer.Option(help="Folder of the result and its checkpoint.")]
Batch = Annotated[int, typer.Option(help="Rows computed together.", rich_help_panel=HOW)]
Lr = Annotated[float, typer.Option(help="Learning rate of AdamW.", rich_help_panel=HOW)]
Schedule = Annotated[str, typer.Option(help="Then: constant, or cosine down to a tenth.", rich_help_panel=HOW)]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Which model is trained, or made."""

    model: Annotated[str | None, typer.Option(help="Store name or folder.", rich_help_panel=WHAT)] = None
    config: Annotated[Path | None, typer.Option(help="JSON file: a new model's sizes.", rich_help_panel=WHAT)] = None
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Of a new model: bytes, characters, bpe:SIZE, or a model's name.", rich_help_panel=WHAT),
    ] = None

    def settings(self, device: str) -> ModelSettings:
        """The same for training. Raises InputError for options that do not fit together."""
        from betoken.training.jobs import ModelSettings

        return ModelSettings(model=self.model, config=self.config, tokenizer=self.tokenizer, device=device)


@dataclass(frozen=True, kw_only=True)
class Learning:
    """What auxiliary nodes learn: the fields of `PtpSettings`."""

    objective: Annotated[str, typer.Option(help="o-ptp, c-ptp, scratch or independent.", rich_help_panel=WHAT)] = (
        "o-ptp"
    )
    divergence: Annotated[str, typer.Option(help="c-ptp: kl or reverse-kl.", rich_help_panel=WHAT)] = "kl"
    window: Annotated[int, typer.Option(help="Nodes of a branch.", rich_help_panel=WHAT)] = 16
    cuts: Annotated[int, typer.Option(help="Branches over each row.", rich_help_panel=WHAT)] = 16
    beta: Annotated[
        float,
        typer.Option(help="Numbers lie in their intervals by Beta(b, b): 1 is uniform.", rich_help_panel=WHAT),
    ] = 1.0
    text_weight: Annotated[
        float, typer.Option(help="weights same: of the text's loss beside the branches'.", rich_help_panel=WHAT)
    ] = 1.0

    def settings(self, law: SamplingSettings, seed: int) -> PtpSettings:
        """The same for training. Raises InputError for bad values."""
        from betoken.training.ptp import PtpSettings

        return PtpSettings(**asdict(self), law=law, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Student:
    """What a student consists of."""

    weights: Annotated[
        str | None, typer.Option(help="lora, full or same. Default: lora; same with --config.", rich_help_panel=WHAT)
    ] = None
    rank: Annotated[int, typer.Option(help="Of the LoRA adapter.", rich_help_panel=WHAT)] = 16
    embedding: Annotated[
        str | None,
        typer.Option(help="How numbers are read: bits, digits or interpolated (default).", rich_help_panel=WHAT),
    ] = None

    def settings(self, *, is_new: bool, reads_numbers: bool) -> StudentSettings:
        """The same for training. Raises InputError for bad values."""
        weights: Any = self.weights or ("same" if is_new else "lora")
        embedding: Any = self.embedding or ("interpolated" if reads_numbers else "none")
        _choose("--weights", weights, ("lora", "full", "same"))
        _choose("--embedding", embedding, ("bits", "digits", "interpolated", "none"))
        from betoken.training.jobs import StudentSettings

        return StudentSettings(weights=weights, embedding=embedding, rank=self.rank)


@dataclass(frozen=True, kw_only=True)
class Law:
    """The sampling law that is learnt, as far as it was named."""

    temperature: Annotated[float | None, typer.Option(help="Of the law that is learnt.", rich_help_panel=WHAT)] = None
    top_k: Annotated[int | None, typer.Option(help="0 keeps all.", rich_help_panel=WHAT)] = None
    top_p: Annotated[float | None, typer.Option(help="1 keeps all.", rich_help_panel=WHAT)] = None
    min_p: Annotated[float | None, typer.Option(help="0 keeps all.", rich_help_panel=WHAT)] = None

    def named(self) -> dict[str, Any]:
        """What was named."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where rows come from."""

    data: Annotated[
        str,
        typer.Option(
            help="Folder of texts, .jsonl (text or tokens), text file, samples of train collect, or a Hub data set.",
            rich_help_panel=DATA,
        ),
    ]
    files: Annotated[str, typer.Option(help="Which files of a folder.", rich_help_panel=DATA)] = "*.txt"
    sequence: Annotated[int, typer.Option(help="Tokens of a row.", rich_help_panel=DATA)] = 512
    no_pack: Annotated[
        bool,
        typer.Option("--no-pack", help="Begin each document in a row of its own.", rich_help_panel=DATA),
    ] = False
    validation: Annotated[
        str | None, typer.Option("--validate", help="Other data to validate with.", rich_help_panel=DATA)
    ] = None
    held_out: Annotated[
        float, typer.Option(help="Without it: the share of rows kept for that.", rich_help_panel=DATA)
    ] = 0.05
    validation_rows: Annotated[int, typer.Option(help="Most rows to validate with.", rich_help_panel=DATA)] = 64

    def settings(self) -> DataSettings:
        """The same for training. Raises InputError for bad values."""
        from betoken.training.jobs import DataSettings

        told = asdict(self)
        return DataSettings(source=told.pop("data"), pack=not told.pop("no_pack"), **told)


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """How long and how fast to learn: the fields of `FitSettings`."""

    steps: Annotated[int, typer.Option(help="Updates of the weights.", rich_help_panel=HOW)] = 1000
    batch: Batch = 4
    accumulate: Annotated[int, typer.Option(help="Batches of an update.", rich_help_panel=HOW)] = 1
    lr: Lr = 1e-4
    warmup: Annotated[int, typer.Option(help="Updates over which it rises.", rich_help_panel=HOW)] = 100
    schedule: Schedule = "constant"
    weight_decay: Annotated[float, typer.Option(help="Of AdamW.", rich_help_panel=HOW)] = 0.0
    autocast: Annotated[str, typer.Option(help="none or bfloat16.", rich_help_panel=HOW)] = "none"
    checkpoint_every: Annotated[int, typer.Option(help="Updates between checkpoints.", rich_help_panel=HOW)] = 100
    seed: Annotated[int, typer.Option(help="Of weights, order and numbers.", rich_help_panel=HOW)] = 0

    def settings(self) -> FitSettings:
        """The same for training. Raises InputError for bad values."""
        from betoken.training.fit import FitSettings

        return FitSettings(**asdict(self))


@dataclass(frozen=True, kw_only=True)
class Place(Cores):
    """Where it runs."""

    device: options.Device = "cpu"


def _choose(option: str, value: str, among: tuple[str, ...]) -> None:
    if value not in among:
        raise InputError(f"unknown {option} {value!r}; choose one of {', '.join(among)}")
