"""What our own decoder must know of a model: sizes, rotary embedding, norms, end tokens.

`DecoderConfig.from_folder` reads the files a Hugging Face model folder carries. What the decoder does not compute
(sliding windows, other rope scalings, biases of o_proj or the MLP) is refused here, with one line that says why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from betoken.errors import InputError

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Hugging Face architecture -> `model_type` of the models that our own decoder computes."""

_QWEN3_HEAD_DIM = 128  # Qwen3Config's default, not hidden_size / num_heads

Json = Mapping[str, Any]


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context a model was first trained on.

    `linear`: every frequency is divided by `factor`. `llama3`: those whose wavelength is above
    `original_context / low_freq_factor` are, those below `original_context / high_freq_factor` are not, and the ones
    between are interpolated (Llama 3.1 model card; `rope_type: llama3` on the Hub).
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and constants of a Llama-family decoder."""

    architecture: str
    """Hugging Face class name, a key of `FAMILIES`."""
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    """Rows of the embedding and width of the logits; may exceed the tokenizer's vocabulary."""
    rms_eps: float
    rope_theta: float
    context: int
    """Most positions, `max_position_embeddings`."""
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise InputError(f"model config: {name} is {getattr(self, name)}, it must be at least 1")
        if self.vocab_size < 1 or self.context < 1:
            raise InputError("model config: vocab_size and max_position_embeddings must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise InputError(
                f"model config: {self.num_heads} attention heads cannot share {self.num_kv_heads} key-value heads"
            )
        if self.head_dim % 2:
            raise InputError(f"model config: head_dim is {self.head_dim}, rotary embedding needs an even number")
        outside = [i for i in self.eos_ids if not 0 <= i < self.vocab_size]
        if outside:
            raise InputError(f"model config: end token {outside[0]} is outside the vocabulary of {self.vocab_size}")

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical tensor name (that of Hugging Face's Llama) -> shape, in file order.

        Matrices are [out, in]. `lm_head.weight` is absent where it is the embedding.
        """
        query, key = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        hidden, inner = self.hidden_size, self.intermediate_size
        layer: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
        for projection, rows in (("q_proj", query), ("k_proj", key), ("v_proj", key)):
            layer[f"self_attn.{projection}.weight"] = (rows, hidden)
            if self.qkv_bias:
                layer[f"self_attn.{projection}.bias"] = (rows,)
        if self.qk_norm:
            layer |= {"self_attn.q_norm.weight": (self.head_dim,), "self_attn.k_norm.weight": (self.head_dim,)}
        layer |= {
            "self_attn.o_proj.weight": (hidden, query),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for n in range(self.num_layers):
            shapes |= {f"model.layers.{n}.{name}": shape for name, shape in layer.items()}
        shapes["model.norm.weight"] = (hidden,)
        if not self.tied_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    @classmethod
    def from_folder(cls, folder: Path) -> DecoderConfig:
        """Read `config.json` and, for end and begin tokens, `generation_config.json`."""
        path = folder / "config.json"
        if not path.is_file():
            raise InputError(f"{folder}: no config.json, so this is not a model folder")
        generation = folder / "generation_config.json"
        return cls.from_hf(read_json(path), read_json(generation) if generation.is_file() else {})

    @classmethod
    def from_hf(cls, config: Json, generation: Json | None = None) -> DecoderConfig:
        """From the contents of a `config.json`, of transformers before or after version 5.

        `generation`: contents of `generation_config.json`; its end tokens come first.
        Raises InputError for an architecture or a feature that our decoder does not compute.
        """
        architecture = architecture_of(config)
        if architecture not in FAMILIES:
            raise InputError(
                f"architecture {architecture} is not one that betoken's own decoder computes ({', '.join(FAMILIES)})"
            )
        heads = _integer(config, "num_attention_heads")
        context = _integer(config, "max_position_embeddings")
        _refuse_unsupported(config, architecture, context)
        theta, scaling = _rope(config, context)
        hidden = _integer(config, "hidden_size")
        default_dim = _QWEN3_HEAD_DIM if architecture == "Qwen3ForCausalLM" else hidden // max(heads, 1)
        generation = generation or {}
        bos = _ids(config.get("bos_token_id")) or _ids(generation.get("bos_token_id"))
        eos = _ids(generation.get("eos_token_id")) + _ids(config.get("eos_token_id"))
        return cls(
            architecture=architecture,
            hidden_size=hidden,
            intermediate_size=_integer(config, "intermediate_size"),
            num_layers=_integer(config, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_integer(config, "num_key_value_heads", heads),
            head_dim=_integer(config, "head_dim", default_dim),
            vocab_size=_integer(config, "vocab_size"),
            rms_eps=_number(config, "rms_norm_eps", 1e-6),
            rope_theta=theta,
            context=context,
            rope_scaling=scaling,
            qkv_bias=architecture == "Qwen2ForCausalLM",
            qk_norm=architecture == "Qwen3ForCausalLM",
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            eos_ids=tuple(dict.fromkeys(eos)),
            bos_id=bos[0] if bos else None,
        )

    def to_hf(self) -> dict[str, Any]:
        """Contents of a `config.json` that transformers and `from_hf` both read."""
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": self.rope_theta}
        if self.rope_scaling:
            rope |= {"rope_type": self.rope_scaling.kind, "factor": self.rope_scaling.factor}
            if self.rope_scaling.kind == "llama3":
                rope |= {
                    "low_freq_factor": self.rope_scaling.low_freq_factor,
                    "high_freq_factor": self.rope_scaling.high_freq_factor,
                    "original_max_position_embeddings": self.rope_scaling.original_context,
                }
        return {
            "architectures": [self.architecture],
            "model_type": FAMILIES[self.architecture],
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "vocab_size": self.vocab_size,
            "rms_norm_eps": self.rms_eps,
            "rope_theta": self.rope_theta,
            "rope_parameters": rope,
            "max_position_embeddings": self.context,
            "sliding_window": None,
            "tie_word_embeddings": self.tied_embeddings,
            "eos_token_id": list(self.eos_ids),
            "bos_token_id": self.bos_id,
            "dtype": "float32",
        }


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, or InputError that names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: a JSON object is expected, not {type(content).__name__}")
    return content


def architecture_of(config: Json) -> str:
    """Architecture that a `config.json` names: `architectures`, else what its `model_type` stands for."""
    named = config.get("architectures")
    if isinstance(named, list) and named:
        return str(named[0])
    kind = str(config.get("model_type", "(none named)"))
    return next((name for name, family in FAMILIES.items() if family == kind), kind)


def _refuse_unsupported(config: Json, architecture: str, context: int) -> None:
    if config.get("quantization_config"):
        raise InputError(
            "config.json: quantized weights (quantization_config) are not read; use the float model or a GGUF"
        )
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise InputError(f"config.json: activation {activation} is not supported, only silu")
    for bias in ("attention_bias", "mlp_bias"):
        if config.get(bias):
            raise InputError(f"config.json: {bias} is not supported")
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        raise InputError("config.json: partial_rotary_factor is not supported")
    window = _sliding_window(config, architecture)
    if window is not None and window < context:
        raise InputError(
            f"config.json: a sliding window of {window} below the context of {context} is not supported, "
            "only full attention"
        )


def _sliding_window(config: Json, architecture: str) -> int | None:
    """Positions that some layer's attention is limited to; None where all layers see everything."""
    layers = config.get("layer_types")
    if isinstance(layers, list):
        if not any("sliding" in str(layer) for layer in layers):
            return None
    elif architecture != "MistralForCausalLM" and not config.get("use_sliding_window", False):
        return None  # Qwen names a window that is used only where use_sliding_window says so
    window = config.get("sliding_window")
    return None if window is None else _integer(config, "sliding_window")


def _rope(config: Json, context: int) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise InputError("config.json: rope_parameters or rope_scaling must be an object")
    theta = _number(rope, "rope_theta", _number(config, "rope_theta", 10000.0))
    if theta <= 0:
        raise InputError(f"config.json: rope_theta is {theta}, it must be above 0")
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", _positive(rope, "factor"))
    if kind == "llama3":
        original = rope.get("original_max_position_embeddings") or context
        return theta, RopeScaling(
            "llama3",
            _positive(rope, "factor"),
            _positive(rope, "low_freq_factor"),
            _positive(rope, "high_freq_factor"),
            int(original),
        )
    raise InputError(f"config.json: rope scaling {kind} is not supported (supported: default, linear, llama3)")


def _integer(config: Json, key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise InputError(f"config.json: {key} is missing")
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"config.json: {key} must be a whole number, not {value!r}")
    return value


def _number(config: Json, key: str, default: float) -> float:
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"config.json: {key} must be a number, not {value!r}")
    return float(value)


def _positive(config: Json, key: str) -> float:
    value = _number(config, key, 0.0)
    if value <= 0:
        raise InputError(f"config.json: rope {key} must be a number above 0")
    return value


def _ids(value: object) -> list[int]:
    """Token ids of a field that holds none, one or several."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in listed):
        raise InputError(f"model config: token ids must be whole numbers, not {value!r}")
    return list(listed)
