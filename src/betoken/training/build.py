"""Models to train: read from a betoken model folder, or made from a config with seeded random weights."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from betoken.errors import InputError
from betoken.models.config import FAMILIES, DecoderConfig, read_json
from betoken.models.store import resolve
from betoken.models.student import EmbeddingKind, UEmbedding, WeightKind
from betoken.models.tokenizer import Tokenizer
from betoken.models.weights import Weights
from betoken.training.draws import Purpose, torch_generator
from betoken.training.model import StudentModel
from betoken.training.vocabulary import begin_id, end_id

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_STD = 0.02


@dataclass(frozen=True)
class Base:
    """A model in memory, with what is needed to write it again."""

    model: Any
    """A transformers causal language model, float32."""
    config: DecoderConfig
    tokenizer: Tokenizer
    name: str
    """What the user called it."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Canonical tensors on the CPU."""
        return canonical(self.model, self.config)


def load_base(name: str, device: str = "cpu") -> Base:
    """A store model or folder of the Llama family. Raises InputError for what cannot be read or trained."""
    folder = resolve(name)
    config = DecoderConfig.from_folder(folder)
    weights = Weights(folder, config)
    model = _empty(config)
    with torch.no_grad():
        own = model.state_dict()
        for key, tensor in weights:
            own[key].copy_(tensor)
    return Base(model.to(device), config, Tokenizer.from_folder(folder), name)


def new_base(config_file: Path, tokenizer: Tokenizer, seed: int, *, context: int, device: str = "cpu") -> Base:
    """A model of the sizes in a JSON file, with seeded random weights.

    The file has the names of a Hugging Face Llama config: hidden_size, intermediate_size, num_hidden_layers and
    num_attention_heads at least. The vocabulary and its end token are the tokenizer's; `context` is the default of
    max_position_embeddings. Raises InputError for names that such a config does not have.
    """
    config = _read_config(config_file, tokenizer, context)
    model = _empty(config)
    generator = torch_generator(seed, Purpose.WEIGHTS)
    narrow = _STD / math.sqrt(2 * config.num_layers)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if name.endswith("norm.weight"):
                weight.fill_(1.0)
            elif name.endswith("bias"):
                weight.zero_()
            else:  # what is added to the residual stream starts smaller (GPT-2)
                weight.normal_(0.0, narrow if "o_proj" in name or "down_proj" in name else _STD, generator=generator)
    return Base(model.to(device), config, tokenizer, ".")


def new_student(
    base: Base, kind: WeightKind, embedding: EmbeddingKind, *, seed: int, rank: int = 16, start: bool = True
) -> StudentModel:
    """A student around a base. The base of "lora" is changed in place: its linear layers get an adapter.

    `start`: whether the objective has a start vector. Raises InputError without the package that LoRA needs.
    """
    table = base.model.get_input_embeddings().weight
    scale = float(table.detach().float().pow(2).mean().sqrt())
    generator = torch_generator(seed, Purpose.WEIGHTS, 1)
    embedded = None
    if embedding != "none":
        embedded = UEmbedding(embedding, base.config.hidden_size)
        embedded.reset(generator, scale)
    first = torch.randn(base.config.hidden_size, generator=generator) * scale if start else None
    model, student = base.model, None
    if kind == "lora":
        model = _with_adapter(base, rank, generator)
    elif kind == "full":
        student = copy.deepcopy(base.model)
    return StudentModel(model, kind, embedded, student=student, start=first)


def canonical(model: Any, config: DecoderConfig) -> dict[str, torch.Tensor]:
    """The tensors of a transformers model under the names of `DecoderConfig.tensor_shapes`, on the CPU."""
    state = model.state_dict()
    return {name: state[name].detach().cpu() for name in config.tensor_shapes}


def _empty(config: DecoderConfig) -> Any:
    """A transformers model of a config, weights arbitrary; the global random state stays as it was."""
    settings = config.to_hf()
    kind = transformers.CONFIG_MAPPING[FAMILIES[config.architecture]]
    auto: Any = transformers.AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        return auto.from_config(kind(**settings), attn_implementation="sdpa").float().eval()


def _read_config(path: Path, tokenizer: Tokenizer, context: int) -> DecoderConfig:
    given = read_json(path)
    known = set(transformers.LlamaConfig().to_dict()) | {"architectures", "model_type", "sliding_window"}
    unknown = sorted(set(given) - known)
    if unknown:
        raise InputError(f"{path}: unknown name {unknown[0]!r}; use those of a Hugging Face Llama config")
    size = tokenizer.core.get_vocab_size()
    defaults = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": context, "vocab_size": size}
    config = DecoderConfig.from_hf(defaults | given)
    if config.vocab_size < size:
        raise InputError(f"{path}: vocab_size {config.vocab_size} is below the tokenizer's {size}")
    if "head_dim" not in given and config.hidden_size % config.num_heads:
        raise InputError(
            f"{path}: hidden_size {config.hidden_size} is no multiple of num_attention_heads {config.num_heads}"
        )
    end = end_id(tokenizer)
    return replace(config, eos_ids=() if end is None else (end,), bos_id=begin_id(tokenizer))


def _with_adapter(base: Base, rank: int, generator: torch.Generator) -> Any:
    try:
        import peft
    except ImportError:
        raise InputError("LoRA students need the package peft: pip install 'betoken[train]'") from None
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=0.0,
        bias="none",
        target_modules=list(LINEAR),
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft still reads names that transformers is giving up
        model = peft.get_peft_model(base.model, settings)
    settings.base_model_name_or_path = base.name
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if "lora_A" in name:
                bound = 1.0 / math.sqrt(weight.shape[1])
                weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))
            elif "lora_B" in name:
                weight.zero_()
    return model
