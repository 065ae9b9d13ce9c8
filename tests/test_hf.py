"""Models of other families through transformers: the same logits, the same text, clear refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_models
from betoken.decode import Decoder, Request
from betoken.drafters.plain import Plain
from betoken.errors import BetokenError, InputError
from betoken.models.hf import HfTarget, check_masks, load_hf
from betoken.state import StopSettings
from betoken.tree import RowTree, TokenTree
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Greedy
from tiny_models import SIZES, VOCAB, prefill, random_model, reference_logits

IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": VOCAB}
GPT2 = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 128, **IDS}
ALL_HEADS = SIZES | {"num_key_value_heads": 4}
FAMILIES: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: hf.GPT2Config(**GPT2),
    "gpt-neox": lambda: hf.GPTNeoXConfig(**{k: v for k, v in SIZES.items() if k != "num_key_value_heads"}),
    "opt": lambda: hf.OPTConfig(
        hidden_size=48,
        ffn_dim=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        word_embed_proj_dim=48,
        max_position_embeddings=128,
        **IDS,
    ),
    "phi3": lambda: hf.Phi3Config(**SIZES, sliding_window=None),
    "phi": lambda: hf.PhiConfig(**ALL_HEADS),
    "gemma": lambda: hf.GemmaConfig(**SIZES, head_dim=16),
    "qwen2-moe": lambda: hf.Qwen2MoeConfig(
        **SIZES, moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=4, num_experts_per_tok=2
    ),
    "falcon-rotary": lambda: hf.FalconConfig(
        hidden_size=48, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=128, alibi=False, **IDS
    ),
}


def saved(folder: Path, config: Any, seed: int = 0) -> Path:
    random_model(config, seed).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HfTarget:
    folder = saved(tmp_path_factory.mktemp(request.param), FAMILIES[request.param]())
    return load_hf(folder, name=request.param)


def reference(target: HfTarget) -> Any:
    """The model outside the target: its own cache, its own mask."""
    return target.model


def test_nodes_of_trees_score_as_plain_text(target: HfTarget) -> None:
    @settings(max_examples=4, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        texts = data.draw(st.lists(tiny_models.texts, min_size=1, max_size=3))
        trees = [data.draw(tiny_models.row_trees(len(text))) for text in texts]
        tiny_models.assert_scores(reference(target), target, texts, trees, 1e-4)

    check()


def test_greedy_text_equals_generate_alone_and_in_a_batch(target: HfTarget) -> None:
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, VOCAB, size).tolist() for size in (1, 5, 17)]
    decoder = Decoder(target, Plain(), Greedy(), FixedNodes(1))
    rows = [decoder.admit(Request(prompt, stop=StopSettings(max_new_tokens=12))) for prompt in prompts]
    while any(row.finish_reason is None for row in rows):
        decoder.step()
    for row, prompt in zip(rows, prompts, strict=True):
        ids = torch.tensor([prompt])
        out = reference(target).generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        assert row.new_tokens == out[0, len(prompt) :].tolist()


def test_kept_paths_continue_as_text_from_scratch(target: HfTarget) -> None:
    rng = np.random.default_rng(2)
    cache = target.new_cache()
    texts = [rng.integers(0, VOCAB, size).tolist() for size in (4, 11)]
    slots = [prefill(target, cache, text) for text in texts]
    for _ in range(3):
        trees = []
        for _ in slots:
            tree = RowTree.under(int(rng.integers(VOCAB)))
            for _ in range(5):
                tree.add(int(rng.integers(VOCAB)), int(rng.integers(len(tree))))
            trees.append(tree)
        batch = TokenTree.stack(trees)
        target.forward(batch, cache, slots)
        paths = [batch.path(b, int(rng.integers(1, 6))) for b in range(2)]
        cache.keep(slots, paths)
        texts = [text + [trees[b].tokens[n] for n in paths[b]] for b, text in enumerate(texts)]
    scores = target.forward(TokenTree.stack([RowTree.under(5), RowTree.under(6)]), cache, slots)
    for b, pending in enumerate((5, 6)):
        expected = reference_logits(reference(target), [*texts[b], pending])[-1]
        np.testing.assert_allclose(scores.logits(b, 0), expected, atol=1e-4, rtol=1e-4)


def test_states_are_what_enters_each_layer(target: HfTarget) -> None:
    text = [3, 1, 4, 1, 5]
    with torch.no_grad():
        expected = reference(target)(torch.tensor([text]), output_hidden_states=True).hidden_states
    cache = target.new_cache()
    tree = TokenTree.stack([RowTree.chain(text[0], text[1:])])
    hidden = target.forward(tree, cache, [cache.open()], (0, 2, 3)).hidden
    for layer in (0, 2):
        torch.testing.assert_close(hidden[layer], expected[layer], atol=1e-4, rtol=1e-4)
    decoder = target.model.get_decoder()
    norms = [getattr(decoder, name, None) for name in ("norm", "ln_f", "final_layer_norm", "final_layernorm")]
    final = next(norm for norm in norms if norm is not None)
    torch.testing.assert_close(final(hidden[3]).detach(), expected[3], atol=1e-4, rtol=1e-4)


def test_probes_with_inputs_and_foreign_caches_are_refused(target: HfTarget) -> None:
    probe = RowTree.under(1)
    probe.root(2, u=0.5)
    cache = target.new_cache()
    with pytest.raises(BetokenError, match="auxiliary inputs"):
        target.forward(TokenTree.stack([probe]), cache, [cache.open()])


RECURRENT = {
    "mamba": lambda: hf.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=VOCAB),
    "mamba2": lambda: hf.Mamba2Config(
        hidden_size=32, num_hidden_layers=2, vocab_size=VOCAB, num_heads=4, head_dim=16, n_groups=1
    ),
    "rwkv": lambda: hf.RwkvConfig(hidden_size=32, num_hidden_layers=2, vocab_size=VOCAB),
    "recurrent-gemma": lambda: hf.RecurrentGemmaConfig(hidden_size=32, num_hidden_layers=3, vocab_size=VOCAB),
    "jamba": lambda: hf.JambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=VOCAB),
}
WINDOWED = {
    "mistral": lambda: hf.MistralConfig(**SIZES, sliding_window=64),
    "phi3": lambda: hf.Phi3Config(**SIZES, sliding_window=64),
    "gemma2": lambda: hf.Gemma2Config(**SIZES, head_dim=12),
    "gpt-neo": lambda: hf.GPTNeoConfig(hidden_size=48, num_layers=2, attention_types=[[["global", "local"], 1]], **IDS),
    "starcoder2": lambda: hf.Starcoder2Config(**SIZES, sliding_window=32),
}
ALIBI = {
    "bloom": lambda: hf.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=VOCAB),
    "mpt": lambda: hf.MptConfig(d_model=32, n_layers=2, n_heads=4, vocab_size=VOCAB),
    "falcon": lambda: hf.FalconConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, alibi=True, **IDS),
}
OTHER = {
    "t5": (lambda: hf.T5Config(d_model=32, num_layers=2, vocab_size=VOCAB), "causal language model|encoder-decoder"),
    "bart": (lambda: hf.BartConfig(d_model=32, vocab_size=VOCAB), "encoder-decoder"),
}
REFUSED = [
    *((name, make, "recurrent state") for name, make in RECURRENT.items()),
    *((name, make, "window") for name, make in WINDOWED.items()),
    *((name, make, "ALiBi") for name, make in ALIBI.items()),
    *((name, make, reason) for name, (make, reason) in OTHER.items()),
]


@pytest.mark.parametrize(("name", "make", "reason"), REFUSED, ids=[name for name, _, _ in REFUSED])
def test_models_that_cannot_score_trees_are_refused_before_loading(
    name: str, make: Callable[[], Any], reason: str, tmp_path: Path
) -> None:
    make().save_pretrained(tmp_path)  # no weights at all: the config is enough
    with pytest.raises(InputError, match=reason) as caught:
        load_hf(tmp_path, name=name)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(name)


def test_code_of_a_stranger_is_not_run(tmp_path: Path) -> None:
    config = {"model_type": "stranger", "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(InputError, match="trust_remote_code"):
        load_hf(tmp_path, name="stranger")
    assert not (tmp_path / "ran").exists()


def test_broken_folders_are_one_line(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", FAMILIES["gpt2"]())
    with pytest.raises(InputError, match="int8"):
        load_hf(folder, name="m", dtype="int8")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError) as cut:
        load_hf(folder, name="m")
    weights.unlink()
    with pytest.raises(InputError) as missing:
        load_hf(folder, name="m")
    for caught in (cut, missing):
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="config"):
        load_hf(tmp_path / "nothing", name="m")


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, FAMILIES["gpt2"]())
    hf.GPT2Config(**GPT2 | {"n_layer": 4}).save_pretrained(folder)
    with pytest.raises(InputError, match="do not fit"):
        load_hf(folder, name="m")


def test_a_model_that_ignores_the_mask_is_found_out() -> None:
    class Deaf(hf.GPT2LMHeadModel):
        def forward(
            self, *, attention_mask: Any, position_ids: Any, logits_to_keep: Any = 0, cache: Any = None, **kwargs: Any
        ) -> Any:
            options = {"position_ids": position_ids, "logits_to_keep": logits_to_keep, "cache": cache, **kwargs}
            return super().forward(attention_mask=torch.zeros_like(attention_mask), **options)

    torch.manual_seed(0)
    model = Deaf._from_config(FAMILIES["gpt2"](), attn_implementation="sdpa")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    with pytest.raises(InputError, match="differently"):
        check_masks(HfTarget(model, name="deaf"))
