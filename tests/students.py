"""Random students on disk, in the format that `betoken train ptp` writes, and what they mean in transformers' terms."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

import tiny_models
from betoken.models.config import DecoderConfig
from betoken.models.student import StudentCard, UEmbedding, sizes_of
from betoken.models.target import Target
from betoken.state import SamplingSettings
from betoken.tree import START_INPUT, Role, RowTree, TokenTree

RANK, ALPHA = 3, 6.0
PARTS = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
LAW = SamplingSettings(temperature=0.9, top_k=40)
INPUTS = [[0.5, 0.25, 0.999], [START_INPUT, 0.0], [0.1], [0.7, START_INPUT, 0.3, 0.6]]
"""Auxiliary inputs of some branches."""


@dataclass
class Saved:
    """A student folder, and the same weights in memory."""

    folder: Path
    card: StudentCard
    embedding: UEmbedding | None
    start: torch.Tensor
    model: Any
    """The transformers model that auxiliary nodes see: base and adapter merged, or the full student, or the base."""

    def vectors(self, inputs: Sequence[float]) -> torch.Tensor:
        """[A, H] input vectors of numbers; -1 is the start vector."""
        rows = [self.start if u < 0 else self.embedding(torch.tensor(u, dtype=torch.float64)) for u in inputs]
        return torch.stack([row.detach() for row in rows])


def save(
    folder: Path,
    family: str = "llama",
    weights: str = "lora",
    objective: str = "o-ptp",
    embedding: str = "bits",
    *,
    window: int = 5,
    parts: Sequence[str] = PARTS,
    law: SamplingSettings = LAW,
    runs: Sequence[float] = (0.7, 0.5, 0.3, 0.2),
    seed: int = 3,
) -> Saved:
    """Write a random student for `tiny_models.pair(family)`."""
    folder.mkdir(parents=True, exist_ok=True)
    both = tiny_models.pair(family)
    config = both.decoder.config
    kind: Any = "none" if objective == "independent" else embedding
    card = StudentCard(
        objective,  # type: ignore[arg-type]
        weights,  # type: ignore[arg-type]
        window,
        kind,
        law,
        family,
        sizes_of(config),
        (0.8, *(0.8 * run for run in runs)),
        tuple(runs),
    )
    card.save(folder)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(config.hidden_size, generator=generator)
    tensors, module = {"start": start}, None
    if kind != "none":
        module = UEmbedding(kind, config.hidden_size)
        module.reset(generator, 1.0)
        tensors |= dict(module.state_dict())
    save_file(tensors, folder / "u_embedding.safetensors")
    model = both.reference
    if weights == "lora":
        model = _adapter(folder, family, parts, generator)
    elif weights == "full":
        model = tiny_models.random_model(tiny_models.FAMILIES[family](), seed + 50)
        _save_full(folder, config, model)
    return Saved(folder, card, module, start, model)


def _adapter(folder: Path, family: str, parts: Sequence[str], generator: torch.Generator) -> Any:
    model = tiny_models.pair(family).reference  # a copy: `pair` makes a new one each time
    tensors: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not any(name.endswith(f"{part}.weight") for part in parts):
                continue
            down = torch.randn(RANK, parameter.shape[1], generator=generator) * 0.2
            up = torch.randn(parameter.shape[0], RANK, generator=generator) * 0.2
            parameter += ALPHA / RANK * up @ down
            stem = f"base_model.model.{name.removesuffix('.weight')}"
            tensors |= {f"{stem}.lora_A.weight": down, f"{stem}.lora_B.weight": up}
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": list(parts), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "adapter_model.safetensors")
    return model


def _save_full(folder: Path, config: DecoderConfig, model: Any) -> None:
    (folder / "config.json").write_text(json.dumps(config.to_hf()))
    state = model.state_dict()
    save_file({name: state[name].contiguous() for name in config.tensor_shapes}, folder / "model.safetensors")


def branch_logits(base: Any, student: Saved, text: Sequence[int], inputs: Sequence[float]) -> torch.Tensor:
    """[A, V] of an auxiliary branch behind `text` (which it continues), by two passes of transformers models.

    The base reads the text and leaves its keys and values; the student's weights read the inputs on top of them, at
    positions len(text) - 1, len(text), ...
    """
    count, seen = len(inputs), len(text)
    with torch.no_grad():
        known = base(torch.tensor([list(text)]), use_cache=True).past_key_values
        mask = torch.full((count, seen + count), float("-inf")).triu(seen + 1)[None, None]
        out = student.model(
            inputs_embeds=student.vectors(inputs)[None],
            cache=known,
            attention_mask=mask,
            position_ids=torch.arange(seen - 1, seen - 1 + count)[None],
            use_cache=True,
        )
    return out.logits[0]


def text_of(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, tiny_models.VOCAB, length).tolist()


def with_branches(chain: list[int], inputs: list[list[float]]) -> tuple[RowTree, list[list[int]]]:
    """A chain of drafts and a branch beside each of its nodes; the nodes of the branches."""
    tree, branches = RowTree.chain(chain[0], chain[1:]), []
    for depth, own in enumerate(inputs):
        node, branch = depth, []
        for place, u in enumerate(own):
            node = tree.add(0, node, Role.PROBE, u=u, shift=0 if place else -1)
            branch.append(node)
        branches.append(branch)
    return tree, branches


def branches_scored(
    target: Target, texts: Sequence[list[int]], chains: Sequence[list[int]], inputs: Sequence[Sequence[list[float]]]
) -> list[list[np.ndarray]]:
    """Logits [A, V] of each branch of each row, all in one pass: a chain of drafts behind each text, and branches."""
    grown = [with_branches(chain, list(own)) for chain, own in zip(chains, inputs, strict=True)]
    store = target.new_cache()
    slots = [tiny_models.prefill(target, store, text) for text in texts]
    scores = target.forward(TokenTree.stack([row for row, _ in grown]), store, slots)
    return [
        [np.stack([scores.logits(b, node) for node in branch]) for branch in branches]
        for b, (_, branches) in enumerate(grown)
    ]


def one_branch(target: Target, text: list[int], inputs: list[float]) -> np.ndarray:
    """[A, V] of a branch under the last token of a text."""
    [[found]] = branches_scored(target, [text[:-1]], [text[-1:]], [[inputs]])
    return found
