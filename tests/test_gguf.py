"""GGUF files: weights against the gguf package and transformers, tokenizers against the patterns of llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import regex
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from betoken.errors import InputError
from betoken.models.convert import convert_gguf
from betoken.models.files import SilentProgress
from betoken.models.gguf import GgufModel
from betoken.models.gguf_tokenizer import tokenizer_from_gguf
from model_files import (
    ARCHES,
    LLAMA3_ROPE,
    canonical_tensors,
    permuted,
    saved_model,
    tiny_bpe,
    tokenizer_metadata,
    trained_bpe,
    write_gguf,
)

Kind = gguf.GGMLQuantizationType
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "head_dim": 64, "vocab_size": 300}
QUANTISED = [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q8_0, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K]


def written(path: Path, family: str, **more: Any) -> tuple[transformers.PreTrainedModel, dict[str, np.ndarray]]:
    model = saved_model(family)
    return model, write_gguf(path, model, ARCHES[family], tokenizer_metadata(tiny_bpe()), **more)


def random_blocks(kind: Kind, rows: int, columns: int) -> np.ndarray:
    """Random quantised rows whose float16 scales are finite and small; the gguf package cannot make K-quants."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(3)
    raw = random.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    places = {Kind.Q4_0: [0], Kind.Q4_1: [0, 2], Kind.Q5_0: [0], Kind.Q8_0: [0]}
    places |= {Kind.Q4_K: [0, 2], Kind.Q5_K: [0, 2], Kind.Q6_K: [size - 2]}
    for at in places[kind]:
        scales = random.uniform(-0.01, 0.01, (rows, columns // block)).astype(np.float16)
        raw[:, :, at : at + 2] = scales[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("family", ARCHES)
def test_float_tensors_and_config_survive(family: str, tmp_path: Path) -> None:
    extra = {"rope_freqs.weight": llama3_factors()} if family == "llama3" else {}
    model, _ = written(tmp_path / "m.gguf", family, extra_tensors=extra)
    read = GgufModel(tmp_path / "m.gguf")
    expected = canonical_tensors(model)
    tensors = dict(read)
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    assert read.config.rms_eps == pytest.approx(model.config.rms_norm_eps, rel=1e-12)
    assert read.config.rope_theta == model.config.rope_parameters["rope_theta"]


@pytest.mark.parametrize("family", ["llama", "llama3", "qwen2", "qwen3"])
def test_converted_folder_gives_the_same_logits(family: str, tmp_path: Path) -> None:
    extra = {"rope_freqs.weight": llama3_factors()} if family == "llama3" else {}
    template = "{{ messages[0]['content'] }}"
    metadata = tokenizer_metadata(tiny_bpe(), template=template)
    model = saved_model(family, vocab_size=len(metadata["tokenizer.ggml.tokens"]))
    write_gguf(tmp_path / "m.gguf", model, ARCHES[family], metadata, extra_tensors=extra)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "folder", {"path": "m.gguf"}, SilentProgress())
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder").eval()
    ids = torch.arange(60)[None]
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=0, atol=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert tokenizer.chat_template == template
    assert tokenizer.eos_token == "<|im_end|>"
    assert again.generation_config.eos_token_id == [2, 0]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_transformers_reads_the_same_file_to_the_same_weights(family: str, tmp_path: Path) -> None:
    """transformers has its own GGUF reader: the permutation of q and k must come out alike."""
    model, _ = written(tmp_path / "m.gguf", family)
    other = load_gguf_checkpoint(str(tmp_path / "m.gguf"), return_tensors=True, model_to_load=model)["tensors"]
    assert all(torch.equal(tensor, other[name]) for name, tensor in GgufModel(tmp_path / "m.gguf"))


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_weights_are_the_gguf_packages_rounded_to_float16(kind: Kind, tmp_path: Path) -> None:
    def quantise(name: str, array: np.ndarray) -> tuple[np.ndarray, Kind]:
        return random_blocks(kind, *array.shape), kind

    model = saved_model("llama", **WIDE)
    raw = write_gguf(tmp_path / "m.gguf", model, "llama", tokenizer_metadata(tiny_bpe()), quantise=quantise)
    for name, tensor in GgufModel(tmp_path / "m.gguf"):
        if tensor.ndim == 1:
            assert tensor.dtype == torch.float32
            continue
        expected = gguf.dequantize(raw[name], kind)
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2], 0)
        got = tensor.numpy()
        assert tensor.dtype == torch.float16
        np.testing.assert_array_equal(permuted(got, heads) if heads else got, expected.astype(np.float16))


@pytest.mark.parametrize(("kind", "dtype"), [(Kind.F16, torch.float16), (Kind.BF16, torch.bfloat16)])
def test_16_bit_floats_are_kept_bit_for_bit(kind: Kind, dtype: torch.dtype, tmp_path: Path) -> None:
    model, _ = written(tmp_path / "m.gguf", "qwen3", quantise=lambda name, array: (gguf.quantize(array, kind), kind))
    for name, tensor in GgufModel(tmp_path / "m.gguf"):
        expected = canonical_tensors(model)[name]
        assert torch.equal(tensor, expected.to(dtype) if tensor.ndim == 2 else expected)


def test_rows_beyond_one_block_are_read(tmp_path: Path) -> None:
    def quantise(name: str, array: np.ndarray) -> tuple[np.ndarray, Kind | None]:
        return (gguf.quantize(array, Kind.Q8_0), Kind.Q8_0) if array.shape[1] % 32 == 0 else (array, None)

    model = saved_model("qwen2", vocab_size=9001)
    write_gguf(tmp_path / "m.gguf", model, "qwen2", tokenizer_metadata(tiny_bpe()), quantise)
    name = "model.embed_tokens.weight"
    expected = gguf.dequantize(gguf.quantize(canonical_tensors(model)[name].numpy(), Kind.Q8_0), Kind.Q8_0)
    np.testing.assert_array_equal(GgufModel(tmp_path / "m.gguf").tensor(name).numpy(), expected.astype(np.float16))


def llama3_factors() -> np.ndarray:
    """What llama.cpp's converter writes, from transformers' inverse frequencies with and without scaling."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = saved_model("llama3").config
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / LLAMA3_ROPE["rope_theta"] ** (torch.arange(0, 8, 2) / 8)
    return (plain / scaled).numpy().astype(np.float32)


def test_llama3_rope_is_recovered_or_refused(tmp_path: Path) -> None:
    factors = llama3_factors()
    written(tmp_path / "m.gguf", "llama3", extra_tensors={"rope_freqs.weight": factors})
    scaling = GgufModel(tmp_path / "m.gguf").config.rope_scaling
    assert scaling is not None
    assert (scaling.kind, scaling.factor, scaling.original_context) == ("llama3", 8.0, 8192)
    written(tmp_path / "odd.gguf", "llama3", extra_tensors={"rope_freqs.weight": factors[::-1].copy()})
    with pytest.raises(InputError, match="rope_freqs"):
        GgufModel(tmp_path / "odd.gguf")


@pytest.mark.parametrize(
    ("family", "more", "words"),
    [
        ("llama", {"extra": {"llama.rope.scaling.type": "yarn"}}, "yarn"),
        ("llama", {"extra": {"llama.expert_count": 8}}, "mixture-of-experts"),
        ("llama", {"extra": {"llama.rope.dimension_count": 4}}, "part of the head"),
        ("llama", {"extra": {"llama.attention.sliding_window": 64}}, "sliding"),
        ("llama", {"extra": {"split.count": 3}}, "split"),
        ("qwen3", {"extra_tensors": {"blk.0.attn_q.bias": np.zeros(64, np.float32)}}, "unexpected tensor"),
        ("llama", {"extra_tensors": {"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}}, "unexpected tensor"),
    ],
)
def test_variants_that_we_do_not_compute(family: str, more: dict[str, Any], words: str, tmp_path: Path) -> None:
    written(tmp_path / "m.gguf", family, **more)
    with pytest.raises(InputError, match=words) as caught:
        GgufModel(tmp_path / "m.gguf")
    assert "m.gguf" in str(caught.value)


def test_linear_rope_and_the_other_end_tokens(tmp_path: Path) -> None:
    extra = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0, "tokenizer.ggml.eot_token_id": 5}
    written(tmp_path / "m.gguf", "llama", extra=extra)
    config = GgufModel(tmp_path / "m.gguf").config
    assert config.rope_scaling is not None
    assert (config.rope_scaling.kind, config.rope_scaling.factor) == ("linear", 4.0)
    assert config.eos_ids == (2, 5, 0)


def cut(content: bytes, where: str) -> bytes:
    if where == "empty":
        return b""
    if where == "magic":
        return b"XXXX" + content[4:]
    if where == "version":
        return content[:4] + b"\x63\0\0\0" + content[8:]
    if where == "counts":
        return content[:8] + b"\xff" * 16 + content[24:]
    return content[: int(len(content) * float(where))]


@pytest.mark.parametrize("where", ["empty", "magic", "version", "counts", "0.001", "0.2", "0.6", "0.999"])
def test_broken_files_are_one_line(where: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    written(path, "qwen2")
    path.write_bytes(cut(path.read_bytes(), where))
    with pytest.raises(InputError, match=r"m\.gguf: .*(corrupt|cannot be read)") as caught:
        GgufModel(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_an_unknown_architecture(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        GgufModel(tmp_path / "none.gguf")
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "mamba")
    writer.add_tensor("x", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InputError, match="mamba"):
        GgufModel(tmp_path / "m.gguf")


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    def quantise(name: str, array: np.ndarray) -> tuple[np.ndarray, Kind]:
        raw = random_blocks(Kind.Q8_0, *array.shape)
        if name == "model.layers.0.mlp.up_proj.weight":
            raw[5, 0:2] = [0xFF, 0x7F]  # a float16 NaN
        return raw, Kind.Q8_0

    write_gguf(tmp_path / "m.gguf", saved_model("qwen2", **WIDE), "qwen2", tokenizer_metadata(tiny_bpe()), quantise)
    with pytest.raises(InputError, match=r"model\.layers\.0\.mlp\.up_proj\.weight has values that are not finite"):
        dict(GgufModel(tmp_path / "m.gguf"))


# The expressions of llama.cpp's src/llama-vocab.cpp, applied one after the other to what the one before left.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_REST = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_CPP = {
    "gpt-2": [_GPT2],
    "smollm": [r"\p{N}", _GPT2],
    "qwen2": [f"{_CONTRACTIONS}|{_REST % ''}"],
    "llama-bpe": [f"{_CONTRACTIONS}|{_REST % '{1,3}'}"],
}
PIECES = ["a", "Bc", "é", "日本", "ß", "1", "23", "456", "٣", "½", "'s", "'LL", "'", " ", "  ", "\n", "\r\n", "\t"]
PIECES += ["\u00a0", "_", "(", "...", "🎉", "e\u0301", "def", "{}"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


def llama_cpp_pieces(text: str, pre: str) -> list[str]:
    parts = [text]
    for expression in LLAMA_CPP[pre]:
        split: list[str] = []
        for part in parts:
            at = 0
            for match in regex.finditer(expression, part):
                split += [part[at : match.start()], match.group()]
                at = match.end()
            split.append(part[at:])
        parts = [part for part in split if part]
    return parts


def tiny_tokenizer(pre: str, **keys: Any) -> Any:
    return tokenizer_from_gguf(tokenizer_metadata(tiny_bpe(), pre) | keys)


@pytest.mark.parametrize("pre", LLAMA_CPP)
def test_words_are_split_as_llama_cpp_does(pre: str) -> None:
    pre_tokenizer = tiny_tokenizer(pre).core.pre_tokenizer

    @settings(max_examples=300, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        pieces = [text[start:end] for _, (start, end) in pre_tokenizer.pre_tokenize_str(text)]
        assert pieces == llama_cpp_pieces(text, pre)

    check()


@pytest.mark.parametrize("pre", LLAMA_CPP)
def test_bytes_of_tokens_are_the_text(pre: str) -> None:
    tokenizer = tiny_tokenizer(pre, **{"tokenizer.ggml.add_bos_token": False})

    @settings(max_examples=200, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        expected = tokenizer.core.normalizer.normalize_str(text) if pre == "qwen2" else text
        assert b"".join(map(tokenizer.token_bytes, ids)) == expected.encode()
        assert tokenizer.decode(ids, skip_special=False) == expected

    check()


def test_the_tokenizer_that_was_written_comes_back() -> None:
    """The whole of it: trained, written as llama.cpp writes it, rebuilt; the same ids for any text."""
    texts = [
        "it's 12 o'clock",
        "def f(x):\n    return x1 + 23\n",
        "naïve café 日本語",
        "<|im_start|>user\nhi<|im_end|>",
    ]
    pre = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    original = trained_bpe(pre, texts * 5, 600)
    rebuilt = tokenizer_from_gguf(tokenizer_metadata(original, "smollm"))
    assert rebuilt.vocabulary == original.get_vocab()
    assert rebuilt.special_ids == {0, 1, 2}

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.sampled_from([*PIECES, "<|im_start|>", "it's", "return", "naïve"]), max_size=12).map("".join))
    def check(text: str) -> None:
        assert rebuilt.encode(text) == original.encode(text).ids

    check()


def test_added_tokens_padding_and_begin_token() -> None:
    metadata = tokenizer_metadata(tiny_bpe(), "llama-bpe")
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    metadata["tokenizer.ggml.tokens"] = [*tokens, "<tool>", "[PAD1]", "[PAD2]"]
    metadata["tokenizer.ggml.token_type"] = [*kinds, 4, 5, 5]
    tokenizer = tokenizer_from_gguf(metadata)
    tool = len(tokens)
    assert len(tokenizer.vocabulary) == tool + 1
    assert tokenizer.encode("<tool>") == [0, tool]  # Llama 3 begins with its begin token unless told otherwise
    assert tokenizer.encode("<tool>", add_special=False) == [tool]
    assert tokenizer.decode([0, tool]) == "<tool>"  # written by the user's template, so not skipped
    assert tokenizer.token_bytes(tool + 1) == b""
    assert tokenizer_from_gguf(metadata | {"tokenizer.ggml.add_bos_token": False}).encode("<tool>") == [tool]
    assert tokenizer_from_gguf(metadata | {"tokenizer.ggml.pre": "smollm"}).encode("<tool>") == [tool]


def change(key: str, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda metadata: metadata | {f"tokenizer.ggml.{key}": value}


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (change("model", "llama"), "llama is not supported"),
        (change("pre", "tekken"), "tekken"),
        (change("tokens", []), "missing"),
        (change("merges", ["no where"]), "merges do not fit"),
        (change("merges", ["nospace"]), "merges do not fit"),
    ],
)
def test_tokenizers_that_we_do_not_build(break_it: Callable[[dict[str, Any]], dict[str, Any]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tokenizer_from_gguf(break_it(tokenizer_metadata(tiny_bpe())))
