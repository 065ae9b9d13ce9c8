"""A student's low-rank changes in kernel layout (PTP's gated LoRA, arXiv 2512.21323); adapters.py computes with them.

Packed layers are equalised: a product's inputs are divided by channel, and the value and up rows that make such inputs
with them. A change of the original weights is rescaled in the same way, so it means the same.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.errors import InputError
from betoken.models.config import DecoderConfig
from betoken.models.native.emit import BLOCK
from betoken.models.native.equalise import PRODUCTS
from betoken.models.native.image import Arrays
from betoken.models.native.model import EQUALISED, fill_matrix
from betoken.models.native.pack import Packed, interleave, pack_float32, pack_int8, padded
from betoken.models.overlay import LayerOverlay, LowRank, Overlay
from betoken.models.student import NOT_ON_KERNELS, Student

Scale = Callable[[str], torch.Tensor]
"""Name of a product of one layer -> [K] what its inputs are divided by."""


class NativeStudent:
    """A student on a target: its changes, which the layers' records point to, and its input vectors."""

    def __init__(
        self,
        student: Student,
        config: DecoderConfig,
        name: str,
        arrays: Arrays,
        model: np.void,
        layers: NDArray[np.void],
    ) -> None:
        """Write the addresses of its changes into the records `layers`; `arrays` and `model` are the target's.

        Raises InputError for a student of another model, and for one that is more than changes of the layers.
        """
        if student.tensors:
            raise InputError(f"{name}: {NOT_ON_KERNELS}")
        overlay = Overlay.of(student, config, name, lambda tensor: tensor.to(torch.float32))
        if overlay.head is not None:
            raise InputError(f"{name}: the student's adapter changes lm_head, which needs --dtype bfloat16 or float64")
        self._embedding, self._start = student.embedding, student.start.numpy()
        self._arrays: Arrays = {}
        self._model, self._rank = model, 0
        for number in range(config.num_layers):
            changes = _rescaled(overlay.layers[number], config, _scales(arrays, number))
            for product in PRODUCTS:
                self._point(layers[number][product], f"{number}.{product}", changes.get(product))

    @property
    def width(self) -> int:
        """float32 that a node's inputs take at most on the way through a change."""
        return padded(self._rank, BLOCK)

    def vectors(self, inputs: NDArray[np.float64]) -> NDArray[np.float32]:
        """[A, hidden] of auxiliary inputs [A].

        Feature by feature, since the bits of torch's products depend on how many rows they have.
        """
        out = np.tile(self._start, (len(inputs), 1))
        embedding, numbers = self._embedding, np.flatnonzero(inputs >= 0.0)
        if embedding is None or not len(numbers):
            return out
        features = embedding.features(torch.from_numpy(inputs[numbers])).numpy()
        found = np.tile(embedding.bias.numpy(), (len(numbers), 1))
        for feature, weight in zip(features.T, embedding.weight.T.numpy(), strict=True):
            found += feature[:, None] * weight
        out[numbers] = found
        return out

    def _point(self, product: NDArray[np.void], name: str, change: LowRank | None) -> None:
        for part in ("down", "up"):
            product[part] = 0
        if change is None:
            return
        self._rank = max(self._rank, change.down.shape[0])
        for part, matrix in (("down", change.down), ("up", change.up)):
            stem = f"{name}.{part}"
            self._arrays |= {f"{stem}.{key}": array for key, array in self._packed(matrix)._asdict().items()}
            fill_matrix(product[part], self._arrays, stem, matrix.shape[1], matrix.shape[0])

    def _packed(self, matrix: torch.Tensor) -> Packed:
        """Changes are of 8 bits where the target has 4: they are small."""
        if not self._model["int8"]:
            return pack_float32(matrix)
        packed = pack_int8(matrix)
        return packed if self._model["offset"] else packed._replace(shift=np.zeros_like(packed.shift))


def _scales(arrays: Arrays, number: int) -> Scale:
    def scale(product: str) -> torch.Tensor:
        found = arrays.get(f"{number}.{product}{EQUALISED}")
        return torch.ones(1) if found is None else torch.from_numpy(np.asarray(found))

    return scale


def _rescaled(layer: LayerOverlay, config: DecoderConfig, scale: Scale) -> dict[str, LowRank]:
    """The changes of one layer, rescaled as its products are, with gate and up interleaved."""
    found = {}
    for product, change in zip(PRODUCTS, (layer.qkv, layer.o, layer.gate_up, layer.down), strict=True):
        if not isinstance(change, LowRank):
            continue
        up = change.up.clone()
        if product == "qkv":
            values = config.num_kv_heads * config.head_dim
            up[-values:] /= _of_values(scale("out"), config)[:, None]
        if product == "gate_up":
            gate, inner = up.chunk(2)
            up = interleave(gate, inner / scale("down")[:, None])
        found[product] = LowRank(change.down * scale(product), up)
    return found


def _of_values(scale: torch.Tensor, config: DecoderConfig) -> torch.Tensor:
    """The scale of the output product's inputs by value channel: query heads of a group share it."""
    if len(scale) == 1:
        return scale
    return scale.view(config.num_kv_heads, -1, config.head_dim)[:, 0].flatten()
