"""Canonical tensors of a safetensors folder, one at a time: names and shapes are checked before any is read.

Canonical names are those of Hugging Face's Llama (`model.layers.3.self_attn.q_proj.weight`); see
`DecoderConfig.tensor_shapes`. Never more than one tensor is in memory here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from betoken.errors import InputError
from betoken.models.config import DecoderConfig, read_json

_DTYPES = {"F64", "F32", "F16", "BF16"}
_IGNORED = re.compile(r".*rotary_emb\.inv_freq|lm_head\.weight")
"""Recomputed (inv_freq of old Llama files) or, when embeddings are tied, a copy of the embedding."""


class Weights:
    """The tensors of a model folder. Opening it checks every name, shape and dtype against the config.

    Raises InputError, naming file and tensor, for a file that is missing, truncated or corrupt, and for a tensor that
    is missing, unexpected, of another shape, or not of a floating dtype.
    """

    def __init__(self, folder: Path, config: DecoderConfig) -> None:
        self.folder = folder
        self.shapes = config.tensor_shapes
        self._files: dict[Path, Any] = {}
        self._where = _tensor_files(folder)
        self._check()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) in the order of `DecoderConfig.tensor_shapes`, each read when it is its turn."""
        for name in self.shapes:
            yield name, self[name]

    def __getitem__(self, name: str) -> torch.Tensor:
        """One tensor, of the dtype it is stored in, on the CPU."""
        path = self._where[name]
        try:
            tensor: torch.Tensor = self._open(path).get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: tensor {name} cannot be read ({error})") from error
        return tensor

    def _check(self) -> None:
        for name, shape in self.shapes.items():
            if name not in self._where:
                raise InputError(f"{self.folder}: tensor {name} is missing")
            path = self._where[name]
            try:
                entry = self._open(path).get_slice(name)
            except SafetensorError as error:
                raise InputError(f"{path}: tensor {name} is missing") from error
            found = tuple(entry.get_shape())
            if found != shape:
                raise InputError(f"{path}: tensor {name} has shape {list(found)}, the config says {list(shape)}")
            if entry.get_dtype() not in _DTYPES:
                raise InputError(f"{path}: tensor {name} is {entry.get_dtype()}; only float weights are read")
        for name, path in self._where.items():
            if name not in self.shapes and not _IGNORED.fullmatch(name):
                raise InputError(f"{path}: unexpected tensor {name}; the config does not describe this model")

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            self._files[path] = _open_file(path)
        return self._files[path]


def _open_file(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError as error:
        raise InputError(f"{path}: the file is missing") from error
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: truncated or corrupt safetensors file ({error})") from error


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Tensor name -> file that holds it, by the index of a sharded model or the header of a single file."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _sharded(folder, index)
    single = folder / "model.safetensors"
    if not single.is_file():
        raise InputError(_nothing_to_read(folder))
    return dict.fromkeys(_open_file(single).keys(), single)


def _sharded(folder: Path, index: Path) -> dict[str, Path]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise InputError(f"{index}: no weight_map")
    for name, file in names.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise InputError(f"{index}: tensor {name} must name a file of the same folder, not {file!r}")
    where = {name: folder / file for name, file in names.items()}
    for path in sorted(set(where.values())):
        for name in _open_file(path).keys():  # noqa: SIM118 - a safetensors handle, not a dict
            where.setdefault(name, path)
    return where


def _nothing_to_read(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder}: no such model folder"
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        return f"{folder}: only pickled weights (.bin); write safetensors first with `betoken convert {folder}`"
    gguf = next(iter(sorted(folder.glob("*.gguf"))), None)
    if gguf:
        return f"{folder}: no safetensors in this folder; name the GGUF file itself: {gguf}"
    return f"{folder}: no model.safetensors in this folder"
