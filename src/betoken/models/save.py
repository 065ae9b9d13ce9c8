"""Write a model folder that betoken and transformers both read, tensor by tensor."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from betoken.models.config import DecoderConfig
from betoken.models.tokenizer import Tokenizer

_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_NAMES |= {torch.int64: "I64", torch.int32: "I32"}


def write_model(
    folder: Path, config: DecoderConfig, tensors: Mapping[str, torch.Tensor], tokenizer: Tokenizer | None = None
) -> None:
    """A whole model that is already in memory, into a folder that is made if it does not exist.

    `tensors`: canonical name -> tensor of the shape that `config.tensor_shapes` gives.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_settings(folder, config, tokenizer)
    dtypes = {name: tensors[name].dtype for name in config.tensor_shapes}
    write_safetensors(folder / "model.safetensors", config.tensor_shapes, dtypes, tensors.__getitem__)


def write_settings(folder: Path, config: DecoderConfig, tokenizer: Tokenizer | None) -> None:
    """`config.json`, `generation_config.json` and, with a tokenizer, its files."""
    write_json(folder / "config.json", config.to_hf())
    bos = {} if config.bos_id is None else {"bos_token_id": config.bos_id}
    write_json(folder / "generation_config.json", {"eos_token_id": list(config.eos_ids), **bos})
    if tokenizer is not None:
        write_tokenizer(folder, tokenizer, config.context)


def write_tokenizer(folder: Path, tokenizer: Tokenizer, context: int) -> None:
    """`tokenizer.json` and `tokenizer_config.json`, which alone are enough for `Tokenizer.from_folder`."""
    tokenizer.core.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= {"model_max_length": context, **tokenizer.special_names}
    if tokenizer.chat_template is not None:
        settings["chat_template"] = tokenizer.chat_template
    write_json(folder / "tokenizer_config.json", settings)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_safetensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, torch.dtype],
    get: Callable[[str], torch.Tensor],
    advance: Callable[[int], None] = lambda written: None,
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """A safetensors file written while its tensors are made: only one of them is in memory at a time.

    The format: 8 bytes with the length of the header, the header (JSON: dtype, shape and place of each tensor),
    the tensors without gaps. Wide dtypes come first so that each tensor is aligned to its own.
    `advance` is told the bytes of each tensor after it was written. `metadata`: texts to keep in the header.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    order = sorted(shapes, key=lambda name: -dtypes[name].itemsize)
    at = 0
    for name in order:
        end = at + math.prod(shapes[name]) * dtypes[name].itemsize
        header[name] = {"dtype": _NAMES[dtypes[name]], "shape": list(shapes[name]), "data_offsets": [at, end]}
        at = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in order:
            tensor = get(name)
            if tuple(tensor.shape) != tuple(shapes[name]) or tensor.dtype != dtypes[name]:
                raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}, not what the header says")
            data = tensor.detach().cpu().contiguous().view(torch.uint8).numpy()
            file.write(data.data)
            advance(data.nbytes)
