"""Tiny models, texts and students for the tests of training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from betoken.models.student import EmbeddingKind, Objective, WeightKind
from betoken.training.build import Base, new_base, new_student
from betoken.training.data import Rows, rows_of
from betoken.training.fit import Fitted
from betoken.training.model import StudentModel
from betoken.training.ptp import PtpSettings, PtpTask
from betoken.training.save import save_language_model
from betoken.training.vocabulary import make_tokenizer

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TEXT = "the quick brown fox jumps over the lazy dog. " * 60


def config_file(folder: Path, **sizes: Any) -> Path:
    """A JSON file of tiny sizes."""
    path = folder / "tiny.json"
    path.write_text(json.dumps(SIZES | sizes))
    return path


def tiny_base(folder: Path, *, seed: int = 0, spread: float = 8.0, **sizes: Any) -> Base:
    """A byte-level model whose weights are large enough that every part of it matters."""
    base = new_base(config_file(folder, **sizes), make_tokenizer("bytes", ()), seed, context=256)
    with torch.no_grad():
        for name, weight in base.model.named_parameters():
            if not name.endswith("norm.weight"):
                weight.mul_(spread)
    return base


def saved_base(folder: Path) -> str:
    """The same as a model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_language_model(folder, tiny_base(folder), Fitted(("loss",), [[0.0]]), {})
    return str(folder)


def tiny_student(
    base: Base, kind: WeightKind, embedding: EmbeddingKind, *, start: bool = True, disturb: float = 0.2
) -> StudentModel:
    """A student whose adapter and start vector change something: a fresh adapter is the identity."""
    model = new_student(base, kind, embedding, seed=1, rank=4, start=start)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters().values():
            weight.add_(torch.randn(weight.shape, generator=generator).to(weight.dtype) * disturb)
    return model


def text_rows(base: Base, sequence: int = 40) -> Rows:
    """Rows of a short text."""
    return rows_of([TEXT], base.tokenizer, sequence, vocab_size=base.config.vocab_size)


def tiny_task(
    base: Base,
    objective: Objective,
    kind: WeightKind = "lora",
    embedding: EmbeddingKind = "interpolated",
    **settings: Any,
) -> PtpTask:
    """A task over the short text."""
    model = new_student(base, kind, embedding, seed=1, rank=4, start=objective != "o-ptp")
    options = {"window": 4, "cuts": 3} | settings
    return PtpTask(model, text_rows(base), PtpSettings(objective=objective, **options))


def quiet(done: int, total: int, what: str) -> None:
    """A progress bar that shows nothing."""


@contextmanager
def no_bar(resume: str | None) -> Iterator[Callable[[int, int, str], None]]:
    """The same for whole jobs."""
    yield quiet


def weights_of(task: PtpTask) -> dict[str, np.ndarray]:
    """A copy of what is trained."""
    return {name: weight.detach().numpy().copy() for name, weight in task.parameters().items()}
