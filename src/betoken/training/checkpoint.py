"""Where a training run has come to, in one safetensors file that is replaced as a whole.

Tensors: `weight/NAME`, AdamW's `first/NAME` and `second/NAME`, and `history` [steps, columns] float64. Metadata: the
step, the names of the history's columns, and the configuration, which a continued run must share.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from betoken.errors import InputError
from betoken.models.files import disk_errors
from betoken.models.save import write_safetensors

NAME = "checkpoint.safetensors"
_MOMENTS = (("first", "exp_avg"), ("second", "exp_avg_sq"))


@dataclass(frozen=True)
class Progress:
    """What a checkpoint restores besides weights and moments."""

    step: int
    history: list[list[float]]
    """One row a step."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A full or read-only disk in one clear line; what was written before is still whole."""
    with disk_errors(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        yield


def save(
    folder: Path,
    progress: Progress,
    columns: tuple[str, ...],
    weights: Mapping[str, nn.Parameter],
    optimizer: torch.optim.AdamW,
    configuration: Mapping[str, Any],
) -> None:
    """Replace the checkpoint of a folder. Raises InputError if it cannot be written; the old one is kept then."""
    history = torch.tensor(progress.history, dtype=torch.float64).reshape(progress.step, len(columns))
    tensors = {"history": history}
    for name, weight in weights.items():
        tensors[f"weight/{name}"] = weight
        for short, long in _MOMENTS:
            tensors[f"{short}/{name}"] = optimizer.state[weight].get(long, torch.zeros_like(weight))
    metadata = {
        "step": str(progress.step),
        "columns": json.dumps(columns),
        "configuration": json.dumps(configuration, sort_keys=True),
    }
    with writing(folder):
        replace_file(folder / NAME, tensors, metadata)


def replace_file(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file beside `path`, then put it in its place: `path` is whole at any moment."""
    fresh = path.with_name(f".{path.name}.tmp")
    try:
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
        write_safetensors(fresh, shapes, dtypes, tensors.__getitem__, metadata=metadata)
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def load(
    folder: Path,
    columns: tuple[str, ...],
    weights: Mapping[str, nn.Parameter],
    optimizer: torch.optim.AdamW,
    configuration: Mapping[str, Any],
) -> Progress | None:
    """Put weights and moments back and say how far the run was; None where there is no checkpoint.

    Raises InputError for a checkpoint of another configuration, and for a file that cannot be read.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            known = file.metadata() or {}
            check_same(path, json.loads(known.get("configuration", "{}")), configuration)
            step = int(known["step"])
            _restore(file, step, weights, optimizer)
            history = file.get_tensor("history").tolist()
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: cannot be read ({error}); remove it to start again") from error
    if json.loads(known["columns"]) != list(columns):
        raise InputError(f"{path}: was written by another version of betoken; remove it to start again")
    return Progress(step, history)


def check_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises InputError, naming the first difference, unless both configurations are equal."""
    now = json.loads(json.dumps(now))
    for name in sorted(set(before) | set(now)):
        if before.get(name) != now.get(name):
            raise InputError(
                f"{path}: was made with {name} {before.get(name)}, not {now.get(name)}: "
                "use the same settings to continue it, or choose another --out"
            )


def _restore(file: Any, step: int, weights: Mapping[str, nn.Parameter], optimizer: torch.optim.AdamW) -> None:
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(file.get_tensor(f"weight/{name}"))
            if step:
                moments = {long: file.get_tensor(f"{short}/{name}").to(weight.device) for short, long in _MOMENTS}
                optimizer.state[weight] = {"step": torch.tensor(float(step)), **moments}
