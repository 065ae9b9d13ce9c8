"""What only a GPU can show: passes that are really recorded as CUDA graphs, against ordinary ones, and what they save.

Run on a machine with CUDA: pytest tests/test_cuda.py -s
"""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import tiny_models
from betoken.models.config import DecoderConfig
from betoken.models.decoder import TorchDecoder
from betoken.models.graphs import CudaGraphs
from betoken.models.hf import HfTarget
from betoken.models.static import StaticCache, bucket
from betoken.tree import RowTree, TokenTree
from tiny_models import LONG_CONFIGS, VOCAB, Asking, random_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

MIDDLING = tiny_models.SIZES | {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
Target = TorchDecoder | HfTarget


def made(config: Any, dtype: str, *, own: bool, capture: CudaGraphs | None) -> Target:
    model = random_model(config, 0, getattr(torch, dtype))
    if not own:
        return HfTarget(model.to("cuda"), name="hf", capture=capture)
    sizes = DecoderConfig.from_hf(model.config.to_dict() | {"architectures": [type(model).__name__]})
    return TorchDecoder(sizes, model.state_dict(), name="own", dtype=dtype, device="cuda", capture=capture)


def close(found: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)


def branching(rng: np.random.Generator, nodes: int) -> RowTree:
    tree = RowTree.under(int(rng.integers(VOCAB)))
    while len(tree) < nodes:
        tree.add(int(rng.integers(VOCAB)), int(rng.integers(len(tree))))
    return tree


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("family", LONG_CONFIGS)
def test_recorded_passes_score_as_ordinary_ones(family: str, dtype: str) -> None:
    """Growing texts, rows that come and go, a buffer that is outgrown: recordings are made anew."""
    rng, graphs = np.random.default_rng(0), CudaGraphs(torch.device("cuda"))
    targets = [made(LONG_CONFIGS[family](), dtype, own=family == "llama", capture=each) for each in (None, graphs)]
    caches = [target.new_cache() for target in targets]
    static = caches[1]
    assert isinstance(static, StaticCache)
    texts = [rng.integers(0, VOCAB, length).tolist() for length in (5, 230, 40)]
    rows = [[tiny_models.prefill(t, c, text, 100) for text in texts] for t, c in zip(targets, caches, strict=True)]
    for step in range(80):
        chosen = [[0, 1, 2], [1], [2, 0]][step % 3]
        trees = TokenTree.stack([branching(rng, int(rng.integers(1, 9))) for _ in chosen])
        expected, found = (
            target.forward(trees, cache, [slots[row] for row in chosen], (2,))
            for target, cache, slots in zip(targets, caches, rows, strict=True)
        )
        close(found.host, expected.host, dtype)
        close(found.hidden[2].float().cpu().numpy(), expected.hidden[2].float().cpu().numpy(), dtype)
        paths = [trees.path(b, int(rng.integers(trees.counts[b]))) for b in range(len(chosen))]
        for cache, slots in zip(caches, rows, strict=True):
            cache.keep([slots[row] for row in chosen], paths)
        if step == 40:
            for target, cache, slots in zip(targets, caches, rows, strict=True):
                cache.close(slots[0])
                slots[0] = tiny_models.prefill(target, cache, texts[1] + texts[1], 100)
    assert graphs.usable and sum(known.recorded is not None for known in static._passes.values()) > 3


def test_a_pass_that_asks_for_a_number_is_not_recorded_and_the_device_goes_on() -> None:
    torch.manual_seed(0)
    model = Asking._from_config(LONG_CONFIGS["llama"](), attn_implementation="sdpa").to("cuda")
    plain = HfTarget(model, name="asking")
    graphs = CudaGraphs(torch.device("cuda"))
    static = HfTarget(model, name="asking", capture=graphs)
    tree = TokenTree.stack([RowTree.chain(3, [4, 5])])
    expected = plain.forward(tree, (cache := plain.new_cache()), [cache.open()]).host
    cache = static.new_cache()
    slot = cache.open()
    for _ in range(4):
        close(static.forward(tree, cache, [slot]).host, expected, "float32")
    assert not graphs.usable
    torch.cuda.synchronize()


@pytest.mark.parametrize("own", [True, False], ids=["own", "transformers"])
def test_a_replay_is_quicker_than_a_pass(own: bool) -> None:
    """bf16, 24 layers of 1024, 500 cached positions: printed, and asserted at few nodes, where launches are all."""
    config = transformers.LlamaConfig(**MIDDLING)
    rng, taken = np.random.default_rng(0), {}
    for name, capture in (("ordinary", None), ("recorded", CudaGraphs(torch.device("cuda")))):
        target = made(config, "bfloat16", own=own, capture=capture)
        cache = target.new_cache()
        slot = tiny_models.prefill(target, cache, rng.integers(0, VOCAB, 500).tolist(), 250)
        for nodes in (1, 3, 8, 16, 64):
            tree = TokenTree.stack([branching(rng, nodes)])
            samples = []
            for _ in range(30):
                torch.cuda.synchronize()
                began = perf_counter()
                _ = target.forward(tree, cache, [slot]).host
                samples.append(perf_counter() - began)
            taken[name, nodes] = 1e3 * median(samples[5:])
    for nodes in (1, 3, 8, 16, 64):
        ordinary, recorded = taken["ordinary", nodes], taken["recorded", nodes]
        print(f"{nodes:3} nodes ({bucket(nodes)}): {ordinary:.2f} ms ordinary, {recorded:.2f} ms recorded")  # noqa: T201
    assert all(taken["recorded", nodes] < taken["ordinary", nodes] for nodes in (1, 3, 8))
