"""Our own forward pass of the Llama family in torch: float64, float32, bfloat16 or float16, CPU or CUDA.

Llama 2 and 3, SmolLM2, Qwen2, Qwen3 and Mistral differ in what `DecoderConfig` says and in nothing else. Norms and
rotary angles are computed in float32 for every dtype, as in transformers, which the golden tests compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch.nn import functional as F  # noqa: N812 - the name every torch user knows

from betoken.errors import BetokenError, InputError
from betoken.models.batch import Outputs, TreeBatch, check_tree, index_of
from betoken.models.cache import TorchCache, Window
from betoken.models.config import DecoderConfig
from betoken.models.graphs import Capture
from betoken.models.layers import Layer, Tensors, read_layer
from betoken.models.overlay import UNCHANGED, Gate, LayerOverlay, Overlay
from betoken.models.rope import angles, inverse_frequencies, rotate
from betoken.models.static import StaticCache
from betoken.models.student import Student
from betoken.models.target import Cache, Scores
from betoken.tree import TokenTree

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class TorchDecoder:
    """A `Target` of the Llama family. Not exact: torch's kernels sum in an order that depends on the shape."""

    exact = False

    def __init__(
        self,
        config: DecoderConfig,
        weights: Tensors,
        *,
        name: str,
        dtype: str = "float32",
        device: str = "cpu",
        capture: Capture | None = None,
    ) -> None:
        """`weights`: every tensor of `config.tensor_shapes`, of any floating dtype; read one layer at a time.

        `capture`: how passes are recorded (static.py), if they shall be.
        """
        if dtype not in DTYPES:
            raise InputError(f"dtype {dtype} is not one the torch decoder computes in ({', '.join(DTYPES)})")
        self.config, self.name, self.dtype, self.device = config, name, dtype, device
        self.vocab_size, self.num_layers = config.vocab_size, config.num_layers
        self.hidden_size, self.context, self.eos_ids = config.hidden_size, config.context, config.eos_ids
        self._dtype, self._device = DTYPES[dtype], torch.device(device)
        self.embedding = self._placed(weights["model.embed_tokens.weight"])
        self._layers = [read_layer(weights, config, n, self._placed) for n in range(config.num_layers)]
        self.final_norm = self._placed(weights["model.norm.weight"])
        self.head = self.embedding if config.tied_embeddings else self._placed(weights["lm_head.weight"])
        self._frequencies = inverse_frequencies(config).to(self._device)
        self._overlay: Overlay | None = None
        self._capture = capture

    def attach(self, student: Student) -> None:
        """Score auxiliary nodes by this student; see `TakesStudent.attach`."""
        self._overlay = Overlay.of(student, self.config, self.name, self._placed)

    def new_cache(self) -> TorchCache:
        """An empty cache."""
        if self._capture is not None:
            return StaticCache(self.num_layers, self._device, capture=self._capture, dtype=self._dtype)
        return TorchCache(self.num_layers, self._device)

    @torch.no_grad()
    def forward(self, tree: TokenTree, cache: Cache, slots: Sequence[int], hidden_layers: Sequence[int] = ()) -> Scores:
        """Score the trees; see `Target.forward`. `hidden_layers`: 0 (embeddings) to L (before the final norm).

        Raises BetokenError for a cache of another target, and for auxiliary inputs without a student.
        """
        if not isinstance(cache, TorchCache):
            raise BetokenError(f"a {type(cache).__name__} is not this target's cache: use new_cache()")
        if any(not 0 <= n <= self.num_layers for n in hidden_layers):
            raise InputError(f"hidden layers {list(hidden_layers)}: this model has states 0..{self.num_layers}")
        check_tree(tree, self.vocab_size, student=self._overlay is not None)
        outputs, gate = None, Gate(None)
        if isinstance(cache, StaticCache):
            outputs = cache.run(tree, slots, hidden_layers, partial(self._states, cache, hidden_layers, None))
        if outputs is None:
            window = cache.begin(slots, tree.width)
            batch = TreeBatch.of(tree, window, device=self._device, dtype=self._dtype)
            auxiliary = batch if len(batch.inputs) else None
            gate = Gate(batch.auxiliary_wanted) if auxiliary else gate
            outputs = self._states(cache, hidden_layers, auxiliary, batch.tokens, batch.positions, batch.mask, window)
        return Scores(self._head(outputs.wanted(tree), gate), index_of(tree), outputs.states(tree))

    def _states(
        self,
        cache: TorchCache,
        hidden_layers: Sequence[int],
        auxiliary: TreeBatch | None,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        window: Window,
    ) -> Outputs:
        """The layers over tokens and positions [B, N]; `auxiliary` says which nodes have other inputs, if any have."""
        if mask is not None:
            mask = mask.repeat_interleave(self.config.num_heads // self.config.num_kv_heads, dim=2)
        turn = angles(self._frequencies, positions, self._dtype)
        x = F.embedding(tokens.flatten(), self.embedding)
        overlay, gate = self._overlay, Gate(None)
        if overlay is not None and auxiliary is not None:
            gate = Gate(auxiliary.auxiliary)
            x[auxiliary.auxiliary] = overlay.vectors(auxiliary.inputs)
        states = {0: x}
        for n, layer in enumerate(self._layers):
            change = UNCHANGED if overlay is None else overlay.layers[n]
            x = x + self._attention(n, layer, change, gate, x, turn, mask, cache, window)
            x = x + self._mlp(layer, change, gate, x)
            if n + 1 in hidden_layers:
                states[n + 1] = x
        shape = (*tokens.shape, self.hidden_size)
        return Outputs(x.view(shape), {n: states[n].view(shape) for n in hidden_layers})

    def _attention(
        self,
        n: int,
        layer: Layer,
        change: LayerOverlay,
        gate: Gate,
        x: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        cache: TorchCache,
        window: Window,
    ) -> torch.Tensor:
        """[B * N, hidden], of x likewise.

        Query heads that share keys become more queries of one head, so keys are never copied.
        """
        config, eps = self.config, self.config.rms_eps
        heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
        rows, nodes = turn[0].shape[:2]
        normed = gate.norm(x, layer.input_norm, eps, change.input_norm)
        qkv = gate.linear(normed, layer.qkv, layer.qkv_bias, change.qkv).view(-1, heads + 2 * kv_heads, width)
        qk = qkv[:, : heads + kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = torch.split(qk, [heads, kv_heads], dim=1)
            q, k = gate.norm(q, layer.q_norm, eps, change.q_norm), gate.norm(k, layer.k_norm, eps, change.k_norm)
            qk = torch.cat([q, k], dim=1)
        turned = rotate(qk.view(rows, nodes, heads + kv_heads, width), *turn)
        q, k = torch.split(turned, [heads, kv_heads], dim=2)
        v = qkv[:, heads + kv_heads :].view(rows, nodes, kv_heads, width)
        keys, values = cache.extend(n, window, k.transpose(1, 2), v.transpose(1, 2))
        grouped = q.view(rows, nodes, kv_heads, heads // kv_heads, width).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(grouped.flatten(2, 3), keys, values, attn_mask=mask)
        joined = mixed.view(grouped.shape).transpose(1, 2).reshape(rows * nodes, heads * width)
        return gate.linear(joined, layer.o, None, change.o)

    def _mlp(self, layer: Layer, change: LayerOverlay, gate: Gate, x: torch.Tensor) -> torch.Tensor:
        normed = gate.norm(x, layer.post_norm, self.config.rms_eps, change.post_norm)
        opened, up = gate.linear(normed, layer.gate_up, None, change.gate_up).chunk(2, dim=-1)
        return gate.linear(F.silu(opened) * up, layer.down, None, change.down)

    def _head(self, x: torch.Tensor, gate: Gate) -> torch.Tensor:
        """[W, V] logits of the wanted nodes' last states x [W, hidden]."""
        overlay = self._overlay
        norm, change = (None, None) if overlay is None else (overlay.final_norm, overlay.head)
        return gate.linear(gate.norm(x, self.final_norm, self.config.rms_eps, norm), self.head, None, change)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(self._device, self._dtype)
