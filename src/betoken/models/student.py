"""What `betoken train ptp` writes and the drafter `ptp` reads: the weights of auxiliary nodes, and their card.

PTP (arXiv 2512.21323): an auxiliary node's input is a random number u in [0, 1) instead of a token. A student folder
holds

    ptp.json                    the card: objective, window, sampling law it was trained for, measured runs
    u_embedding.safetensors     `start` [H] and, except for `independent`, the u embedding (`weight` [H, K], `bias` [H])
    adapter_config.json, adapter_model.safetensors      weights "lora": PEFT's own format
    config.json, model.safetensors                      weights "full": used on auxiliary nodes instead of the base's
                                                        weights "same": base and student in one, with a tokenizer
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name every torch user knows

from betoken.errors import InputError
from betoken.models.config import DecoderConfig, read_json
from betoken.models.weights import Weights
from betoken.state import SamplingSettings

Objective = Literal["o-ptp", "c-ptp", "scratch", "independent"]
WeightKind = Literal["lora", "full", "same"]
EmbeddingKind = Literal["bits", "digits", "interpolated", "none"]

CARD = "ptp.json"
EMBEDDING = "u_embedding.safetensors"
FORMAT = 1
_BITS, _DIGITS = 32, 24
_FEATURES = {"bits": _BITS, "digits": _DIGITS, "interpolated": 3}
LAW = ("temperature", "top_k", "top_p", "min_p")
"""The settings of a law that a student is trained for."""
NOT_ON_KERNELS = (
    "the student replaces all weights at its nodes (weights full), which our CPU kernels do not do; use --dtype float32"
)
_BASE = ("hidden_size", "num_layers", "vocab_size", "num_heads", "intermediate_size")


class UEmbedding(nn.Module):
    """A random number as an input vector: a few fixed features of u, and one linear layer with bias.

    `bits`: the 32 bits of float32(u), 0 or 1, sign first. `digits`: the first 24 binary digits of u behind the point,
    -1 or 1. `interpolated`: the weights of u between learned vectors at 0, 0.5 and 1.
    """

    def __init__(self, kind: EmbeddingKind, hidden: int) -> None:
        """All weights are 0 until they are loaded or `reset`. Raises InputError for a kind without features."""
        super().__init__()
        if kind not in _FEATURES:
            raise InputError(f"unknown u embedding {kind!r}; choose one of {', '.join(_FEATURES)}")
        self.kind, self.hidden = kind, hidden
        self.weight = nn.Parameter(torch.zeros(hidden, _FEATURES[kind]))
        self.bias = nn.Parameter(torch.zeros(hidden))

    @torch.no_grad()
    def reset(self, generator: torch.Generator, scale: float) -> None:
        """Random weights that make vectors whose entries have a standard deviation of about `scale`."""
        width = 1.0 if self.kind == "interpolated" else math.sqrt(_FEATURES[self.kind])
        self.weight.normal_(0.0, scale / width, generator=generator)
        self.bias.zero_()

    def features(self, u: torch.Tensor) -> torch.Tensor:
        """[..., K] fixed features of u [...], in the dtype of the weights."""
        dtype = self.weight.dtype
        if self.kind == "bits":
            shifts = torch.arange(_BITS - 1, -1, -1, device=u.device, dtype=torch.int32)
            whole = u.to(torch.float32).view(torch.int32)
            return ((whole[..., None] >> shifts) & 1).to(dtype)
        if self.kind == "digits":
            shifts = torch.arange(_DIGITS - 1, -1, -1, device=u.device)
            whole = (u.to(torch.float64) * 2**_DIGITS).to(torch.int64).clamp(0, 2**_DIGITS - 1)
            return (((whole[..., None] >> shifts) & 1) * 2 - 1).to(dtype)
        places = torch.tensor([0.0, 0.5, 1.0], device=u.device, dtype=torch.float64)
        return (1.0 - 2.0 * (u.to(torch.float64)[..., None] - places).abs()).clamp(min=0.0).to(dtype)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        """[..., H] input vectors of the numbers u [...], float64 or float32, in [0, 1)."""
        return F.linear(self.features(u), self.weight, self.bias)


@dataclass(frozen=True)
class StudentCard:
    """What a student was trained for (`ptp.json`)."""

    objective: Objective
    weights: WeightKind
    window: int
    """L, nodes of a branch in training. Longer branches were never seen."""
    embedding: EmbeddingKind
    law: SamplingSettings
    """The law whose random numbers it understands: temperature, top_k, top_p, min_p; the rest is at its default."""
    base: str
    """Name or path of the model whose tokens it predicts; "." where that is the student's own folder ("same")."""
    base_config: Mapping[str, int]
    """Sizes of the base that must match: see `sizes_of`."""
    first_runs: tuple[float, ...] = ()
    """[L] P(n >= 1), ..., P(n >= L): n = run of right tokens from a branch's first node, measured on held-out text."""
    runs: tuple[float, ...] = ()
    """[L - 1] P(n' >= 1), ...: n' = run of right tokens from a branch's second node, whatever its first node said: in
    decoding the base's own pick replaces that one, and the inputs of the later nodes do not depend on it."""

    def save(self, folder: Path) -> None:
        """Write `ptp.json`."""
        content: dict[str, Any] = {"format": FORMAT, **{item.name: getattr(self, item.name) for item in fields(self)}}
        content |= {"law": law_numbers(self.law), "base_config": dict(self.base_config)}
        (folder / CARD).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> StudentCard:
        """Read `ptp.json`. Raises InputError for a folder without one, and for one that cannot be used."""
        path = folder / CARD
        if not path.is_file():
            raise InputError(f"{folder}: no {CARD}, so this is not a student folder (betoken train ptp makes one)")
        content = read_json(path)
        if content.pop("format", None) != FORMAT:
            raise InputError(f"{path}: format {FORMAT} is expected; this betoken cannot read another one")
        names = {item.name for item in fields(cls)}
        if set(content) != names:
            raise InputError(f"{path}: missing or unknown fields: {', '.join(sorted(set(content) ^ names))}")
        _check(path, content)
        content["law"] = SamplingSettings(**content["law"])
        content |= {name: tuple(float(value) for value in content[name]) for name in ("first_runs", "runs")}
        return cls(**content)

    def check_base(self, config: DecoderConfig, name: str) -> None:
        """Raises InputError unless a model of this config has the sizes of the student's base."""
        found = sizes_of(config)
        for key, value in self.base_config.items():
            if found[key] != value:
                raise InputError(
                    f"the student was trained on {self.base} with {key} {value}, {name} has {found[key]}: "
                    "use it with the model it was trained on"
                )


@dataclass(frozen=True)
class Adapter:
    """A low-rank change of one matrix: W x becomes W x + scale * up (down x)."""

    down: torch.Tensor
    """[r, in], PEFT's lora_A"""
    up: torch.Tensor
    """[out, r], PEFT's lora_B"""
    scale: float


@dataclass(frozen=True)
class Student:
    """A student folder in memory; tensors are float32 on the CPU."""

    card: StudentCard
    embedding: UEmbedding | None
    """None for `independent`."""
    start: torch.Tensor
    """[H] learned start vector; 0 for o-ptp, which has no use for one."""
    adapters: Mapping[str, Adapter]
    """Weights "lora": canonical name of a matrix (model.layers.3.mlp.up_proj.weight) -> its change; else empty."""
    tensors: Mapping[str, torch.Tensor]
    """Weights "full": every tensor of the base's `tensor_shapes`; else empty."""


def sizes_of(config: DecoderConfig) -> dict[str, int]:
    """The sizes that a student and its base must share, the content of `base_config`."""
    return {name: int(getattr(config, name)) for name in _BASE}


def law_numbers(law: SamplingSettings) -> dict[str, float]:
    """The settings of a law that a student is trained for, as JSON."""
    return {name: getattr(law, name) for name in LAW}


def read_student(folder: Path) -> Student:
    """Read a student folder. Raises InputError, in one line, for anything in it that is missing or does not fit."""
    card = StudentCard.load(folder)
    embedding, start = _read_embedding(folder / EMBEDDING, card)
    adapters: Mapping[str, Adapter] = {}
    tensors: Mapping[str, torch.Tensor] = {}
    if card.weights == "lora":
        adapters = _read_adapters(folder)
    elif card.weights == "full":
        config = DecoderConfig.from_folder(folder)
        card.check_base(config, str(folder))
        tensors = {name: tensor.float() for name, tensor in Weights(folder, config)}
    return Student(card, embedding, start, adapters, tensors)


def _check(path: Path, content: Mapping[str, Any]) -> None:
    for name, kinds in (("objective", Objective), ("weights", WeightKind), ("embedding", EmbeddingKind)):
        if content[name] not in get_args(kinds):
            raise InputError(f"{path}: {name} must be one of {', '.join(get_args(kinds))}, not {content[name]!r}")
    if not isinstance(content["window"], int) or content["window"] < 1:
        raise InputError(f"{path}: window must be a whole number above 0, not {content['window']!r}")
    if not isinstance(content["base"], str):
        raise InputError(f"{path}: base must be a text")
    for name, keys in (("law", LAW), ("base_config", _BASE)):
        found = content[name]
        if not isinstance(found, dict) or set(found) != set(keys):
            raise InputError(f"{path}: {name} must have exactly {', '.join(keys)}")
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in found.values()):
            raise InputError(f"{path}: {name} must hold numbers")
    for name in ("first_runs", "runs"):
        values = content[name]
        if not isinstance(values, list) or not all(isinstance(v, int | float) and 0 <= v <= 1 for v in values):
            raise InputError(f"{path}: {name} must be a list of probabilities")
    if (content["embedding"] == "none") != (content["objective"] == "independent"):
        raise InputError(f"{path}: embedding none goes with objective independent, and only with it")


def _read_embedding(path: Path, card: StudentCard) -> tuple[UEmbedding | None, torch.Tensor]:
    tensors = _read_tensors(path)
    hidden = card.base_config["hidden_size"]
    expected: dict[str, tuple[int, ...]] = {"start": (hidden,)}
    embedding = None
    if card.embedding != "none":
        embedding = UEmbedding(card.embedding, hidden)
        expected |= {name: tuple(tensor.shape) for name, tensor in embedding.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != expected:
        raise InputError(f"{path}: tensors {found} are not those of the card, {expected}")
    start = tensors.pop("start")
    if embedding is not None:
        embedding.load_state_dict(tensors)
        embedding.requires_grad_(False)
    return embedding, start


def _read_adapters(folder: Path) -> dict[str, Adapter]:
    """The low-rank changes of a PEFT folder. Raises InputError for LoRA variants that are more than that."""
    path = folder / "adapter_config.json"
    if not path.is_file():
        raise InputError(f"{path}: the file is missing")
    settings = read_json(path)
    unsupported = ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "lora_bias")
    if settings.get("peft_type") != "LORA" or any(settings.get(name) for name in unsupported):
        raise InputError(f"{folder}: only plain LoRA is read, without {', '.join(unsupported)}")
    tensors = _read_tensors(folder / "adapter_model.safetensors")
    alpha, found = settings.get("lora_alpha"), {}
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise InputError(f"{path}: lora_alpha must be a number, not {alpha!r}")
    for name, down in tensors.items():
        stem = name.removesuffix(".lora_A.weight")
        if stem == name:
            continue
        up = tensors.get(f"{stem}.lora_B.weight")
        if up is None or up.shape[1] != down.shape[0]:
            raise InputError(f"{folder}: {stem} has no lora_B that fits its lora_A")
        rank = down.shape[0]
        scale = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
        found[stem.removeprefix("base_model.model.") + ".weight"] = Adapter(down, up, scale)
    if not found or 2 * len(found) != len(tensors):
        raise InputError(f"{folder}: adapter_model.safetensors holds something else than pairs of lora_A and lora_B")
    return found


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a safetensors file as float32."""
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 - a handle
    except FileNotFoundError:
        raise InputError(f"{path}: the file is missing") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: truncated or corrupt safetensors file ({error})") from None
    for name, tensor in found.items():
        if not tensor.isfinite().all():
            raise InputError(f"{path}: {name} holds numbers that are not finite: its training went wrong")
    return found
