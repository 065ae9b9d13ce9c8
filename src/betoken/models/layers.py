"""The weights of one decoder layer in torch, and the two operations that read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional as F  # noqa: N812 - the name every torch user knows

from betoken.models.config import DecoderConfig

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


class Tensors(Protocol):
    """Canonical tensors by name: a dictionary, or the `Weights` of a folder."""

    def __getitem__(self, name: str, /) -> torch.Tensor:
        """One tensor."""


@dataclass(frozen=True)
class Layer:
    """Weights of one layer, matrices [out, in]; products that read the same input are one matrix."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    """[(heads + 2 kv_heads) * head_dim, hidden]: queries, keys, values."""
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    """[2 * intermediate, hidden]"""
    down: torch.Tensor


def read_layer(
    weights: Tensors, config: DecoderConfig, number: int, placed: Callable[[torch.Tensor], torch.Tensor]
) -> Layer:
    """One layer of a model; `placed` brings a tensor to the dtype and device it is computed in."""
    prefix = f"model.layers.{number}."

    def get(name: str) -> torch.Tensor:
        return placed(weights[prefix + name])

    def fused(names: Sequence[str], kind: str) -> torch.Tensor:
        return torch.cat([get(f"{name}.{kind}") for name in names])

    return Layer(
        input_norm=get("input_layernorm.weight"),
        qkv=fused(QKV, "weight"),
        qkv_bias=fused(QKV, "bias") if config.qkv_bias else None,
        q_norm=get("self_attn.q_norm.weight") if config.qk_norm else None,
        k_norm=get("self_attn.k_norm.weight") if config.qk_norm else None,
        o=get("self_attn.o_proj.weight"),
        post_norm=get("post_attention_layernorm.weight"),
        gate_up=fused(GATE_UP, "weight"),
        down=get("mlp.down_proj.weight"),
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root mean square norm over the last dimension, computed in float32."""
    normed = F.rms_norm(x.to(torch.float32), weight.shape, None, eps)
    return weight * normed.to(x.dtype)
