"""Our own decoder against transformers: the same weights, the same logits."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tiny_models
from betoken.decode import Decoder, Request
from betoken.drafters.plain import Plain
from betoken.errors import BetokenError, InputError
from betoken.models.config import DecoderConfig
from betoken.models.decoder import TorchDecoder
from betoken.models.weights import Weights
from betoken.state import StopSettings
from betoken.tree import RowTree, TokenTree
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Greedy
from tiny_models import FAMILIES, VOCAB, Pair, prefill, reference_logits

pairs = cache(tiny_models.pair)
some = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def text_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-9)])
def test_logits_and_states_equal_transformers(family: str, seed: int, dtype: str, tolerance: float) -> None:
    both = pairs(family, seed, dtype)
    text = text_of(70, seed)
    with torch.no_grad():
        expected = both.reference(torch.tensor([text]), output_hidden_states=True)
    store = both.decoder.new_cache()
    tree = TokenTree.stack([RowTree.chain(text[0], text[1:])])
    scores = both.decoder.forward(tree, store, [store.open()], (0, 1, 2, 3))
    torch.testing.assert_close(scores.device_logits, expected.logits[0], atol=tolerance, rtol=tolerance)
    assert float(expected.logits.std()) > 0.5  # weights that matter
    for layer in range(3):
        torch.testing.assert_close(scores.hidden[layer], expected.hidden_states[layer], atol=tolerance, rtol=tolerance)
    with torch.no_grad():
        normed = both.reference.model.norm(scores.hidden[3])
    torch.testing.assert_close(normed, expected.hidden_states[3], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("family", ["llama3-rope", "qwen2", "qwen3-head-dim-10", "llama-tied-one-kv-head"])
def test_every_node_of_a_random_tree_scores_as_its_plain_text(family: str) -> None:
    both = pairs(family)

    @some
    @given(st.data())
    def check(data: st.DataObject) -> None:
        texts = data.draw(st.lists(tiny_models.texts, min_size=1, max_size=3))
        trees = [data.draw(tiny_models.row_trees(len(text))) for text in texts]
        tiny_models.assert_scores(both.reference, both.decoder, texts, trees, 1e-4)

    check()


def test_a_row_in_a_ragged_batch_scores_as_alone() -> None:
    both = pairs("qwen2")
    rows = [text_of(length, length) for length in (0, 3, 64, 130)]
    trees = [RowTree.chain(5, text_of(n, 9)) for n in (0, 6, 1, 3)]
    together = both.decoder.new_cache()
    slots = [prefill(both.decoder, together, text) for text in rows]
    slots, rows, trees = slots[::-1], rows[::-1], trees[::-1]
    batch = both.decoder.forward(TokenTree.stack(trees), together, slots, (3,))
    for b, (text, tree) in enumerate(zip(rows, trees, strict=True)):
        store = both.decoder.new_cache()
        slot = prefill(both.decoder, store, text)
        alone = both.decoder.forward(TokenTree.stack([tree]), store, [slot], (3,))
        for node in range(len(tree)):
            np.testing.assert_allclose(batch.logits(b, node), alone.logits(0, node), atol=1e-4)
        torch.testing.assert_close(batch.hidden[3][b, : len(tree)], alone.hidden[3][0], atol=1e-4, rtol=1e-4)
    assert torch.isfinite(batch.hidden[3]).all()  # padding included


def test_keep_truncate_and_fork_continue_as_text_from_scratch() -> None:
    both = pairs("llama3-rope")

    @some
    @given(st.data())
    def check(data: st.DataObject) -> None:
        store = both.decoder.new_cache()
        rows: dict[int, list[int]] = {}
        for _ in range(data.draw(st.integers(1, 6))):
            action = data.draw(st.sampled_from(["open", "step", "step", "truncate", "fork", "close"]))
            if action == "open" or not rows:
                text = data.draw(tiny_models.texts)
                rows[prefill(both.decoder, store, text)] = text
                continue
            slot = data.draw(st.sampled_from(sorted(rows)))
            length = data.draw(st.integers(0, len(rows[slot])))
            if action == "truncate":
                store.truncate(slot, length)
                rows[slot] = rows[slot][:length]
            elif action == "fork":
                rows[store.fork(slot, length)] = rows[slot][:length]
            elif action == "close":
                store.close(slot)
                del rows[slot]
            else:
                step(both, store, rows, data)

    check()


def step(both: Pair, store: Any, rows: dict[int, list[int]], data: st.DataObject) -> None:
    """A forward pass over some rows: the pending token scores right, then a random path is kept."""
    slots = data.draw(st.lists(st.sampled_from(sorted(rows)), min_size=1, unique=True))
    trees = [data.draw(tiny_models.row_trees(len(rows[slot]), probes=False)) for slot in slots]
    batch = TokenTree.stack(trees)
    scores = both.decoder.forward(batch, store, slots)
    paths = []
    for b, (slot, tree) in enumerate(zip(slots, trees, strict=True)):
        expected = reference_logits(both.reference, [*rows[slot], tree.tokens[0]])[-1]
        np.testing.assert_allclose(scores.logits(b, 0), expected, atol=1e-4, rtol=1e-4)
        paths.append(batch.path(b, data.draw(st.integers(0, len(tree) - 1))))
        rows[slot] = rows[slot] + [tree.tokens[node] for node in paths[-1]]
    store.keep(slots, paths)
    assert [store.length(slot) for slot in slots] == [len(rows[slot]) for slot in slots]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_float32(dtype: str) -> None:
    config = DecoderConfig.from_hf(FAMILIES["qwen3-head-dim-10"]().to_dict() | {"architectures": ["Qwen3ForCausalLM"]})
    reference = pairs("qwen3-head-dim-10").reference
    decoder = TorchDecoder(config, reference.state_dict(), name="half", dtype=dtype)
    store, text = decoder.new_cache(), text_of(20)
    scores = decoder.forward(TokenTree.stack([RowTree.chain(text[0], text[1:])]), store, [store.open()])
    expected = reference_logits(reference, text)
    assert scores.device_logits.dtype == getattr(torch, dtype)
    assert np.corrcoef(scores.host.ravel(), expected.ravel())[0, 1] > 0.999


def test_what_cannot_be_scored_is_refused() -> None:
    decoder = pairs("llama").decoder
    store = decoder.new_cache()
    slot = store.open()
    probe = RowTree.under(1)
    probe.root(2, anchor=0, u=0.5)
    with pytest.raises(BetokenError, match="auxiliary inputs"):
        decoder.forward(TokenTree.stack([probe]), store, [slot])
    with pytest.raises(InputError, match="outside 0"):
        decoder.forward(TokenTree.stack([RowTree.under(VOCAB)]), store, [slot])
    with pytest.raises(InputError, match=r"states 0\.\.3"):
        decoder.forward(TokenTree.stack([RowTree.under(1)]), store, [slot], (4,))
    with pytest.raises(InputError, match="int4"):
        TorchDecoder(decoder.config, {}, name="x", dtype="int4")


PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
)


@pytest.fixture(scope="module")
def real(smollm2: Path) -> tuple[Any, TorchDecoder]:
    """SmolLM2 in transformers, and in our decoder from its own reading of the same folder."""
    reference = transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    config = DecoderConfig.from_folder(smollm2)
    return reference, TorchDecoder(config, Weights(smollm2, config), name="smollm2", dtype="float32")


def test_smollm2_logits_equal_transformers(real: tuple[Any, TorchDecoder]) -> None:
    reference, decoder = real
    text = np.random.default_rng(0).integers(0, decoder.vocab_size, 40).tolist()
    store = decoder.new_cache()
    scores = decoder.forward(TokenTree.stack([RowTree.chain(text[0], text[1:])]), store, [store.open()])
    np.testing.assert_allclose(scores.host, reference_logits(reference, text), atol=1e-4, rtol=1e-4)


def test_smollm2_greedy_text_equals_transformers_generate(real: tuple[Any, TorchDecoder], smollm2: Path) -> None:
    reference, target = real
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    prompts = [tokenizer(prompt, add_special_tokens=False).input_ids for prompt in PROMPTS]
    drafter = Plain()
    drafter.start(target)
    decoder = Decoder(target, drafter, Greedy(), FixedNodes(1))
    rows = [decoder.admit(Request(prompt, stop=StopSettings(max_new_tokens=16))) for prompt in prompts]
    while any(row.finish_reason is None for row in rows):
        decoder.step()
    for row, prompt in zip(rows, prompts, strict=True):
        ids = torch.tensor([prompt])
        out = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
        assert row.new_tokens == out[0, len(prompt) :].tolist()
