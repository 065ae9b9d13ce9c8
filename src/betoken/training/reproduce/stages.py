"""Trainings that belong together, each in a folder of its own under one, where the same call continues it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from betoken.bench import provenance
from betoken.errors import InputError
from betoken.models.student import EmbeddingKind, Objective
from betoken.state import SamplingSettings
from betoken.training import jobs
from betoken.training.build import load_base
from betoken.training.fit import FitSettings
from betoken.training.model import CausalModel
from betoken.training.objectives import PLAIN
from betoken.training.ptp import PtpSettings
from betoken.training.validate import Validation, validate_draft_model

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """How teachers and students of one reproduction learn."""

    batch: int
    """Rows of a step."""
    lr: float
    window: int
    """Nodes of a student's branch."""
    cuts: int

    def fit(self, steps: int, seed: int) -> FitSettings:
        """How each training runs."""
        return FitSettings(steps=steps, batch=self.batch, lr=self.lr, schedule="cosine", seed=seed)

    @property
    def law(self) -> SamplingSettings:
        """The sampling law that students learn, and answers are drawn from: the teacher's own."""
        return PLAIN

    def ptp(self, objective: Objective, seed: int) -> PtpSettings:
        """What a student learns."""
        return PtpSettings(objective=objective, window=self.window, cuts=self.cuts, law=self.law, seed=seed)


@dataclass(frozen=True)
class Stages:
    """Trainings on the same rows and with the same vocabulary."""

    folder: Path
    tokenizer: str
    """Of new models; see `vocabulary.make_tokenizer`."""
    data: jobs.DataSettings
    bar: jobs.Bar

    def language_model(self, name: str, config: Path, fit: FitSettings) -> float:
        """Train an ordinary model of the sizes in `config` in the folder `name`; returns its validation perplexity."""
        model = jobs.ModelSettings(config=config, tokenizer=self.tokenizer)
        return jobs.train_lm(model, self.data, fit, self.folder / name, self.bar)

    def student(
        self, name: str, base: str, ptp: PtpSettings, embedding: EmbeddingKind, fit: FitSettings
    ) -> jobs.Trained:
        """Train a student, a full copy of the model in the folder `base`, in the folder `name`."""
        model = jobs.ModelSettings(model=str(self.folder / base))
        reads = "none" if ptp.objective == "independent" else embedding
        student = jobs.StudentSettings(weights="full", embedding=reads)
        return jobs.train_ptp(model, self.data, student, ptp, fit, self.folder / name, self.bar)

    def from_scratch(
        self, name: str, config: Path, ptp: PtpSettings, embedding: EmbeddingKind, fit: FitSettings
    ) -> jobs.Trained:
        """Train one model of the sizes in `config` that reads tokens and numbers, without a teacher."""
        model = jobs.ModelSettings(config=config, tokenizer=self.tokenizer)
        student = jobs.StudentSettings(weights="same", embedding=embedding)
        return jobs.train_ptp(model, self.data, student, ptp, fit, self.folder / name, self.bar)

    def guesses(self, teacher: str, drafter: str, ptp: PtpSettings) -> Validation:
        """How an ordinary model drafts for another, a call a token, on the branches that students are measured on."""
        base, other = (load_base(str(self.folder / name)) for name in (teacher, drafter))
        rows = jobs.held_out(self.data, base)
        return validate_draft_model(CausalModel(base.model), CausalModel(other.model), rows, ptp)


def check_heads(hidden_size: int, heads: int) -> None:
    """Raises InputError for a width that so many attention heads cannot share."""
    if hidden_size < 1 or hidden_size % (2 * heads):
        raise InputError(f"hidden_size must be a multiple of twice the {heads} attention heads, not {hidden_size}")


def check_window(name: str, window: int, sequence: int) -> None:
    """Raises InputError for a branch that is too short to draft anything, or longer than a row of data."""
    if not 2 <= window < sequence:
        raise InputError(f"{name} must be from 2 to {sequence - 1}, not {window}")


def write_texts(path: Path, texts: Sequence[str]) -> None:
    """A .jsonl file of documents. Raises InputError if it cannot be written."""
    _replace(path, "".join(json.dumps({"text": text}) + "\n" for text in texts))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON file, in a folder that is made if need be. Raises InputError if it cannot be written."""
    _replace(path, json.dumps(value, indent=1) + "\n")


def publish(result: Path, text: str, settings: Mapping[str, Any]) -> str:
    """Write a Markdown file, and beside it where its numbers come from; returns the text."""
    provenance.write_provenance(result, settings)
    provenance.replace(result, text + "\n")
    return text


def _replace(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path.parent}: cannot be made ({error.strerror})") from None
    provenance.replace(path, text)
