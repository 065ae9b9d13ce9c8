"""Weights of safetensors folders, and every way such a folder can be broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from betoken.errors import InputError
from betoken.models.config import DecoderConfig
from betoken.models.save import write_model, write_safetensors
from betoken.models.weights import Weights
from model_files import FAMILIES, canonical_tensors, saved_model


def opened(folder: Path) -> Weights:
    return Weights(folder, DecoderConfig.from_folder(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved_model("qwen2").save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shard", ["1GB", "10KB"])
def test_every_tensor_of_every_family(family: str, shard: str, tmp_path: Path) -> None:
    model = saved_model(family)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "10KB")
    read = dict(opened(tmp_path))
    expected = canonical_tensors(model)
    assert list(read) == list(DecoderConfig.from_folder(tmp_path).tensor_shapes)
    assert read.keys() == expected.keys()
    assert all(torch.equal(read[name], expected[name]) for name in read)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_loads_what_write_model_writes(family: str, tmp_path: Path) -> None:
    model = saved_model(family)
    model.save_pretrained(tmp_path / "a")
    config = DecoderConfig.from_folder(tmp_path / "a")
    write_model(tmp_path / "b", config, canonical_tensors(model))
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b").eval()
    ids = torch.arange(20)[None] + 3
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)


def test_mixed_dtypes_survive(tmp_path: Path) -> None:
    tensors = {"half": torch.randn(3, 5).half(), "wide": torch.randn(7), "brain": torch.randn(1, 4).bfloat16()}
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    written: list[int] = []
    path = tmp_path / "x.safetensors"
    write_safetensors(path, shapes, {n: t.dtype for n, t in tensors.items()}, tensors.__getitem__, written.append)
    read = load_file(path)
    assert all(read[name].dtype == t.dtype and torch.equal(read[name], t) for name, t in tensors.items())
    assert sum(written) == 30 + 28 + 8
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert all(header[name]["data_offsets"][0] % t.itemsize == 0 for name, t in tensors.items())
    with pytest.raises(ValueError, match="half"):
        write_safetensors(path, shapes, dict.fromkeys(shapes, torch.float32), tensors.__getitem__)


def test_ignored_tensors(tmp_path: Path) -> None:
    model = saved_model("llama-tied")
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, tmp_path / "model.safetensors")
    assert len(dict(opened(tmp_path))) == len(canonical_tensors(model))


def rewritten(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors if tensor is None else tensors | {name: tensor}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("model.layers.1.self_attn.k_proj.bias", None, "missing"),
        ("lm_head.weight", None, "missing"),
        ("model.norm.weight", torch.ones(31), r"shape \[31\], the config says \[32\]"),
        ("model.layers.0.mlp.up_proj.weight", torch.ones(32, 48), "shape"),
        ("model.layers.2.mlp.up_proj.weight", torch.ones(48, 32), "unexpected"),
        ("model.layers.0.self_attn.q_norm.weight", torch.ones(8), "unexpected"),
        ("model.norm.weight", torch.ones(32, dtype=torch.int8), "I8"),
    ],
)
def test_a_wrong_tensor_is_named(folder: Path, name: str, tensor: torch.Tensor | None, words: str) -> None:
    rewritten(folder, name, tensor)
    with pytest.raises(InputError, match=words) as caught:
        opened(folder)
    assert name in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("keep", [0, 5, 100, -1, -1000])
def test_a_truncated_file_is_named(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"model\.safetensors: truncated or corrupt"):
        opened(folder)


def test_a_corrupt_header_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[20:40] = b"\xff" * 20
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"model\.safetensors: truncated or corrupt"):
        opened(folder)


def test_a_missing_or_lying_shard_is_named(tmp_path: Path) -> None:
    saved_model("llama").save_pretrained(tmp_path, max_shard_size="10KB")
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    good = dict(content["weight_map"])

    content["weight_map"] = good | {"model.norm.weight": good["model.embed_tokens.weight"]}
    index.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"model\.norm\.weight is missing"):
        opened(tmp_path)

    content["weight_map"] = good | {"model.norm.weight": "../model.safetensors"}
    index.write_text(json.dumps(content))
    with pytest.raises(InputError, match="same folder"):
        opened(tmp_path)

    index.write_text("{}")
    with pytest.raises(InputError, match="no weight_map"):
        opened(tmp_path)

    content["weight_map"] = good
    index.write_text(json.dumps(content))
    (tmp_path / good["model.norm.weight"]).unlink()
    with pytest.raises(InputError, match=f"{good['model.norm.weight']}: the file is missing"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("pytorch_model.bin", "betoken convert"),
        ("x.gguf", "name the GGUF file itself"),
        ("x.txt", "no model.safetensors"),
    ],
)
def test_folders_without_safetensors(folder: Path, file: str, words: str) -> None:
    (folder / "model.safetensors").rename(folder / file)
    with pytest.raises(InputError, match=words):
        opened(folder)
