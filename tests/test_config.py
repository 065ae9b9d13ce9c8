"""DecoderConfig against what transformers writes, reads and builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from betoken.errors import InputError
from betoken.models.config import DecoderConfig, RopeScaling
from model_files import FAMILIES, LLAMA3_ROPE, SIZES, canonical_tensors, saved_model

OLD = {  # config.json as transformers before 5 wrote it
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rope_theta": 500000.0,
    **SIZES,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_reads_what_transformers_saves_and_names_every_tensor(family: str, tmp_path: Path) -> None:
    model = saved_model(family)
    model.save_pretrained(tmp_path)
    config = DecoderConfig.from_folder(tmp_path)
    assert config.tensor_shapes == {name: tuple(t.shape) for name, t in canonical_tensors(model).items()}
    assert config.rope_theta == model.config.rope_parameters["rope_theta"]
    assert config.context == 128
    assert config.rms_eps == model.config.rms_norm_eps
    assert (config.eos_ids, config.bos_id) == ((2,), 1)
    assert (config.rope_scaling is None) == (family not in ("llama3", "llama-linear"))


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_what_we_write(family: str, tmp_path: Path) -> None:
    model = saved_model(family)
    model.save_pretrained(tmp_path)
    config = DecoderConfig.from_folder(tmp_path)
    assert DecoderConfig.from_hf(config.to_hf()) == config
    (tmp_path / "again").mkdir()
    (tmp_path / "again/config.json").write_text(json.dumps(config.to_hf()))
    again = transformers.AutoConfig.from_pretrained(tmp_path / "again")
    assert type(again) is type(model.config)
    for key in (*SIZES, "rope_parameters", "rms_norm_eps", "tie_word_embeddings"):
        expected = getattr(model.config, key)
        assert getattr(again, key) in (expected, [expected])


def test_rope_in_the_old_places() -> None:
    plain = DecoderConfig.from_hf(OLD)
    assert (plain.rope_theta, plain.rope_scaling, plain.head_dim) == (500000.0, None, 8)
    linear = DecoderConfig.from_hf(OLD | {"rope_scaling": {"type": "linear", "factor": 2.0}})
    assert (linear.rope_theta, linear.rope_scaling) == (500000.0, RopeScaling("linear", 2.0))
    llama3 = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    assert DecoderConfig.from_hf(OLD | {"rope_scaling": llama3}).rope_scaling == RopeScaling("llama3", 8, 1, 4, 8192)


def test_end_tokens_of_both_files_generation_first() -> None:
    config = DecoderConfig.from_hf(OLD | {"eos_token_id": [2, 5]}, {"eos_token_id": [9, 2], "bos_token_id": 3})
    assert config.eos_ids == (9, 2, 5)
    assert DecoderConfig.from_hf(OLD | {"eos_token_id": None, "bos_token_id": None}).eos_ids == ()


def test_defaults_of_llama_1_and_qwen3() -> None:
    without = {key: value for key, value in OLD.items() if key not in ("num_key_value_heads", "architectures")}
    assert DecoderConfig.from_hf(without).num_kv_heads == 4
    assert DecoderConfig.from_hf(OLD | {"architectures": ["Qwen3ForCausalLM"]}).head_dim == 128


def test_windows_that_do_not_matter_are_fine() -> None:
    qwen = OLD | {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 16}
    assert DecoderConfig.from_hf(qwen | {"use_sliding_window": False}).qkv_bias
    mistral = OLD | {"architectures": ["MistralForCausalLM"]}
    assert DecoderConfig.from_hf(mistral | {"sliding_window": 128}).context == 128
    assert DecoderConfig.from_hf(mistral | {"sliding_window": None}).context == 128


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": [], "model_type": "mamba"}, "mamba"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 64}, "sliding window of 64"),
        ({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 64}, "sliding"),
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 64}, "sliding"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "factor"),
        ({"rope_scaling": "linear"}, "object"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"hidden_size": "32"}, "whole number"),
        ({"hidden_size": True}, "whole number"),
        ({"num_hidden_layers": 0}, "num_layers"),
        ({"num_attention_heads": 0}, "num_heads"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"head_dim": 7}, "even"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"eos_token_id": 97}, "end token 97"),
        ({"eos_token_id": ["x"]}, "whole numbers"),
    ],
)
def test_what_we_do_not_compute_is_refused_in_one_line(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        DecoderConfig.from_hf(OLD | change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": "\\ud800'])
def test_a_broken_config_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        DecoderConfig.from_folder(tmp_path)
    with pytest.raises(InputError, match="not a model folder"):
        DecoderConfig.from_folder(tmp_path / "nowhere")
