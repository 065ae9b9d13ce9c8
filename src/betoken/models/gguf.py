"""GGUF files (llama.cpp's format) as a DecoderConfig and canonical tensors.

The `gguf` package parses and dequantises. Two things differ from a Hugging Face model: names, and for architecture
`llama` the order of the rows of q_proj and k_proj, which llama.cpp stores for rotary pairs that lie next to each other
(convert_hf_to_gguf.py, LlamaModel.permute). Both are undone here. A Mistral file says `llama` and is read as one: the
same computation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from betoken.errors import InputError
from betoken.models.config import DecoderConfig, RopeScaling

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_ROPE_FACTORS = "rope_freqs.weight"
"""How Llama 3's rope scaling is stored: by what each frequency is divided, [head_dim / 2]."""
_CHAT_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>")
_BLOCK_ROWS = 4096
_STORED = {"F32": torch.float32, "BF16": torch.bfloat16}
"""File type -> dtype that holds it without loss. Quantised types become float16: rounding to its 11 bits moves a
weight by at most 1/2048 of itself, far below one step of the 4 to 8 bits it was read from."""


class GgufModel:
    """A GGUF file. Raises InputError for one that is corrupt, truncated, split, or of a model we do not compute."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            reader = gguf.GGUFReader(path)
            self._metadata = {name: field.contents() for name, field in reader.fields.items()}
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
        except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
            raise InputError(f"{path}: truncated or corrupt GGUF file ({error})") from error
        self.architecture = str(self._metadata.get("general.architecture"))
        if self.architecture not in _ARCHITECTURES:
            raise InputError(
                f"{path}: GGUF architecture {self.architecture} is not supported ({', '.join(_ARCHITECTURES)})"
            )
        if int(self._metadata.get("split.count", 1)) > 1:
            raise InputError(f"{path}: one part of a split GGUF; join the parts first (llama-gguf-split --merge)")
        self._tensors = {self._canonical(tensor.name): tensor for tensor in reader.tensors}
        self.config = self._config()
        self._check()

    @property
    def metadata(self) -> dict[str, Any]:
        """Every key of the file, `tokenizer.ggml.*` included."""
        return self._metadata

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """Canonical name -> dtype in which `tensor` returns it."""
        kinds = {name: self._tensors[name].tensor_type.name for name in self.config.tensor_shapes}
        return {name: _STORED.get(kind, torch.float16) for name, kind in kinds.items()}

    def tensor(self, name: str) -> torch.Tensor:
        """One canonical tensor, dequantised; its dtype is `dtypes[name]`."""
        shape, dtype = self.config.tensor_shapes[name], self.dtypes[name]
        stored = torch.empty(shape, dtype=dtype)
        for start, block in self.dequantised(name):
            part = stored[start : start + len(block)]
            part.copy_(torch.from_numpy(block))
            if not torch.isfinite(part).all():
                raise InputError(f"{self.path}: tensor {name} has values that are not finite in {dtype}")
        return self._undo_permutation(name, stored)

    def dequantised(self, name: str) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """(first row, rows) of a canonical tensor as the gguf package dequantises it, in the file's order of rows.

        A block at a time, because the largest tensor as float32 can be as large as the rest of the model.
        """
        source = self._tensors[name]
        with np.errstate(all="ignore"):  # a corrupt scale may overflow; `tensor` reports it
            for start in range(0, len(source.data), _BLOCK_ROWS):
                rows = source.data[start : start + _BLOCK_ROWS]
                yield start, np.array(gguf.dequantize(rows, source.tensor_type), dtype=np.float32)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(canonical name, tensor), one at a time."""
        for name in self.config.tensor_shapes:
            yield name, self.tensor(name)

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """The file's end tokens, then the usual ends of a chat turn that its vocabulary has."""
        keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        named = [int(self._metadata[key]) for key in keys if key in self._metadata]
        tokens = self._metadata.get("tokenizer.ggml.tokens", [])
        ends = {token: i for i, token in enumerate(tokens) if token in _CHAT_ENDS}
        return tuple(dict.fromkeys(named + [ends[token] for token in _CHAT_ENDS if token in ends]))

    def _canonical(self, name: str) -> str:
        if name in _OTHER_NAMES:
            return _OTHER_NAMES[name]
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
        if layer and layer[2] in _LAYER_NAMES:
            return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{layer[3]}"
        return name

    def _get(self, key: str, default: Any = None) -> Any:
        value = self._metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise InputError(f"{self.path}: GGUF key {self.architecture}.{key} is missing")
        if isinstance(value, list):
            raise InputError(f"{self.path}: {key} differs from layer to layer, which is not supported")
        return value

    def _config(self) -> DecoderConfig:
        embedding = self._tensors.get("model.embed_tokens.weight")
        if embedding is None:
            raise InputError(f"{self.path}: tensor model.embed_tokens.weight is missing")
        heads, hidden = int(self._get("attention.head_count")), int(self._get("embedding_length"))
        head_dim = int(self._get("attention.key_length", hidden // max(heads, 1)))
        self._refuse_unsupported(head_dim)
        theta = float(self._get("rope.freq_base", 10000.0))
        bos = self._metadata.get("tokenizer.ggml.bos_token_id")
        return DecoderConfig(
            architecture=_ARCHITECTURES[self.architecture],
            hidden_size=hidden,
            intermediate_size=int(self._get("feed_forward_length")),
            num_layers=int(self._get("block_count")),
            num_heads=heads,
            num_kv_heads=int(self._get("attention.head_count_kv", heads)),
            head_dim=head_dim,
            vocab_size=int(embedding.shape[-1]),
            rms_eps=_shortest(self._get("attention.layer_norm_rms_epsilon")),
            rope_theta=_shortest(theta),
            context=int(self._get("context_length")),
            rope_scaling=self._rope_scaling(theta, head_dim),
            qkv_bias=self.architecture == "qwen2",
            qk_norm=self.architecture == "qwen3",
            tied_embeddings="lm_head.weight" not in self._tensors,
            eos_ids=self.eos_ids,
            bos_id=None if bos is None else int(bos),
        )

    def _refuse_unsupported(self, head_dim: int) -> None:
        if int(self._get("expert_count", 0)):
            raise InputError(f"{self.path}: mixture-of-experts models are not supported")
        if int(self._get("rope.dimension_count", head_dim)) != head_dim:
            raise InputError(f"{self.path}: rotary embedding of a part of the head is not supported")
        window = int(self._get("attention.sliding_window", 0))
        if 0 < window < int(self._get("context_length")):
            raise InputError(f"{self.path}: sliding-window attention ({window}) is not supported")

    def _rope_scaling(self, theta: float, head_dim: int) -> RopeScaling | None:
        kind = str(self._get("rope.scaling.type", "none"))
        if kind == "linear":
            return RopeScaling("linear", float(self._get("rope.scaling.factor")))
        if kind != "none":
            raise InputError(f"{self.path}: rope scaling {kind} is not supported (supported: none, linear, llama3)")
        if _ROPE_FACTORS not in self._tensors:
            return None
        factors = np.concatenate([block.ravel() for _, block in self.dequantised(_ROPE_FACTORS)])
        return _llama3_scaling(self.path, factors, theta, head_dim)

    def _undo_permutation(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Rows [head, pair, half] of the file back to [head, half, pair], for llama's q_proj and k_proj."""
        if self.architecture != "llama" or not name.endswith(("q_proj.weight", "k_proj.weight")):
            return values
        heads = self.config.num_heads if "q_proj" in name else self.config.num_kv_heads
        pairs = values.view(heads, self.config.head_dim // 2, 2, values.shape[-1])
        return pairs.transpose(1, 2).reshape(values.shape)

    def _check(self) -> None:
        shapes = self.config.tensor_shapes
        for name, shape in shapes.items():
            if name not in self._tensors:
                raise InputError(f"{self.path}: tensor {name} is missing")
            found = tuple(int(n) for n in reversed(self._tensors[name].shape))
            if found != shape:
                raise InputError(f"{self.path}: tensor {name} has shape {list(found)}, expected {list(shape)}")
            kind = self._tensors[name].tensor_type
            if kind.name not in ("F32", "F16") and kind not in gguf.quants._type_traits:
                raise InputError(f"{self.path}: tensor {name} is {kind.name}, which cannot be dequantised")
        for name in self._tensors:
            if name not in shapes and name != _ROPE_FACTORS:
                raise InputError(f"{self.path}: unexpected tensor {name}; this variant of the model is not supported")


def _shortest(value: float) -> float:
    """The float of fewest digits that is the same float32: 1e-05 for the file's 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _llama3_scaling(path: Path, factors: NDArray[np.float32], theta: float, head_dim: int) -> RopeScaling:
    """The settings that give these factors: the file keeps only the result, all published Llamas use 1, 4 and 8192."""
    scaling = RopeScaling("llama3", _shortest(float(factors.max())))
    wavelength = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = np.clip((scaling.original_context / wavelength - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / scaling.factor + smooth)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise InputError(f"{path}: {_ROPE_FACTORS} is not Llama 3's rope scaling; this variant is not supported")
    return scaling
