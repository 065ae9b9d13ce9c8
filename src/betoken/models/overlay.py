"""A student's weights on top of a target's, at auxiliary nodes and nowhere else (PTP's gated LoRA, arXiv 2512.21323).

The target's own products run over all nodes as they always do; what a student changes is then added to, or put in place
of, the rows of the auxiliary ones. So the other nodes' numbers are those of a pass without a student.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch.nn import functional as F  # noqa: N812 - the name every torch user knows

from betoken.errors import InputError
from betoken.models.config import DecoderConfig
from betoken.models.layers import GATE_UP, QKV, Layer, read_layer, rms_norm
from betoken.models.student import Adapter, Student

Place = Callable[[torch.Tensor], torch.Tensor]
"""Brings a tensor to the dtype and device of the target."""


class Change(Protocol):
    """What a student makes of one product."""

    def apply(self, y: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
        """Change the rows `at` [A] of the product y [T, out] of x [T, in], in place."""


@dataclass(frozen=True)
class LowRank:
    """y + up (down x), the scale within `up`."""

    down: torch.Tensor
    """[r, in]"""
    up: torch.Tensor
    """[out, r]"""

    def apply(self, y: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
        """See `Change`."""
        y[at] += F.linear(F.linear(x[at], self.down), self.up)


@dataclass(frozen=True)
class Other:
    """Another matrix [out, in] in place of the target's."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def apply(self, y: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
        """See `Change`."""
        y[at] = F.linear(x[at], self.weight, self.bias)


@dataclass(frozen=True)
class LayerOverlay:
    """What a student changes in one layer; None leaves the target's."""

    input_norm: torch.Tensor | None = None
    qkv: Change | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    o: Change | None = None
    post_norm: torch.Tensor | None = None
    gate_up: Change | None = None
    down: Change | None = None


UNCHANGED = LayerOverlay()


@dataclass(frozen=True)
class Gate:
    """Which of the T nodes of a pass go by the student's weights."""

    at: torch.Tensor | None
    """[A] their places among the T; None for none."""

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, change: Change | None = None
    ) -> torch.Tensor:
        """[T, out] the product of x [T, in], changed at the gated nodes."""
        y = F.linear(x, weight, bias)
        if self.at is not None and change is not None:
            change.apply(y, x, self.at)
        return y

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, other: torch.Tensor | None) -> torch.Tensor:
        """The norm of x [T, ...] over its last dimension, with the weight `other` at the gated nodes."""
        y = rms_norm(x, weight, eps)
        if self.at is not None and other is not None:
            y[self.at] = rms_norm(x[self.at], other, eps)
        return y


@dataclass(frozen=True)
class Overlay:
    """A student, ready to take part in a target's passes."""

    student: Student
    place: Place
    layers: Sequence[LayerOverlay]
    final_norm: torch.Tensor | None = None
    head: Change | None = None
    start: torch.Tensor = field(init=False)
    """[H] what a probe with START_INPUT reads."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", self.place(self.student.start))

    @classmethod
    def of(cls, student: Student, config: DecoderConfig, name: str, place: Place) -> Overlay:
        """The student on a target of this config and name. Raises InputError if it does not fit."""
        student.card.check_base(config, name)
        if student.tensors:
            return cls._full(student, config, name, place)
        return cls._low_rank(student, config, name, place)

    def vectors(self, inputs: torch.Tensor) -> torch.Tensor:
        """[A, H] input vectors of auxiliary inputs [A] float64: random numbers, or START_INPUT."""
        embedding = self.student.embedding
        if embedding is None:
            return self.start.expand(len(inputs), -1)
        embedded = self.place(embedding(inputs.clamp(min=0.0).cpu()))
        return torch.where((inputs < 0.0)[:, None], self.start, embedded)

    @classmethod
    def _low_rank(cls, student: Student, config: DecoderConfig, name: str, place: Place) -> Overlay:
        """LoRA; without adapters (weights "same") nothing changes but the input vectors."""
        shapes = config.tensor_shapes
        left = dict(student.adapters)
        for matrix, adapter in left.items():
            if (adapter.up.shape[0], adapter.down.shape[1]) != shapes.get(matrix) or "embed" in matrix:
                raise InputError(f"{name}: the student's adapter changes {matrix}, which is no matrix of this model")

        def change(matrices: Sequence[str]) -> Change | None:
            return _joined({matrix: left.get(f"{matrix}.weight") for matrix in matrices}, shapes, place)

        layers = []
        for number in range(config.num_layers):
            qkv, o, gate_up, down = (
                change([f"model.layers.{number}.{part}" for part in parts])
                for parts in (QKV, ["self_attn.o_proj"], GATE_UP, ["mlp.down_proj"])
            )
            layers.append(LayerOverlay(qkv=qkv, o=o, gate_up=gate_up, down=down))
        return cls(student, place, layers, head=None if config.tied_embeddings else change(["lm_head"]))

    @classmethod
    def _full(cls, student: Student, config: DecoderConfig, name: str, place: Place) -> Overlay:
        tensors = student.tensors
        for tensor, shape in config.tensor_shapes.items():
            if tensor != "lm_head.weight" and (tensor not in tensors or tuple(tensors[tensor].shape) != shape):
                raise InputError(f"{name}: the student has no {tensor} of shape {list(shape)}: it is of another model")
        layers = [_replaced(read_layer(tensors, config, number, place)) for number in range(config.num_layers)]
        head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])  # either may have tied the two
        return cls(student, place, layers, place(tensors["model.norm.weight"]), Other(place(head)))


def _replaced(layer: Layer) -> LayerOverlay:
    return LayerOverlay(
        input_norm=layer.input_norm,
        qkv=Other(layer.qkv, layer.qkv_bias),
        q_norm=layer.q_norm,
        k_norm=layer.k_norm,
        o=Other(layer.o),
        post_norm=layer.post_norm,
        gate_up=Other(layer.gate_up),
        down=Other(layer.down),
    )


def _joined(
    adapters: Mapping[str, Adapter | None], shapes: Mapping[str, tuple[int, ...]], place: Place
) -> LowRank | None:
    """The changes of matrices that are computed as one product, as one change."""
    downs, ups = [], []
    for matrix, adapter in adapters.items():
        if adapter is None:
            ups.append(torch.zeros(shapes[f"{matrix}.weight"][0], 0))
        else:
            downs.append(adapter.down)
            ups.append(adapter.up * adapter.scale)
    if not downs:
        return None
    return LowRank(place(torch.cat(downs)), place(torch.block_diag(*ups)))  # type: ignore[no-untyped-call]
