"""From a folder to a target: which code computes it, and what is refused before anything is read."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import betoken
import tiny_models
from betoken.errors import InputError
from betoken.models import load
from betoken.models.decoder import TorchDecoder
from betoken.models.hf import HfTarget
from betoken.models.load import load_target
from betoken.models.tokenizer import byte_characters
from betoken.tree import RowTree, TokenTree


def with_tokenizer(folder: Path) -> Path:
    core = Tokenizer(models.BPE({character: n for n, character in enumerate(byte_characters().values())}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny_models.random_model(tiny_models.FAMILIES["qwen2"](), 0).save_pretrained(folder)
    return with_tokenizer(folder)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    config = hf.GPT2Config(n_embd=48, n_layer=2, n_head=4, n_positions=128, vocab_size=tiny_models.VOCAB)
    tiny_models.random_model(config, 0).save_pretrained(folder)
    return with_tokenizer(folder)


@pytest.mark.parametrize(("dtype", "backend"), [("float64", "auto"), ("float32", "torch"), ("bfloat16", "auto")])
def test_known_families_in_torch_score_as_transformers(llama: Path, dtype: str, backend: load.Backend) -> None:
    loaded = load_target(str(llama), dtype=dtype, backend=backend)
    assert isinstance(loaded.target, TorchDecoder)
    assert (loaded.target.dtype, loaded.target.exact, loaded.folder) == (dtype, False, llama)
    assert loaded.tokenizer.encode("ab") == [loaded.tokenizer.vocabulary["a"], loaded.tokenizer.vocabulary["b"]]
    cache = loaded.target.new_cache()
    tree = TokenTree.stack([RowTree.chain(3, [1, 4, 1, 5])])
    logits = loaded.target.forward(tree, cache, [cache.open()]).host
    reference = hf.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    expected = tiny_models.reference_logits(reference, [3, 1, 4, 1, 5])
    np.testing.assert_allclose(logits, expected, atol=0.3 if dtype == "bfloat16" else 1e-4)


def test_other_families_go_through_transformers(gpt2: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "betoken"):
        loaded = load_target(str(gpt2))
    assert isinstance(loaded.target, HfTarget)
    assert loaded.target.dtype == "float32"
    assert [record.message for record in caplog.records if record.name == "betoken"] == [
        f"{gpt2}: no int8 kernels for this model on this machine, so it runs in float32"
    ]


def test_a_machine_without_kernels_gets_float32_and_one_line(
    llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(load, "_native", lambda: None)
    with caplog.at_level(logging.WARNING, "betoken"):
        loaded = load_target(str(llama))
    assert isinstance(loaded.target, TorchDecoder)
    assert loaded.target.dtype == "float32"
    assert len(caplog.records) == 1
    with pytest.raises(InputError, match="int8"):
        load_target(str(llama), dtype="int8")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dtype": "int3"}, "unknown dtype 'int3'"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"device": "cuda:x"}, "unknown device"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"backend": "jax"}, "unknown backend 'jax'"),
        ({"backend": "torch", "dtype": "int8"}, "int8"),
        ({"backend": "torch", "dtype": "int4"}, "int4"),
        ({"backend": "native", "dtype": "bfloat16"}, "bfloat16"),
    ],
)
def test_bad_requests_are_one_line(llama: Path, options: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        load_target(str(llama), **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_dtypes_are_refused_before_a_model_is_looked_for() -> None:
    for options in ({"dtype": "int3"}, {"draft_dtype": "int3"}):
        with pytest.raises(InputError, match="unknown dtype 'int3'"):
            betoken.load("no-such-model", draft_model="nor-this", **options)  # type: ignore[arg-type]


def test_int8_of_another_family_is_refused(gpt2: Path) -> None:
    with pytest.raises(InputError, match="float32"):
        load_target(str(gpt2), dtype="int8")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_refused(llama: Path) -> None:
    with pytest.raises(InputError, match="no CUDA device"):
        load_target(str(llama), device="cuda", dtype="bfloat16")


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_a_model_that_does_not_fit_is_refused(
    model: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Path = request.getfixturevalue(model)
    for module in ("memory", "hf"):
        monkeypatch.setattr(f"betoken.models.{module}.available_bytes", lambda: 1 << 20)
    with pytest.raises(InputError, match="free"):
        load_target(str(folder), dtype="float32", backend="torch")


def test_transformers_is_imported_only_for_other_families(llama: Path) -> None:
    code = (
        "import sys; from betoken.models.load import load_target; "
        f"load_target({str(llama)!r}, dtype='float32', backend='torch'); "
        "sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
