"""Our own forward pass of the Llama family in torch: float64, float32, bfloat16 or float16, CPU or CUDA.

Llama 2 and 3, SmolLM2, Qwen2, Qwen3 and Mistral differ in what `DecoderConfig` says and in nothing else. Norms and
rotary angles are computed in float32 for every dtype, as in transformers, which the golden tests compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional as F  # noqa: N812 - the name every torch user knows

from betoken.errors import BetokenError, InputError
from betoken.models.batch import TreeBatch
from betoken.models.cache import TorchCache, Window
from betoken.models.config import DecoderConfig
from betoken.models.rope import angles, inverse_frequencies, rotate
from betoken.models.target import Cache, Scores
from betoken.tree import TokenTree

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Tensors(Protocol):
    """Canonical tensors by name: a dictionary, or the `Weights` of a folder."""

    def __getitem__(self, name: str, /) -> torch.Tensor:
        """One tensor."""


@dataclass(frozen=True)
class _Layer:
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


class TorchDecoder:
    """A `Target` of the Llama family. Not exact: torch's kernels sum in an order that depends on the shape."""

    exact = False

    def __init__(
        self, config: DecoderConfig, weights: Tensors, *, name: str, dtype: str = "float32", device: str = "cpu"
    ) -> None:
        """`weights`: every tensor of `config.tensor_shapes`, of any floating dtype; read one layer at a time."""
        if dtype not in DTYPES:
            raise InputError(f"dtype {dtype} is not one the torch decoder computes in ({', '.join(DTYPES)})")
        self.config, self.name, self.dtype, self.device = config, name, dtype, device
        self.vocab_size, self.num_layers = config.vocab_size, config.num_layers
        self.hidden_size, self.context, self.eos_ids = config.hidden_size, config.context, config.eos_ids
        self._dtype, self._device = DTYPES[dtype], torch.device(device)
        self.embedding = self._placed(weights["model.embed_tokens.weight"])
        self._layers = [self._layer(weights, f"model.layers.{n}.") for n in range(config.num_layers)]
        self.final_norm = self._placed(weights["model.norm.weight"])
        self.head = self.embedding if config.tied_embeddings else self._placed(weights["lm_head.weight"])
        self._frequencies = inverse_frequencies(config).to(self._device)

    def new_cache(self) -> TorchCache:
        """An empty cache."""
        return TorchCache(self.num_layers, self._device)

    @torch.no_grad()
    def forward(self, tree: TokenTree, cache: Cache, slots: Sequence[int], hidden_layers: Sequence[int] = ()) -> Scores:
        """Score the trees; see `Target.forward`. `hidden_layers`: 0 (embeddings) to L (before the final norm).

        Raises BetokenError for a cache of another target, and for probes that have auxiliary inputs.
        """
        if not isinstance(cache, TorchCache):
            raise BetokenError(f"a {type(cache).__name__} is not this target's cache: use new_cache()")
        if any(not 0 <= n <= self.num_layers for n in hidden_layers):
            raise InputError(f"hidden layers {list(hidden_layers)}: this model has states 0..{self.num_layers}")
        window = cache.begin(slots, tree.width)
        batch = TreeBatch.of(tree, window, self.vocab_size, device=self._device, dtype=self._dtype)
        mask = batch.mask
        if mask is not None:
            mask = mask.repeat_interleave(self.config.num_heads // self.config.num_kv_heads, dim=2)
        turn = angles(self._frequencies, batch.positions, self._dtype)
        x = F.embedding(batch.tokens, self.embedding)
        states = {0: x}
        for n, layer in enumerate(self._layers):
            x = x + self._attention(n, layer, x, turn, mask, cache, window)
            x = x + self._mlp(layer, x)
            if n + 1 in hidden_layers:
                states[n + 1] = x
        chosen = self._norm(x.flatten(0, 1)[batch.wanted], self.final_norm)
        return Scores(F.linear(chosen, self.head), batch.index, {n: states[n] for n in hidden_layers})

    def _attention(
        self,
        n: int,
        layer: _Layer,
        x: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        cache: TorchCache,
        window: Window,
    ) -> torch.Tensor:
        """[B, N, hidden]. Query heads that share keys become more queries of one head, so keys are never copied."""
        config = self.config
        heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
        rows, nodes, _ = x.shape
        qkv = F.linear(self._norm(x, layer.input_norm), layer.qkv, layer.qkv_bias)
        qkv = qkv.view(rows, nodes, heads + 2 * kv_heads, width)
        qk = qkv[:, :, : heads + kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = torch.split(qk, [heads, kv_heads], dim=2)
            qk = torch.cat([self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)], dim=2)
        q, k = torch.split(rotate(qk, *turn), [heads, kv_heads], dim=2)
        keys, values = cache.extend(n, window, k.transpose(1, 2), qkv[:, :, heads + kv_heads :].transpose(1, 2))
        grouped = q.view(rows, nodes, kv_heads, heads // kv_heads, width).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(grouped.flatten(2, 3), keys, values, attn_mask=mask)
        return F.linear(mixed.view(grouped.shape).transpose(1, 2).flatten(2), layer.o)

    def _mlp(self, layer: _Layer, x: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(self._norm(x, layer.post_norm), layer.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, layer.down)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Root mean square norm over the last dimension."""
        normed = F.rms_norm(x.to(torch.float32), weight.shape, None, self.config.rms_eps)
        return weight * normed.to(x.dtype)

    def _layer(self, weights: Tensors, prefix: str) -> _Layer:
        def get(name: str) -> torch.Tensor:
            return self._placed(weights[prefix + name])

        def fused(names: Sequence[str], kind: str) -> torch.Tensor:
            return torch.cat([get(f"{name}.{kind}") for name in names])

        qkv = [f"self_attn.{letter}_proj" for letter in "qkv"]
        qk_norm = self.config.qk_norm
        return _Layer(
            input_norm=get("input_layernorm.weight"),
            qkv=fused(qkv, "weight"),
            qkv_bias=fused(qkv, "bias") if self.config.qkv_bias else None,
            q_norm=get("self_attn.q_norm.weight") if qk_norm else None,
            k_norm=get("self_attn.k_norm.weight") if qk_norm else None,
            o=get("self_attn.o_proj.weight"),
            post_norm=get("post_attention_layernorm.weight"),
            gate_up=fused(["mlp.gate_proj", "mlp.up_proj"], "weight"),
            down=get("mlp.down_proj.weight"),
        )

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(self._device, self._dtype)
