"""Tiny random models and random token trees, and what transformers says about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from hypothesis import strategies as st

from betoken.models.config import DecoderConfig
from betoken.models.decoder import TorchDecoder
from betoken.models.target import Cache, Target
from betoken.tree import WHOLE_CACHE, RowTree, TokenTree

VOCAB = 97
SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LONG = SIZES | {"max_position_embeddings": 2048}
LONG_CONFIGS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(**LONG),
    "gpt2": lambda: transformers.GPT2Config(
        n_embd=48, n_layer=3, n_head=4, n_positions=2048, vocab_size=VOCAB, bos_token_id=1, eos_token_id=2
    ),
}
"""Of a context that a cache outgrows by steps."""
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "llama-wide": lambda: transformers.LlamaConfig(**SIZES | {"intermediate_size": 300}),
    "llama-tied-one-kv-head": lambda: transformers.LlamaConfig(
        **SIZES | {"num_key_value_heads": 1, "tie_word_embeddings": True}
    ),
    "llama-all-kv-heads": lambda: transformers.LlamaConfig(**SIZES | {"num_key_value_heads": 4}),
    "llama3-rope": lambda: transformers.LlamaConfig(**SIZES, rope_parameters=_LLAMA3),
    "linear-rope": lambda: transformers.LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    ),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "qwen2-tied": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3-head-dim-10": lambda: transformers.Qwen3Config(**SIZES, head_dim=10),
    "mistral-head-dim-14": lambda: transformers.MistralConfig(**SIZES, head_dim=14, sliding_window=None),
}


class Asking(transformers.LlamaForCausalLM):
    """Its forward asks the device for a number, as some models of other people do."""

    def forward(
        self, *, input_ids: Any, position_ids: Any, logits_to_keep: Any = 0, cache: Any = None, **kwargs: Any
    ) -> Any:
        if int(input_ids.max()) < 0:
            raise ValueError("no such token")
        options = {"position_ids": position_ids, "logits_to_keep": logits_to_keep, "cache": cache, **kwargs}
        return super().forward(input_ids=input_ids, **options)


def random_model(config: Any, seed: int, dtype: torch.dtype = torch.float32) -> Any:
    """A transformers model with weights large enough that every part of it matters to the logits."""
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(dtype) * 0.2
            parameter.copy_(noise + 1.0 if name.endswith("norm.weight") else noise)
    return model


@dataclass
class Pair:
    """The same weights twice: in transformers, and in our own decoder."""

    reference: Any
    decoder: TorchDecoder


def pair(family: str, seed: int = 0, dtype: str = "float32") -> Pair:
    config = FAMILIES[family]()
    reference = random_model(config, seed, getattr(torch, dtype))
    ours = DecoderConfig.from_hf(config.to_dict() | {"architectures": [type(reference).__name__]})
    return Pair(reference, TorchDecoder(ours, reference.state_dict(), name=family, dtype=dtype))


def prefill(target: Target, cache: Cache, text: Sequence[int], chunk: int = 7) -> int:
    """A slot that holds `text`."""
    slot = cache.open()
    for start in range(0, len(text), chunk):
        part = list(text[start : start + chunk])
        target.forward(TokenTree.stack([RowTree.chain(part[0], part[1:])]), cache, [slot])
        cache.keep([slot], [range(len(part))])
    return slot


def reference_logits(model: Any, tokens: Sequence[int], positions: Sequence[int] | None = None) -> np.ndarray:
    """[T, V] logits of plain text, at the usual positions or at those given."""
    ids = torch.tensor([list(tokens)])
    where = torch.arange(len(tokens))[None] if positions is None else torch.tensor([list(positions)])
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=where, use_cache=False)
    return out.logits[0].double().numpy()


def node_reference(model: Any, text: Sequence[int], tree: RowTree, node: int) -> np.ndarray:
    """[V] what transformers gives for a node: the text it sees and its path, at the positions the tree means."""
    path = [node]
    while tree.parents[path[-1]] >= 0:
        path.append(tree.parents[path[-1]])
    path.reverse()
    anchor = tree.anchors[path[0]]
    seen = len(text) if anchor == WHOLE_CACHE else min(anchor, len(text))
    tokens = [*text[:seen], *(tree.tokens[n] for n in path)]
    own = [max(seen + depth + sum(tree.shifts[n] for n in path[: depth + 1]), 0) for depth in range(len(path))]
    return reference_logits(model, tokens, [*range(seen), *own])[-1]


def assert_scores(
    model: Any, target: Target, texts: Sequence[Sequence[int]], trees: Sequence[RowTree], tolerance: float
) -> None:
    """Every node of every row scores as transformers scores its plain text."""
    cache = target.new_cache()
    slots = [prefill(target, cache, text) for text in texts]
    scores = target.forward(TokenTree.stack(trees), cache, slots)
    for row, (text, tree) in enumerate(zip(texts, trees, strict=True)):
        for node in range(len(tree)):
            if tree.wanted[node]:
                expected = node_reference(model, text, tree, node)
                np.testing.assert_allclose(scores.logits(row, node), expected, atol=tolerance, rtol=tolerance)
            else:
                assert scores.index[row, node] == -1


tokens = st.integers(0, VOCAB - 1)
texts = st.lists(tokens, max_size=20)


@st.composite
def row_trees(draw: st.DrawFn, length: int, probes: bool = True) -> RowTree:
    """A pending token and up to 8 candidates and probes of any shape, some from the middle of the cache."""
    tree = RowTree.under(draw(tokens))
    for _ in range(draw(st.integers(0, 8))):
        if probes and draw(st.integers(0, 3)) == 0:
            anchor = draw(st.integers(-1, length))
            tree.root(draw(tokens), anchor=anchor, shift=draw(st.integers(-1, 2)), wanted=draw(st.booleans()))
        else:
            parent, shift = draw(st.integers(0, len(tree) - 1)), draw(st.integers(-1, 1)) if probes else 0
            tree.add(draw(tokens), parent, shift=shift, wanted=draw(st.booleans()))
    return tree
