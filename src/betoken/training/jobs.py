"""Whole training runs, from what a user asks for to the folder that is left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from betoken.errors import InputError
from betoken.models.load import check_device
from betoken.models.student import EmbeddingKind, StudentCard, WeightKind, law_numbers
from betoken.state import SamplingSettings
from betoken.training import lm, save
from betoken.training.build import Base, load_base, new_base, new_student
from betoken.training.collect import is_samples, read_samples, sampled_law
from betoken.training.data import Document, Rows, read_documents, rows_of, texts_of
from betoken.training.fit import FitSettings, Tell, fit
from betoken.training.model import CausalModel
from betoken.training.objectives import PLAIN
from betoken.training.ptp import PtpSettings, PtpTask
from betoken.training.validate import Validation, validate
from betoken.training.vocabulary import make_tokenizer

Bar = Callable[[str | None], AbstractContextManager[Tell]]
"""Opens a progress bar; the text is said after an interruption."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Where rows come from."""

    source: str
    """See `data.read_documents`; or a folder of `betoken train collect`."""
    files: str = "*.txt"
    sequence: int = 512
    """Tokens of a row."""
    pack: bool = True
    validation: str | None = None
    """Another source to validate with; else the last `held_out` of the rows."""
    held_out: float = 0.05
    validation_rows: int = 64
    """Most rows to validate with."""

    def __post_init__(self) -> None:
        if self.sequence < 2 or self.validation_rows < 1:
            raise InputError("--sequence must be at least 2, and --validation-rows at least 1")
        if not 0.0 < self.held_out < 1.0:
            raise InputError("--held-out must lie between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which model is trained."""

    model: str | None = None
    """A store name or folder: the base, or with `config` the teacher."""
    config: Path | None = None
    """Sizes of a new model."""
    tokenizer: str | None = None
    """Of a new model without a teacher; see `vocabulary.make_tokenizer`."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_device(self.device)
        if self.model is None and self.config is None:
            raise InputError("nothing to train: give --model M, or --config FILE for a new model")
        if self.model is None and self.tokenizer is None:
            raise InputError("a new model needs --tokenizer bytes, characters, bpe:SIZE, or a model whose it takes")
        if self.model is not None and self.tokenizer is not None:
            raise InputError(f"--tokenizer is {self.model}'s already: leave it out")


@dataclass(frozen=True, kw_only=True)
class StudentSettings:
    """What is trained of it."""

    weights: WeightKind
    embedding: EmbeddingKind
    rank: int = 16

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"--rank must be at least 1, not {self.rank}")


@dataclass(frozen=True)
class Trained:
    """What a run of `train ptp` has come to."""

    card: StudentCard
    validation: Validation
    text_perplexity: float | None
    """Weights "same": of the model as an ordinary language model."""


def train_lm(model: ModelSettings, data: DataSettings, settings: FitSettings, out: Path, bar: Bar) -> float:
    """Train a language model; returns its perplexity on the validation rows. Raises InputError for bad input."""
    base, training, held = _prepared(model, data, settings.seed)
    task = lm.LanguageTask(base, training)
    facts = {"task": "lm", "base": base.name, "config": asdict(base.config), "data": training.digest}
    with bar(f"the same command continues {out}") as tell:
        fitted = fit(task, settings, out, facts, tell)
    found = lm.perplexity(task.model, held)
    save.save_language_model(out, base, fitted, _facts(facts, settings, perplexity=found))
    return found


def train_ptp(
    model: ModelSettings,
    data: DataSettings,
    student: StudentSettings,
    ptp: PtpSettings,
    settings: FitSettings,
    out: Path,
    bar: Bar,
) -> Trained:
    """Train a PTP student, measure it and write its folder. Raises InputError for bad input."""
    _check_student(model, student, ptp)
    base, training, held = _prepared(model, data, settings.seed)
    teacher = None
    if model.config is not None and model.model is not None:
        teacher = CausalModel(load_base(model.model, model.device).model)
    trained = new_student(
        base,
        student.weights,
        student.embedding,
        seed=settings.seed,
        rank=student.rank,
        start=ptp.objective != "o-ptp",
    )
    facts: dict[str, Any] = {"task": "ptp", "base": base.name, "teacher": model.model if teacher else None}
    facts |= {"config": asdict(base.config), "data": training.digest, **asdict(student)}
    facts |= {**{item.name: getattr(ptp, item.name) for item in fields(ptp)}, "law": law_numbers(ptp.law)}
    task = PtpTask(trained, training, ptp, teacher)
    with bar(f"the same command continues {out}") as tell:
        fitted = fit(task, settings, out, facts, tell)
    with bar(None) as tell:
        validation = validate(task, held, tell=tell)
    text = lm.perplexity(trained.base, held) if student.weights == "same" else None
    card = save.save_student(
        out,
        base,
        trained,
        ptp,
        student.embedding,
        validation,
        fitted,
        _facts(facts, settings, text_perplexity=text),
    )
    return Trained(card, validation, text)


def law_for(source: str, asked: dict[str, Any]) -> SamplingSettings:
    """The law to train for: what the user named on top of the samples' own, or of temperature 1.

    Raises InputError if samples were drawn from another law than was asked for.
    """
    folder = Path(source).expanduser()
    if not is_samples(folder):
        return replace(PLAIN, **asked)
    drawn = sampled_law(folder)
    for name, value in asked.items():
        if getattr(drawn, name) != value:
            raise InputError(f"{source}: the samples were drawn with {name} {getattr(drawn, name)}, not {value}")
    return drawn


def _check_student(model: ModelSettings, student: StudentSettings, ptp: PtpSettings) -> None:
    if (student.embedding == "none") != (ptp.objective == "independent"):
        raise InputError("--embedding none goes with --objective independent, and only with it")
    if model.config is not None and student.weights != "same":
        raise InputError(f"--config makes a new model, which is its own base: --weights same, not {student.weights}")
    if ptp.objective == "scratch" and model.config is not None and model.model is not None:
        raise InputError("objective scratch has no teacher: give --config with --tokenizer, or --model alone")


def _prepared(model: ModelSettings, data: DataSettings, seed: int) -> tuple[Base, Rows, Rows]:
    """The model, rows to train on, and rows to validate with."""
    documents = _documents(data.source, data.files)
    base = _base(model, documents, data, seed)
    if base.config.context < data.sequence:
        raise InputError(f"--sequence {data.sequence} is longer than the model's context of {base.config.context}")
    training = _rows(data, data.source, documents, base)
    if data.validation is None:
        training, held = training.split(data.held_out)
        return base, training, held.take(slice(0, data.validation_rows))
    return base, training, held_out(data, base)


def held_out(data: DataSettings, base: Base) -> Rows:
    """The rows of `data.validation`. Raises InputError if there is none, or it cannot be read."""
    if data.validation is None:
        raise InputError("no text to validate with is named")
    held = _rows(data, data.validation, _documents(data.validation, data.files), base)
    return held.take(slice(0, data.validation_rows))


def _documents(source: str, files: str) -> list[Document]:
    """The documents of a source; none of teacher samples, which have rows already."""
    return [] if is_samples(Path(source).expanduser()) else read_documents(source, files)


def _base(model: ModelSettings, documents: list[Document], data: DataSettings, seed: int) -> Base:
    if model.config is None:
        return load_base(str(model.model), model.device)
    if model.model is not None:
        tokenizer = make_tokenizer(model.model, ())
    else:
        tokenizer = make_tokenizer(str(model.tokenizer), texts_of(documents))
    return new_base(model.config, tokenizer, seed, context=data.sequence, device=model.device)


def _rows(data: DataSettings, source: str, documents: list[Document], base: Base) -> Rows:
    folder = Path(source).expanduser()
    if is_samples(folder):
        return read_samples(folder, data.sequence, vocab_size=base.config.vocab_size)
    return rows_of(documents, base.tokenizer, data.sequence, vocab_size=base.config.vocab_size, pack=data.pack)


def _facts(facts: dict[str, Any], settings: FitSettings, **found: float | None) -> dict[str, Any]:
    versions = {"torch": str(torch.__version__), "threads": torch.get_num_threads()}
    return {**facts, "fit": asdict(settings), "versions": versions, **found}
