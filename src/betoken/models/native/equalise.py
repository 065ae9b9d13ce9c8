"""Offline equalisation of outlier channels before weights and activations are rounded.

A few input channels of a product are far larger than the rest, so one scale for the whole row wastes most of the 127
levels. Dividing an input channel by s and multiplying the weights that read it by s changes nothing in exact
arithmetic, moves the spread from activations to weights, and costs nothing at run time: the division folds into what
produces the channel, the norm before qkv and gate-up, the value rows before the output product, the up rows before
down (SmoothQuant, arXiv 2211.10438, section 4, where s = max|x|^a / max|w|^(1-a); here `a` is chosen per product by
the error it leaves on a short calibration text).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import NamedTuple

import torch
from torch.nn import functional as F  # noqa: N812 - the name every torch user knows

from betoken.models.config import DecoderConfig
from betoken.models.native.pack import LEVELS, to_int8
from betoken.models.rope import angles, inverse_frequencies, rotate
from betoken.models.tokenizer import Tokenizer

Layer = dict[str, torch.Tensor]
PRODUCTS = ("qkv", "out", "gate_up", "down")
Importance = dict[str, torch.Tensor]
"""Mean square [K] of the inputs of the products qkv, out, gate_up and down."""
Rounding = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""A matrix [N, K] and the importance [K] of its inputs -> integers [N, K] and the size [N] of one."""
SEQUENCE = 192
"""Tokens of one calibration sequence."""
_SAMPLE = 256
"""Rows of activations on which errors are compared."""
_STRENGTHS = (0.0, 0.35, 0.5, 0.65, 0.8)
_Q, _K, _V, _O = (f"self_attn.{letter}_proj.weight" for letter in "qkvo")
_GATE, _UP, _DOWN = (f"mlp.{name}_proj.weight" for name in ("gate", "up", "down"))


def calibration_tokens(tokenizer: Tokenizer) -> torch.Tensor:
    """[S, T] token ids of the text that ships with the package: prose, code, mathematics, dialogue."""
    text = files("betoken.models.native").joinpath("calibration.txt").read_text(encoding="utf-8")
    ids = torch.tensor(tokenizer.encode(text, add_special=True), dtype=torch.int64)
    rows = max(1, ids.numel() // SEQUENCE)
    return ids[: rows * SEQUENCE].view(rows, -1)


class Equalised(NamedTuple):
    """A layer, rescaled."""

    layer: Layer
    importance: Importance
    """Of the products' new inputs."""
    scales: dict[str, torch.Tensor]
    """[K] of each product: what its inputs are divided by now."""


class Equaliser:
    """Walks the layers in order, in float32, and rescales each by what its activations look like."""

    def __init__(
        self,
        config: DecoderConfig,
        embeddings: torch.Tensor,
        tokens: torch.Tensor,
        rounding: Rounding = to_int8,
        most_rows: int | None = None,
    ) -> None:
        """`tokens` [S, T]; `embeddings` [V, hidden]; `most_rows`: output channels to compare errors on (None: all)."""
        self.config, self.rounding, self.most_rows = config, rounding, most_rows
        self.x = embeddings[tokens].to(torch.float32)
        positions = torch.arange(tokens.shape[1])[None]
        self._turn = angles(inverse_frequencies(config), positions, torch.float32)

    @torch.no_grad()
    def __call__(self, layer: Layer) -> Equalised:
        """The equalised layer; the text moves on through it."""
        *points, self.x = self._walk(layer)
        attn_in, attended, mlp_in, inner = (_sample(point) for point in points)
        out = dict(layer)
        scales = (
            self._through_norm(out, "input_layernorm.weight", [_Q, _K, _V], attn_in),
            self._through_values(out, attended),
            self._through_norm(out, "post_attention_layernorm.weight", [_GATE, _UP], mlp_in),
            self._through_up(out, inner),
        )
        squares = [mean_square(point / scale) for point, scale in zip(points, scales, strict=True)]
        return Equalised(out, *(dict(zip(PRODUCTS, found, strict=True)) for found in (squares, scales)))

    @torch.no_grad()
    def head_importance(self, norm: torch.Tensor) -> torch.Tensor:
        """[hidden] of the output layer's inputs, when all layers are done. `norm`: weight of the final norm."""
        return mean_square(self._norm(self.x, norm.to(torch.float32)))

    def _through_norm(self, out: Layer, norm: str, products: list[str], x: torch.Tensor) -> torch.Tensor:
        scale = self._best_scale(x, torch.cat([out[name] for name in products]))
        out[norm] = out[norm] / scale
        for name in products:
            out[name] = out[name] * scale
        return scale

    def _through_up(self, out: Layer, inner: torch.Tensor) -> torch.Tensor:
        scale = self._best_scale(inner, out[_DOWN])
        out[_UP], out[_DOWN] = out[_UP] / scale[:, None], out[_DOWN] * scale
        return scale

    def _through_values(self, out: Layer, attended: torch.Tensor) -> torch.Tensor:
        """Query heads of one group read the same value head, so they share its scale."""
        config = self.config
        group = config.num_heads // config.num_kv_heads
        shape = (config.num_kv_heads, group, config.head_dim)

        def shared(channels: torch.Tensor) -> torch.Tensor:
            return channels.view(shape).amax(dim=1, keepdim=True).expand(shape).flatten()

        scale = self._best_scale(attended, out[_O], shared)
        values = scale.view(shape)[:, 0].flatten()
        out[_O] = out[_O] * scale
        out[_V] = out[_V] / values[:, None]
        if config.qkv_bias:
            out["self_attn.v_proj.bias"] = out["self_attn.v_proj.bias"] / values
        return scale

    def _walk(self, layer: Layer) -> Iterator[torch.Tensor]:
        """Inputs of the four products [S, T, .], then the layer's output."""
        config, x = self.config, self.x
        rows, length, _ = x.shape
        heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
        normed = self._norm(x, layer["input_layernorm.weight"])
        yield normed
        q, k, v = (F.linear(normed, layer[w], layer.get(w.replace("weight", "bias"))) for w in (_Q, _K, _V))
        q, k, v = (
            q.view(rows, length, heads, width),
            k.view(rows, length, kv_heads, width),
            v.view(rows, length, -1, width),
        )
        if config.qk_norm:
            q, k = self._norm(q, layer["self_attn.q_norm.weight"]), self._norm(k, layer["self_attn.k_norm.weight"])
        q, k = rotate(q, *self._turn), rotate(k, *self._turn)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=heads != kv_heads
        )
        attended = mixed.transpose(1, 2).flatten(2)
        yield attended
        x = x + F.linear(attended, layer[_O])
        normed = self._norm(x, layer["post_attention_layernorm.weight"])
        yield normed
        inner = F.silu(F.linear(normed, layer[_GATE])) * F.linear(normed, layer[_UP])
        yield inner
        yield x + F.linear(inner, layer[_DOWN])

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_eps)

    def _best_scale(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        shared: Callable[[torch.Tensor], torch.Tensor] = lambda channels: channels,
    ) -> torch.Tensor:
        """[K] of the strength with the least squared error of x [T, K] times weight [N, K]; ones if none helps."""
        inputs, weights = shared(x.abs().amax(dim=0)), shared(weight.abs().amax(dim=0))
        used = (inputs > 0) & (weights > 0)
        if self.most_rows is not None:
            weight = weight[torch.linspace(0, weight.shape[0] - 1, min(self.most_rows, weight.shape[0])).long()]
        exact = F.linear(x, weight)
        best, least = torch.ones_like(inputs), float("inf")
        for strength in _STRENGTHS:
            scale = torch.ones_like(inputs)
            if strength:
                scale[used] = inputs[used] ** strength / weights[used] ** (1 - strength)
                scale /= scale[used].log().mean().exp() if used.any() else 1.0
            error = float((self._rounded(x / scale, weight * scale) - exact).square().sum())
            if error < least:
                best, least = scale, error
        return best

    def _rounded(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The product as the kernels compute it, in float32."""
        step = x.abs().amax(dim=1, keepdim=True) / LEVELS
        step[step == 0] = 1.0
        levels, scale = self.rounding(weight, mean_square(x))
        return F.linear(torch.round(x / step), levels.to(torch.float32)) * step * scale


def _sample(x: torch.Tensor) -> torch.Tensor:
    flat = x.flatten(0, 1)
    return flat[torch.linspace(0, flat.shape[0] - 1, min(_SAMPLE, flat.shape[0])).long()]


def mean_square(x: torch.Tensor) -> torch.Tensor:
    """[K] of [.., K], with a floor, so that an input that the text never moved still counts a little."""
    squares = x.flatten(0, -2).square().mean(dim=0)
    return squares + 1e-3 * squares.mean() + 1e-20
