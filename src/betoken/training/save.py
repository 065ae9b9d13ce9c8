"""What training leaves: a student folder, or a model folder, written beside its place and moved there file by file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from betoken.models.save import write_json, write_model, write_safetensors
from betoken.models.student import EMBEDDING, EmbeddingKind, StudentCard, sizes_of
from betoken.training.build import Base, canonical
from betoken.training.checkpoint import writing
from betoken.training.fit import Fitted
from betoken.training.model import StudentModel
from betoken.training.plots import plot_history
from betoken.training.ptp import PtpSettings
from betoken.training.validate import Validation

FACTS = "training.json"


def save_language_model(out: Path, base: Base, fitted: Fitted, facts: Mapping[str, Any]) -> None:
    """A folder that `betoken.load` reads. `facts`: how it was made, for `training.json`."""
    with _published(out, fitted, facts) as stage:
        write_model(stage, base.config, base.tensors(), base.tokenizer)


def save_student(
    out: Path,
    base: Base,
    model: StudentModel,
    settings: PtpSettings,
    embedding: EmbeddingKind,
    validation: Validation,
    fitted: Fitted,
    facts: Mapping[str, Any],
) -> StudentCard:
    """A student folder (see `betoken.models.student`); `facts` as above."""
    card = StudentCard(
        objective=settings.objective,
        weights=model.kind,
        window=settings.window,
        embedding=embedding,
        law=settings.law,
        base="." if model.kind == "same" else base.name,
        base_config=sizes_of(base.config),
        first_runs=validation.first_runs,
        runs=validation.runs,
    )
    with _published(out, fitted, {**facts, "validation": asdict(validation)}) as stage:
        if model.kind == "lora":
            model.peft.save_pretrained(stage, save_embedding_layers=False)
        elif model.kind == "full":
            write_model(stage, base.config, canonical(model.student.model, base.config))
        else:
            write_model(stage, base.config, base.tensors(), base.tokenizer)
        _write_embedding(stage / EMBEDDING, model)
        (stage / "README.md").write_text(_readme(card, validation), encoding="utf-8")
        card.save(stage)
    return card


def _write_embedding(path: Path, model: StudentModel) -> None:
    tensors = {"start": model.start}
    if model.embedding is not None:
        tensors |= model.embedding.state_dict()
    plain = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in tensors.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in plain.items()}
    write_safetensors(path, shapes, dict.fromkeys(plain, torch.float32), plain.__getitem__)


@contextmanager
def _published(out: Path, fitted: Fitted, facts: Mapping[str, Any]) -> Iterator[Path]:
    """A folder whose files move to `out` when the block ends well; the run's plot and facts are added."""
    stage = out / ".fresh"
    with writing(out):
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir()
        try:
            yield stage
            write_json(stage / FACTS, {**facts, "last": dict(zip(fitted.columns, fitted.history[-1], strict=True))})
            plot_history(fitted.columns, fitted.history, stage / "loss.png")
            for path in sorted(stage.iterdir()):
                os.replace(path, out / path.name)
        finally:
            shutil.rmtree(stage, ignore_errors=True)


def _readme(card: StudentCard, validation: Validation) -> str:
    law = card.law
    runs = ", ".join(f"{value:.3f}" for value in card.first_runs)
    base = "the model in this folder" if card.base == "." else card.base
    folder = "." if card.base == "." else "FOLDER"
    dtype = " --dtype float32" if card.weights == "full" else ""  # the others run in int8, too
    how = f"betoken generate --model {card.base}{dtype} --drafter ptp --set drafter.student={folder}"
    perplexity = "" if validation.perplexity is None else f"- perplexity of the branches: {validation.perplexity:.3f}\n"
    return f"""---
library_name: betoken
tags: [ptp, speculative-decoding]
---
# PTP student of {base}

A student for parallel token prediction (arXiv 2512.21323): auxiliary nodes whose inputs are random numbers say the
tokens that the base picks with the same numbers. The base verifies them, so its text does not change.

- objective: {card.objective}; weights: {card.weights}; u embedding: {card.embedding}; window: {card.window}
- sampling law it was trained for: temperature {law.temperature:g}, top-k {law.top_k}, top-p {law.top_p:g}, min-p \
{law.min_p:g}. Under other settings the text is still the base's, and fewer drafts are right.
- right tokens in a row on held-out text: {validation.mean_run:.2f} of {card.window} ({validation.branches} branches)
- P(the first 1, 2, ... are right): {runs}
{perplexity}
    {how} \\
        --temperature {law.temperature:g} --top-k {law.top_k} --top-p {law.top_p:g} --min-p {law.min_p:g} --prompt TEXT

How it was made: `{FACTS}`; the run: `loss.png`; numbers for programs: `ptp.json`.
"""
