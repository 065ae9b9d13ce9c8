"""Packed int8 weights: made once, whole or absent, made again when damaged or when the model changed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tiny_models
from betoken.errors import InputError
from betoken.models.config import DecoderConfig
from betoken.models.native import prepare
from betoken.models.native.image import read_image, write_image
from betoken.models.native.isa import isa
from betoken.models.native.prepare import prepared
from betoken.models.native.target import load_native
from betoken.models.save import write_model
from betoken.tree import RowTree, TokenTree

pytestmark = pytest.mark.skipif(isa() == "none", reason="this processor has no native kernels")


@pytest.fixture
def model(tmp_path: Path, smollm2: Path) -> tuple[Path, DecoderConfig]:
    """A tiny random model with SmolLM2's tokenizer, whose ids it does not know beyond its vocabulary."""
    config = tiny_models.FAMILIES["llama"]()
    config.vocab_size = DecoderConfig.from_folder(smollm2).vocab_size
    reference = tiny_models.random_model(config, 0)
    ours = DecoderConfig.from_hf(config.to_dict() | {"architectures": ["LlamaForCausalLM"]})
    folder = tmp_path / "tiny"
    write_model(folder, ours, {name: tensor.contiguous() for name, tensor in reference.state_dict().items()})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((smollm2 / name).read_bytes())
    return folder, ours


def files(cache: Path) -> set[str]:
    """What a user would find: not the locks."""
    return {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"}


def test_weights_are_packed_once_and_read_the_second_time(
    model: tuple[Path, DecoderConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config = model
    cache = tmp_path / "cache"
    first, embeddings = prepared(folder, config, "int8", cache)
    assert len(files(cache)) == 2
    monkeypatch.setattr(prepare, "_prepare", lambda *_: pytest.fail("packed again"))
    second, again = prepared(folder, config, "int8", cache)
    assert set(first) == set(second)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    np.testing.assert_array_equal(embeddings, again)


def test_a_tokenizer_of_another_model_is_said(tmp_path: Path, smollm2: Path) -> None:
    """Its ids have no row in the embeddings."""
    both = tiny_models.pair("llama")
    folder = tmp_path / "tiny"
    tensors = {name: tensor.contiguous() for name, tensor in both.reference.state_dict().items()}
    write_model(folder, both.decoder.config, tensors)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((smollm2 / name).read_bytes())
    with pytest.raises(InputError, match=r"names token \d+, but the model has 97: they do not belong together"):
        prepared(folder, both.decoder.config, "int8", tmp_path / "cache")
    assert not files(tmp_path / "cache")


def test_a_changed_model_is_packed_anew(model: tuple[Path, DecoderConfig], tmp_path: Path) -> None:
    folder, config = model
    prepared(folder, config, "int8", tmp_path / "cache")
    weights = folder / "model.safetensors"
    os.utime(weights, ns=(1, 1))
    prepared(folder, config, "int8", tmp_path / "cache")
    assert len(files(tmp_path / "cache")) == 4


def test_int4_weights_have_a_place_of_their_own(model: tuple[Path, DecoderConfig], tmp_path: Path) -> None:
    folder, config = model
    eight, _ = prepared(folder, config, "int8", tmp_path / "cache")
    four, _ = prepared(folder, config, "int4", tmp_path / "cache")
    assert len(files(tmp_path / "cache")) == 4
    assert {a.dtype for name, a in four.items() if name.endswith(".weight")} == {np.dtype(np.uint8)}
    again, _ = prepared(folder, config, "int8", tmp_path / "cache")
    assert all(np.array_equal(eight[name], again[name]) for name in eight)


@pytest.mark.parametrize("damage", ["truncated", "index", "embeddings"])
def test_damaged_weights_are_packed_again_with_one_line_that_says_so(
    model: tuple[Path, DecoderConfig], tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, config = model
    cache = tmp_path / "cache"
    expected, _ = prepared(folder, config, "int8", cache)
    image = next(cache.rglob("weights.image"))
    if damage == "truncated":
        image.write_bytes(image.read_bytes()[:-1000])
    elif damage == "index":
        data = bytearray(image.read_bytes())
        data[-40] ^= 0xFF
        image.write_bytes(data)
    else:
        image.with_name("embeddings.npy").write_bytes(b"not numpy")
    got, _ = prepared(folder, config, "int8", cache)
    assert all(np.array_equal(expected[name], got[name]) for name in expected)
    assert [record.message.count("\n") for record in caplog.records] == [0]
    assert "packing tiny again" in caplog.text


@pytest.mark.parametrize("stop", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_or_an_interrupt_leaves_nothing_behind(
    model: tuple[Path, DecoderConfig], tmp_path: Path, stop: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config = model
    cache = tmp_path / "cache"

    def failing(path: Path, arrays: Iterator[tuple[str, np.ndarray]]) -> None:
        path.write_bytes(b"half")
        next(iter(arrays))
        raise stop

    monkeypatch.setattr(prepare, "write_image", failing)
    with pytest.raises(InputError if isinstance(stop, OSError) else KeyboardInterrupt) as caught:
        prepared(folder, config, "int8", cache)
    if isinstance(stop, OSError):
        assert "disk is full" in str(caught.value)
    assert files(cache) == set()
    monkeypatch.undo()
    assert prepared(folder, config, "int8", cache)


def test_an_image_gives_back_what_was_written(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(7, dtype=np.int8),
        "b": np.zeros((2, 0, 3), dtype=np.float32),
        "c": np.arange(6, dtype=np.float32).reshape(2, 3),
    }
    write_image(tmp_path / "image", arrays.items())
    got = read_image(tmp_path / "image")
    assert {name: (a.dtype, a.shape) for name, a in got.items()} == {n: (a.dtype, a.shape) for n, a in arrays.items()}
    assert all(np.array_equal(got[name], arrays[name]) and got[name].ctypes.data % 64 == 0 for name in ("a", "c"))
    with pytest.raises(InputError, match="No such file"):
        read_image(tmp_path / "absent")


def test_the_packed_model_scores_close_to_float32(model: tuple[Path, DecoderConfig], tmp_path: Path) -> None:
    folder, config = model
    tree = TokenTree.stack([RowTree.chain(5, [6, 7, 8, 9, 10, 11, 12])])
    scores = []
    for dtype in ("int8", "int4", "float32"):
        target = load_native(folder, config, dtype, 1, tmp_path / "cache")
        store = target.new_cache()
        scores.append(target.forward(tree, store, [store.open()]).host)
    eight, four = (np.abs(rounded - scores[2]).mean() / scores[2].std() for rounded in scores[:2])
    assert 0 < eight < 0.1 and eight < four < 0.3
