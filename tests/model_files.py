"""Tiny random models on disk: as transformers saves them, and as GGUF files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 50000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
FAMILIES: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, {}),
    "llama3": (transformers.LlamaConfig, {"rope_parameters": LLAMA3_ROPE}),
    "llama-linear": (transformers.LlamaConfig, {"rope_parameters": LINEAR_ROPE}),
    "llama-tied": (transformers.LlamaConfig, {"tie_word_embeddings": True}),
    "mistral": (transformers.MistralConfig, {"sliding_window": None, "head_dim": 16}),
    "qwen2": (transformers.Qwen2Config, {}),
    "qwen2-tied": (transformers.Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 16}),
}
ARCHES = {"llama": "llama", "llama3": "llama", "llama-tied": "llama", "mistral": "llama"}
ARCHES |= {"qwen2": "qwen2", "qwen2-tied": "qwen2", "qwen3": "qwen3"}
"""Family -> what llama.cpp calls its architecture."""


def saved_model(family: str, **settings: Any) -> transformers.PreTrainedModel:
    """A random model; every parameter, norms and biases too, differs from its neighbours."""
    kind, own = FAMILIES[family]
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(kind(**(SIZES | own | settings)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + 0.1)
    return model.eval()


def canonical_tensors(model: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    """State dict without the copy of a tied embedding."""
    tensors = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return tensors


def trained_bpe(pre: pre_tokenizers.PreTokenizer, texts: Sequence[str], size: int) -> Tokenizer:
    """A byte-level BPE tokenizer trained on the texts; ids 0 to 2 are special."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return core


def tiny_bpe() -> Tokenizer:
    texts = ["the quick brown fox jumps over the lazy dog, it's 123", "def add(a, b):\n    return a + b\n"] * 3
    return trained_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), texts, 300)


def tokenizer_metadata(core: Tokenizer, pre: str = "gpt-2", template: str | None = None) -> dict[str, Any]:
    """The `tokenizer.*` keys that llama.cpp's converter would write for a trained tokenizer."""
    model = json.loads(core.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    added = {token.content for token in core.get_added_tokens_decoder().values()}
    keys: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in added else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return keys | ({} if template is None else {"tokenizer.chat_template": template})


def gguf_names(layers: int) -> dict[str, str]:
    """Canonical name -> GGUF name, from the gguf package's own table."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, layers)
    per_layer = ["input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    per_layer += [f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")]
    stems = ["model.embed_tokens", "model.norm", "lm_head"]
    stems += [f"model.layers.{n}.{name}" for n in range(layers) for name in per_layer]
    return {f"{stem}.{kind}": f"{table.get_name(stem)}.{kind}" for stem in stems for kind in ("weight", "bias")}


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of q and k rows: within a head, row j of the first half next to row j of the second."""
    dim = len(rows) // heads
    order = [h * dim + half * (dim // 2) + j for h in range(heads) for j in range(dim // 2) for half in (0, 1)]
    return rows[order]


def write_gguf(
    path: Path,
    model: transformers.PreTrainedModel,
    arch: str,
    tokenizer: Mapping[str, Any],
    quantise: Any = None,
    extra: Mapping[str, Any] | None = None,
    extra_tensors: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Write a model as llama.cpp's converter would. Returns the raw data of each canonical tensor.

    `quantise(name, array)` -> (raw data, gguf type) for matrices; None keeps float32.
    """
    config = model.config
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    for key, value in {**tokenizer, **(extra or {})}.items():
        _add(writer, key, value)
    names, raw = gguf_names(config.num_hidden_layers), {}
    for name, tensor in canonical_tensors(model).items():
        array = tensor.numpy()
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            array = permuted(array, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        data, kind = quantise(name, array) if quantise and array.ndim == 2 else (array, None)
        raw[name] = data
        writer.add_tensor(names[name], data, raw_dtype=kind)
    for name, array in (extra_tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return raw


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)
