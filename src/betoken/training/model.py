"""A PTP student on a transformers causal language model: the two passes over a text and its auxiliary branches.

Pass 1 (`read`) runs the base over the text and keeps its keys and values. Pass 2 (`branch`) runs the auxiliary nodes
against them, with the student's weights. Which weights those are is the student's kind:

    lora    the base's, changed by a PEFT adapter that is off in pass 1 (gated LoRA)
    full    a copy of the base that is trained; the base stays
    same    the base's own, trained in both passes: one model that reads tokens and random numbers

Only "same" has gradients in pass 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from betoken.models.student import UEmbedding, WeightKind


class Keys(transformers.Cache):
    """Keys and values of a text, layer by layer, as a transformers model sees its cache.

    The first pass fills it. Later passes see it with their own nodes behind it and leave it as it is.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.stored: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._filled = False

    def seal(self) -> None:
        """The text is complete."""
        self._filled = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The arguments are transformers'."""
        if not self._filled:
            self.stored.append((key_states, value_states))
            return key_states, value_states
        keys, values = self.stored[layer_idx]
        return torch.cat([keys, key_states], 2), torch.cat([values, value_states], 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns before the new ones."""
        return self.stored[0][0].shape[2] if self._filled else 0


class GrowingKeys(transformers.Cache):
    """A text's keys and values with room behind them, for nodes that come one depth at a time without gradients."""

    def __init__(self, text: Keys, room: int) -> None:
        super().__init__(layers=[])
        self._buffers = [tuple(self._widened(part, room) for part in layer) for layer in text.stored]
        self._length = text.get_seq_length()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The arguments are transformers'. Call `advance` when all layers have seen the new nodes."""
        end = self._length + key_states.shape[2]
        for buffer, new in zip(self._buffers[layer_idx], (key_states, value_states), strict=True):
            buffer[:, :, self._length : end] = new
        keys, values = self._buffers[layer_idx]
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, nodes: int) -> None:
        """Keep the nodes of the last pass."""
        self._length += nodes

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns before the new ones."""
        return self._length

    @staticmethod
    def _widened(part: torch.Tensor, room: int) -> torch.Tensor:
        rows, heads, length, width = part.shape
        wide = part.new_zeros(rows, heads, length + room, width)
        wide[:, :, :length] = part.detach()
        return wide


@dataclass(frozen=True)
class Text:
    """What pass 1 leaves."""

    hidden: torch.Tensor
    """[B, N, H] states after the final norm."""
    keys: Keys


class CausalModel:
    """A transformers causal language model as a body (inputs to states) and a head (states to logits)."""

    def __init__(self, model: Any) -> None:
        self.model: Any = model
        self._decoder = model.get_decoder()
        self._cache_name = (
            "cache"
            if "cache" in inspect.signature(self._decoder.forward).parameters
            else (
                "past_key_values"  # renamed in transformers 5.20
            )
        )

    @property
    def hidden_size(self) -> int:
        """H"""
        return int(self.model.config.hidden_size)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.get_input_embeddings().weight.device

    def body(
        self,
        *,
        mask: torch.Tensor,
        positions: torch.Tensor,
        keys: Keys | GrowingKeys,
        tokens: torch.Tensor | None = None,
        vectors: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[B, n, H] states after the final norm of tokens [B, n] or input vectors [B, n, H]."""
        output = self._decoder(
            input_ids=tokens,
            inputs_embeds=vectors,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{self._cache_name: keys},
        )
        states: torch.Tensor = output.last_hidden_state
        return states

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """[..., V] float32 logits (float64 in a float64 model)."""
        logits = self.model.get_output_embeddings()(states)
        return logits if logits.dtype == torch.float64 else logits.float()

    def read(self, tokens: torch.Tensor) -> Text:
        """Pass 1 over plain text [B, N], each row from position 0."""
        columns = tokens.shape[1]
        ones = torch.ones(columns, columns, dtype=torch.bool, device=tokens.device)
        positions = torch.arange(columns, device=tokens.device)[None].expand(tokens.shape)
        mask = ones.tril()[None, None].expand(len(tokens), 1, -1, -1)
        keys = Keys()
        hidden = self.body(tokens=tokens, mask=mask, positions=positions, keys=keys)
        keys.seal()
        return Text(hidden, keys)


class StudentModel:
    """Base, student weights, u embedding and start vector."""

    def __init__(
        self,
        base: Any,
        kind: WeightKind,
        embedding: UEmbedding | None,
        *,
        student: Any = None,
        start: torch.Tensor | None = None,
    ) -> None:
        """`base`: a transformers causal model, or the PeftModel around it ("lora"). `student`: its copy ("full").

        `start`: [H]; 0 if not given. Without an embedding every auxiliary input is the start vector.
        """
        self.kind, self.embedding = kind, embedding
        self.peft: Any = base if kind == "lora" else None
        self.base = CausalModel(base.get_base_model() if kind == "lora" else base)
        self.student = CausalModel(student) if kind == "full" else self.base
        like = self.base.model.get_input_embeddings().weight
        initial = torch.zeros(self.base.hidden_size) if start is None else start
        self.start = nn.Parameter(initial.to(like.device, like.dtype))
        if embedding is not None:
            embedding.to(like.device, like.dtype)
        if kind != "same":
            _freeze(self.base.model)

    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained, by name, in a fixed order."""
        found = {"start": self.start}
        if self.embedding is not None:
            found |= {f"embedding.{name}": weight for name, weight in self.embedding.named_parameters()}
        trained = self.peft or self.student.model
        wanted = [(name, weight) for name, weight in trained.named_parameters() if weight.requires_grad]
        return found | {f"model.{name}": weight for name, weight in sorted(wanted)}

    def read(self, tokens: torch.Tensor) -> Text:
        """Pass 1. Gradients flow only if the base itself is trained."""
        with self.gate(), nullcontext() if self.kind == "same" else torch.no_grad():
            return self.base.read(tokens)

    @contextmanager
    def gate(self) -> Iterator[None]:
        """Inside, the adapter is off: the base alone."""
        if self.peft is None:
            yield
            return
        layers = self.peft.base_model
        layers.disable_adapter_layers()
        try:
            yield
        finally:
            layers.enable_adapter_layers()

    def branch(
        self, vectors: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, keys: Keys | GrowingKeys
    ) -> torch.Tensor:
        """[B, n, H] states of auxiliary nodes with input vectors [B, n, H]."""
        return self.student.body(vectors=vectors, mask=mask, positions=positions, keys=keys)


def _freeze(model: Any) -> None:
    """No gradients for the base. The weights of a LoRA adapter keep theirs: PEFT names them lora_*."""
    for name, weight in model.named_parameters():
        if "lora_" not in name:
            weight.requires_grad_(False)
