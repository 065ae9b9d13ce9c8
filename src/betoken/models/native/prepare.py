"""From a model folder to packed weights: equalised, rounded, and kept in the cache folder."""

from __future__ import annotations

import hashlib
import logging
import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.errors import InputError
from betoken.models.config import DecoderConfig
from betoken.models.files import BarProgress, disk_errors, locked, need_room, staged_folder
from betoken.models.native.equalise import Equaliser, calibration_tokens
from betoken.models.native.image import Arrays, in_memory, read_image, write_image
from betoken.models.native.model import pack_model
from betoken.models.native.pack import to_int4, to_int8
from betoken.models.store import cache_root
from betoken.models.tokenizer import Tokenizer
from betoken.models.weights import Weights

_FORMATS = {"int8": "2 ", "int4": "int4 2 "}
"""Change when packed weights do, so that old ones are made again."""
_FITTED_ROWS = 160
"""Output channels of a product on which equalisations for int4 are compared: rounding all would take minutes."""

log = logging.getLogger("betoken")
Embeddings = NDArray[np.float16] | NDArray[np.float32]


def prepared(folder: Path, config: DecoderConfig, dtype: str, cache_dir: Path | None) -> tuple[Arrays, Embeddings]:
    """Packed arrays and embeddings [V, hidden] of a model folder.

    float32 weights are packed in memory. Integer ones are made once, which takes seconds to minutes, and kept under
    `<cache>/packed/`. Raises InputError for weights that cannot be read and for a full disk.
    """
    if dtype == "float32":
        weights = Weights(folder, config)
        embeddings = weights["model.embed_tokens.weight"].to(torch.float32).numpy()
        return in_memory(pack_model(weights, config, dtype)), embeddings
    kept = cache_root(cache_dir) / "packed" / f"{folder.name}-{_fingerprint(folder, dtype)}"
    with locked(kept):
        if not kept.is_dir():
            _prepare(folder, config, dtype, kept)
    try:
        return read_image(kept / "weights.image"), np.load(kept / "embeddings.npy", mmap_mode="r")
    except (InputError, ValueError, OSError) as error:
        log.warning("%s: damaged (%s); packing %s again", kept, error, folder.name)
        with locked(kept):
            _prepare(folder, config, dtype, kept)
        return read_image(kept / "weights.image"), np.load(kept / "embeddings.npy", mmap_mode="r")


def _prepare(folder: Path, config: DecoderConfig, dtype: str, kept: Path) -> None:
    """Write `kept` whole or not at all."""
    weights = Weights(folder, config)
    size = sum(math.prod(shape) for shape in config.tensor_shapes.values())
    with disk_errors(kept.parent):
        need_room(kept.parent, size + 3 * config.vocab_size * config.hidden_size)
        with (
            staged_folder(kept) as stage,
            BarProgress().task(f"packing {folder.name} to {dtype} (once)", size) as advance,
        ):
            embeddings = weights["model.embed_tokens.weight"]
            np.save(stage / "embeddings.npy", embeddings.to(torch.float16).numpy())
            tokens = calibration_tokens(Tokenizer.from_folder(folder))
            if tokens.max() >= config.vocab_size:
                raise InputError(
                    f"{folder}: its tokenizer names token {tokens.max()}, but the model has {config.vocab_size}: "
                    "they do not belong together"
                )
            rounding, rows = (to_int4, _FITTED_ROWS) if dtype == "int4" else (to_int8, None)
            equalise = Equaliser(config, embeddings, tokens, rounding, rows)
            write_image(stage / "weights.image", pack_model(weights, config, dtype, equalise, advance))


def _fingerprint(folder: Path, dtype: str) -> str:
    """Of a dtype; changes when the model's files do: their names, sizes, times, and the config's text."""
    digest = hashlib.sha256(_FORMATS[dtype].encode() + (folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        stat = path.stat()
        digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns} ".encode())
    return digest.hexdigest()[:12]
