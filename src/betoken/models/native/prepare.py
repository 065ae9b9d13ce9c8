"""From a model folder to packed weights: equalised, rounded, and kept in the cache folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.models.config import DecoderConfig
from betoken.models.native.image import Arrays, in_memory
from betoken.models.native.model import Named, layer_tensors, pack_head, pack_layer
from betoken.models.weights import Weights


def prepared(
    folder: Path, config: DecoderConfig, dtype: str, cache_dir: Path | None
) -> tuple[Arrays, NDArray[np.generic]]:
    """Packed arrays and embeddings [V, hidden]."""
    weights = Weights(folder, config)
    embeddings = weights["model.embed_tokens.weight"].to(torch.float16 if dtype == "int8" else torch.float32).numpy()
    return in_memory(_packed(weights, config, dtype == "int8")), embeddings


def _packed(weights: Weights, config: DecoderConfig, int8: bool) -> Named:
    for number in range(config.num_layers):
        yield from pack_layer(layer_tensors(weights, config, number), config, number, int8)
    yield from pack_head(weights, config, int8)
