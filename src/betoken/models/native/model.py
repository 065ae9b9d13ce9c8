"""A decoder's weights as named arrays in kernel layout, and the records of addresses that the forward pass reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.models.config import DecoderConfig
from betoken.models.native.emit import BLOCK, LANES
from betoken.models.native.equalise import Equalised, Equaliser
from betoken.models.native.image import Arrays
from betoken.models.native.isa import isa
from betoken.models.native.job import LAYER, MODEL, PAGE
from betoken.models.native.pack import Packed, interleave, pack_float32, pack_int4, pack_int8, padded

EQUALISED = ".equalised"
"""Ends the names of what the inputs of a product are divided by: a student is rescaled by it, no pass reads it."""
Named = Iterator[tuple[str, NDArray[np.generic]]]


class Source(Protocol):
    """Canonical tensors by name, [out, in] matrices."""

    def __getitem__(self, name: str) -> torch.Tensor:
        """One tensor."""


def pack_model(
    source: Source,
    config: DecoderConfig,
    dtype: str,
    equalise: Equaliser | None = None,
    advance: Callable[[int], None] = lambda amount: None,
) -> Named:
    """All arrays of a model in float32, int8 or int4, one layer in memory at a time; `equalise` rescales each."""
    for number in range(config.num_layers):
        layer = layer_tensors(source, config, number)
        equalised = Equalised(layer, {}, {}) if equalise is None else equalise(layer)
        yield from pack_layer(equalised, config, number, dtype)
        advance(sum(tensor.numel() for tensor in layer.values()))
    norm = source["model.norm.weight"].to(torch.float32)
    yield "final_norm", norm.numpy()
    name = "model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"
    seen = None if equalise is None else equalise.head_importance(norm)
    yield from _product("head", source[name].to(torch.float32), dtype, seen)


def layer_tensors(source: Source, config: DecoderConfig, number: int) -> dict[str, torch.Tensor]:
    """One layer's tensors in float32, by their names within the layer."""
    prefix = f"model.layers.{number}."
    names = [name for name in config.tensor_shapes if name.startswith(prefix)]
    return {name.removeprefix(prefix): source[name].to(torch.float32) for name in names}


def pack_layer(layer: Equalised, config: DecoderConfig, number: int, dtype: str) -> Named:
    """One layer's arrays: norms, and its four products with fused qkv and interleaved gate and up."""
    tensors = layer.layer
    attention = "self_attn.{}_proj.{}".format
    yield f"{number}.attn_norm", tensors["input_layernorm.weight"].numpy()
    yield f"{number}.mlp_norm", tensors["post_attention_layernorm.weight"].numpy()
    if config.qk_norm:
        yield f"{number}.q_norm", tensors["self_attn.q_norm.weight"].numpy()
        yield f"{number}.k_norm", tensors["self_attn.k_norm.weight"].numpy()
    products = {
        "qkv": torch.cat([tensors[attention(name, "weight")] for name in "qkv"]),
        "out": tensors[attention("o", "weight")],
        "gate_up": interleave(tensors["mlp.gate_proj.weight"], tensors["mlp.up_proj.weight"]),
        "down": tensors["mlp.down_proj.weight"],
    }
    for name, matrix in products.items():
        yield from _product(f"{number}.{name}", matrix, dtype, layer.importance.get(name))
        if name in layer.scales:
            yield f"{number}.{name}{EQUALISED}", layer.scales[name].numpy()
    if config.qkv_bias:
        bias = torch.cat([tensors[attention(name, "bias")] for name in "qkv"])
        yield f"{number}.qkv.bias", _rows_padded(bias)


def _product(name: str, matrix: torch.Tensor, dtype: str, importance: torch.Tensor | None) -> Named:
    packed = _packed(matrix, dtype, importance)
    yield f"{name}.weight", packed.weight
    if dtype != "float32":
        yield f"{name}.scale", packed.scale
        yield f"{name}.shift", packed.shift


def _packed(matrix: torch.Tensor, dtype: str, importance: torch.Tensor | None) -> Packed:
    if dtype == "float32":
        return pack_float32(matrix)
    return pack_int4(matrix, importance) if dtype == "int4" else pack_int8(matrix)


def _rows_padded(bias: torch.Tensor) -> NDArray[np.float32]:
    out = np.zeros(padded(bias.shape[0], BLOCK), dtype=np.float32)
    out[: bias.shape[0]] = bias.numpy()
    return out


def records(
    config: DecoderConfig, arrays: Arrays, embeddings: NDArray[np.generic], integers: bool
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """(model [1], layers [L]) records of addresses into `arrays` and `embeddings` [V, H], which must outlive them.

    `integers`: products are of int8 inputs, with weights of 8 or 4 bits.
    """
    offset = 128 if integers and isa() == "vnni" else 0
    if integers and not offset:
        for name in [name for name in arrays if name.endswith(".shift")]:
            arrays[name] = np.zeros_like(arrays[name])  # signed inputs need no correction
    layers = np.zeros(config.num_layers, dtype=LAYER)
    model = np.zeros(1, dtype=MODEL)
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    for n in range(config.num_layers):
        layer = layers[n]
        for norm in ("attn_norm", "mlp_norm", "q_norm", "k_norm"):
            layer[norm] = _address(arrays, f"{n}.{norm}")
        fill_matrix(layer["qkv"]["matrix"], arrays, f"{n}.qkv", hidden, query + 2 * key)
        fill_matrix(layer["out"]["matrix"], arrays, f"{n}.out", query, hidden)
        fill_matrix(layer["gate_up"]["matrix"], arrays, f"{n}.gate_up", hidden, 2 * padded(inner, BLOCK))
        fill_matrix(layer["down"]["matrix"], arrays, f"{n}.down", inner, hidden)
    head_padded = padded(config.head_dim, LANES)
    sizes = {
        "layers": layers.ctypes.data,
        "num_layers": config.num_layers,
        "hidden": hidden,
        "hidden_padded": padded(hidden, LANES),
        "ffn": inner,
        "ffn_padded": padded(inner, LANES),
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "head_padded": head_padded,
        "attn_padded": padded(query, LANES),
        "int8": int(integers),
        "offset": offset,
        "rms_eps": config.rms_eps,
        "query_scale": 1.0 / math.sqrt(config.head_dim),
        "layer_bytes": 2 * config.num_kv_heads * PAGE * head_padded * 4,
        "embeddings": embeddings.ctypes.data,
        "half": int(embeddings.dtype == np.float16),
        "final_norm": _address(arrays, "final_norm"),
    }
    for name, value in sizes.items():
        model[0][name] = value
    fill_matrix(model[0]["head"]["matrix"], arrays, "head", hidden, config.vocab_size)
    return model, layers


def fill_matrix(matrix: NDArray[np.void], arrays: Arrays, name: str, inputs: int, outputs: int) -> None:
    """Point the record of a matrix [N, K] to its arrays; the weights are called `name`.weight."""
    for part in ("weight", "scale", "shift", "bias"):
        matrix[part] = _address(arrays, f"{name}.{part}")
    matrix["inputs"], matrix["outputs"] = padded(inputs, LANES), outputs
    weight = arrays[f"{name}.weight"]
    matrix["groups"] = weight.shape[1] if weight.dtype == np.uint8 else 0


def _address(arrays: Arrays, name: str) -> int:
    return arrays[name].ctypes.data if name in arrays else 0
