"""The native forward pass again, in plain numpy: one token at a time, every sum in the order the kernels promise.

It shares no code with the kernels. What it must repeat to the last bit: products are multiplied and added in two
roundings; sums over a row run in 16 lanes that are then halved together; int8 sums are integers; a query meets its
keys in position order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.models.config import DecoderConfig
from betoken.models.rope import inverse_frequencies

F = np.float32
Array = NDArray[np.float32]


def in_order(terms: Array) -> Array:
    """Sum over the first axis, term by term."""
    return np.cumsum(terms, axis=0, dtype=np.float32)[-1]


def in_lanes(values: Array) -> np.float32:
    """Sum of a vector: 16 lanes in order, then halves with halves."""
    padded = np.zeros(-(-values.size // 16) * 16, dtype=np.float32)
    padded[: values.size] = values
    lanes = in_order(padded.reshape(-1, 16))
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return lanes[0]


def exp(x: Array) -> Array:
    bounded = np.minimum(np.maximum(x, F(-87)), F(88))
    magic = F(12582912)
    whole = (bounded * F(1.44269504088896341) + magic) - magic
    r = (bounded - whole * F(0.693359375)) - whole * F(-2.12194440e-4)
    p = F(1.9875691500e-4) * r + F(1.3981999507e-3)
    for coefficient in (8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + F(coefficient)
    value = (p * (r * r) + r) + F(1)
    power = ((whole.astype(np.int32) + 127) << 23).view(np.float32)
    return np.where(x >= F(-87), value * power, F(0)).astype(np.float32)


def norm(x: Array, weight: Array, eps: float) -> Array:
    mean = in_lanes(x * x) / F(x.size)
    return (x * (F(1) / np.sqrt(mean + F(eps)))) * weight


def to_127_levels(weight: Array) -> tuple[NDArray[np.float32], Array]:
    """Integers [N, K] of at most 127 levels a side, and the scale [N] of one."""
    scale = np.abs(weight).max(axis=1) / F(127)
    return np.rint(weight / np.where(scale > 0, scale, F(1))[:, None]), scale


Rounded = Callable[[Array], tuple[NDArray[np.generic], Array]] | None
"""How weights become integers with a scale per output; None where they stay float32."""


class ReferenceModel:
    """One row, decoded plainly."""

    def __init__(self, config: DecoderConfig, tensors: Mapping[str, torch.Tensor], rounded: Rounded) -> None:
        self.config, self.rounded = config, rounded
        self.tensors = {name: tensor.to(torch.float32).numpy() for name, tensor in tensors.items()}
        matrices = [tensor for tensor in self.tensors.values() if tensor.ndim == 2]
        self.integers = {} if rounded is None else {id(matrix): rounded(matrix) for matrix in matrices}
        self.keys: list[list[Array]] = [[] for _ in range(config.num_layers)]
        self.values: list[list[Array]] = [[] for _ in range(config.num_layers)]
        self.frequencies = inverse_frequencies(config)

    def product(self, x: Array, weight: Array) -> Array:
        if self.rounded is None:
            total = np.zeros(weight.shape[0], dtype=np.float32)
            padded = -(-x.size // 16) * 16
            terms = np.zeros((padded, weight.shape[0]), dtype=np.float32)
            terms[: x.size] = weight.T * x[:, None]
            for begin in range(0, padded, 128):
                total = total + in_order(terms[begin : begin + 128])
            return total
        levels, scale = self.integers[id(weight)]
        largest = np.abs(x).max()
        inverse = F(127) / largest if largest > 0 else F(0)
        rounded = np.rint(x * inverse)
        sums = levels.astype(np.int64) @ rounded.astype(np.int64)
        return (sums.astype(np.float32) * (largest / F(127))) * scale

    def next_logits(self, token: int, position: int) -> Array:
        """[V] after one more token of the row."""
        config = self.config
        x = self.tensors["model.embed_tokens.weight"][token].copy()
        if self.rounded is not None:
            x = x.astype(np.float16).astype(np.float32)
        angle = (torch.tensor([position], dtype=torch.float32)[:, None] * self.frequencies)[0]
        for number in range(config.num_layers):
            x = x + self.attention(x, number, angle.cos().numpy(), angle.sin().numpy())
            layer = f"model.layers.{number}."
            normed = norm(x, self.tensors[layer + "post_attention_layernorm.weight"], config.rms_eps)
            gate = self.product(normed, self.tensors[layer + "mlp.gate_proj.weight"])
            up = self.product(normed, self.tensors[layer + "mlp.up_proj.weight"])
            inner = (gate / (F(1) + exp(-gate))) * up
            x = x + self.product(inner, self.tensors[layer + "mlp.down_proj.weight"])
        final = norm(x, self.tensors["model.norm.weight"], config.rms_eps)
        head = "model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"
        return self.product(final, self.tensors[head])

    def attention(self, x: Array, number: int, cos: Array, sin: Array) -> Array:
        config, layer = self.config, f"model.layers.{number}."
        normed = norm(x, self.tensors[layer + "input_layernorm.weight"], config.rms_eps)
        heads = []
        for letter, count in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads)):
            out = self.product(normed, self.tensors[f"{layer}self_attn.{letter}_proj.weight"])
            if config.qkv_bias:
                out = out + self.tensors[f"{layer}self_attn.{letter}_proj.bias"]
            heads.append(out.reshape(count, config.head_dim))
        q, k, v = heads
        if config.qk_norm:
            q = np.stack([norm(h, self.tensors[layer + "self_attn.q_norm.weight"], config.rms_eps) for h in q])
            k = np.stack([norm(h, self.tensors[layer + "self_attn.k_norm.weight"], config.rms_eps) for h in k])
        q, k = self.turned(q, cos, sin) * F(1 / math.sqrt(config.head_dim)), self.turned(k, cos, sin)
        self.keys[number].append(k)
        self.values[number].append(v)
        mixed = [self.head(q[h], number, h * config.num_kv_heads // config.num_heads) for h in range(len(q))]
        return self.product(np.concatenate(mixed), self.tensors[layer + "self_attn.o_proj.weight"])

    def turned(self, x: Array, cos: Array, sin: Array) -> Array:
        first, second = np.split(x, 2, axis=1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)

    def head(self, q: Array, number: int, kv: int) -> Array:
        keys = np.stack([k[kv] for k in self.keys[number]])
        values = np.stack([v[kv] for v in self.values[number]])
        terms = (keys * q).T
        scores = in_order(terms[0::2]) + in_order(terms[1::2])
        weights = exp(scores - scores.max())
        return in_order(weights[:, None] * values) / in_lanes(weights)


def logits_of(
    config: DecoderConfig, tensors: Mapping[str, torch.Tensor], rounded: Rounded, tokens: Sequence[int]
) -> NDArray[np.float32]:
    """[T, V] of a plain text."""
    model = ReferenceModel(config, tensors, rounded)
    with np.errstate(over="ignore"):
        return np.stack([model.next_logits(token, position) for position, token in enumerate(tokens)])
