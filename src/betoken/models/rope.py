"""Rotary position embedding (RoFormer, arXiv 2104.09864), halves rotated as Hugging Face's Llama does."""

from __future__ import annotations

import math

import torch

from betoken.models.config import DecoderConfig, RopeScaling


def inverse_frequencies(config: DecoderConfig) -> torch.Tensor:
    """[head_dim / 2] float32 angle a position, scaling applied."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    if config.rope_scaling is None:
        return frequencies
    if config.rope_scaling.kind == "linear":
        return frequencies / config.rope_scaling.factor
    return _llama3(frequencies, config.rope_scaling)


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    smooth = ((scaling.original_context / wavelengths - low) / (high - low)).clamp(0, 1)
    between = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    scaled = torch.where(wavelengths > scaling.original_context / low, frequencies / scaling.factor, between)
    return torch.where(wavelengths < scaling.original_context / high, frequencies, scaled)


def angles(frequencies: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine [B, N, 1, head_dim / 2] of positions [B, N]: computed in float32 for every dtype."""
    turned = positions[:, :, None, None].to(torch.float32) * frequencies
    return turned.cos().to(dtype), turned.sin().to(dtype)


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Heads [B, N, heads, head_dim] turned by their angles."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
