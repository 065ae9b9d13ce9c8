"""A student's weights at auxiliary nodes: as two passes in transformers, and no trace of them at any other node."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import students
import tiny_models
from betoken.errors import BetokenError, InputError
from betoken.models.student import read_student
from betoken.models.target import TakesStudent
from betoken.tree import START_INPUT, RowTree, TokenTree
from students import INPUTS, one_branch, text_of, with_branches
from tiny_models import prefill

KINDS = [("llama", "lora"), ("llama", "full"), ("llama", "same"), ("qwen2", "lora"), ("qwen2", "full")]
KINDS += [("qwen3-head-dim-10", "full"), ("qwen3-head-dim-10", "lora"), ("llama-tied-one-kv-head", "full")]


@pytest.mark.parametrize(("family", "weights"), KINDS)
def test_branches_score_as_two_passes_in_transformers(tmp_path: Path, family: str, weights: str) -> None:
    """Rows of different lengths and branches in one batch; the texts' own nodes as without student, bit for bit."""
    both = tiny_models.pair(family)
    saved = students.save(tmp_path, family, weights, embedding="digits")
    texts = [text_of(9, 1), text_of(4, 2)]
    chains = [text_of(4, 3), text_of(2, 4)]
    grown = [with_branches(chain, INPUTS[: len(chain)]) for chain in chains]
    tree = TokenTree.stack([row for row, _ in grown])
    without = TokenTree.stack([RowTree.chain(chain[0], chain[1:]) for chain in chains])
    plain = both.decoder.new_cache()
    slots = [prefill(both.decoder, plain, text) for text in texts]
    expected = both.decoder.forward(without, plain, slots)
    both.decoder.attach(read_student(saved.folder))
    again = both.decoder.forward(without, plain, slots)
    np.testing.assert_array_equal(again.host, expected.host)
    scores = both.decoder.forward(tree, plain, slots, (0, both.decoder.num_layers))
    for b, (text, chain) in enumerate(zip(texts, chains, strict=True)):
        for node in range(len(chain)):
            np.testing.assert_allclose(scores.logits(b, node), expected.logits(b, node), atol=1e-5, rtol=1e-5)
        for depth, branch in enumerate(grown[b][1]):
            theirs = students.branch_logits(both.reference, saved, [*text, *chain[: depth + 1]], INPUTS[depth])
            ours = np.stack([scores.logits(b, node) for node in branch])
            np.testing.assert_allclose(ours, theirs.numpy(), atol=2e-4, rtol=2e-4)
        assert float(theirs.std()) > 0.3


@pytest.mark.parametrize("weights", ["lora", "full", "same"])
def test_base_nodes_are_bit_identical_with_and_without_a_student(tmp_path: Path, weights: str) -> None:
    """The same tree once with auxiliary probes, once with ordinary ones in their place: same shapes, same kernels."""
    decoder = tiny_models.pair("qwen2").decoder
    saved = students.save(tmp_path, "qwen2", weights)
    chain = text_of(4, 3)
    tree, _ = with_branches(chain, INPUTS)
    ordinary, _ = with_branches(chain, INPUTS)
    ordinary.inputs = [float("nan")] * len(ordinary)
    store = decoder.new_cache()
    slot = prefill(decoder, store, text_of(12, 5))
    expected = decoder.forward(TokenTree.stack([ordinary]), store, [slot])
    decoder.attach(read_student(saved.folder))
    scores = decoder.forward(TokenTree.stack([tree]), store, [slot])
    for node in range(len(tree)):
        same = bool(np.array_equal(scores.logits(0, node), expected.logits(0, node)))
        assert same is (node < len(chain))
    store.keep([slot], [[0, 1, 2, 3]])
    after = decoder.forward(TokenTree.stack([RowTree.under(7)]), store, [slot]).logits(0, 0)
    alone = tiny_models.pair("qwen2").decoder
    own = alone.new_cache()
    slot = prefill(alone, own, [*text_of(12, 5), *chain])
    np.testing.assert_allclose(
        after, alone.forward(TokenTree.stack([RowTree.under(7)]), own, [slot]).logits(0, 0), atol=1e-5
    )


@pytest.mark.parametrize("parts", [["self_attn.q_proj"], ["self_attn.v_proj", "mlp.up_proj"], ["mlp.down_proj"]])
def test_adapters_of_some_matrices(tmp_path: Path, parts: list[str]) -> None:
    both = tiny_models.pair("llama")
    saved = students.save(tmp_path, parts=parts)
    both.decoder.attach(read_student(saved.folder))
    text = text_of(8, 1)
    theirs = students.branch_logits(both.reference, saved, text, INPUTS[0])
    np.testing.assert_allclose(one_branch(both.decoder, text, INPUTS[0]), theirs, atol=2e-4, rtol=2e-4)


def test_an_independent_student_reads_its_start_vector_everywhere(tmp_path: Path) -> None:
    both = tiny_models.pair("llama")
    saved = students.save(tmp_path, objective="independent")
    both.decoder.attach(read_student(saved.folder))
    text = text_of(8, 1)
    theirs = students.branch_logits(both.reference, saved, text, [START_INPUT] * 3)
    np.testing.assert_allclose(one_branch(both.decoder, text, [START_INPUT] * 3), theirs, atol=2e-4, rtol=2e-4)


def test_only_targets_that_take_students_score_auxiliary_inputs(tmp_path: Path) -> None:
    decoder = tiny_models.pair("llama").decoder
    assert isinstance(decoder, TakesStudent)
    tree, _ = with_branches([1], [[0.5]])
    store = decoder.new_cache()
    with pytest.raises(BetokenError, match="no student"):
        decoder.forward(TokenTree.stack([tree]), store, [store.open()])


def test_a_student_of_another_model_is_refused(tmp_path: Path) -> None:
    target = tiny_models.pair("llama").decoder
    for weights in ("lora", "full"):
        other = students.save(tmp_path / weights, "llama-wide", weights)
        with pytest.raises(InputError, match="intermediate_size 300"):
            target.attach(read_student(other.folder))
    narrow = students.save(tmp_path / "kv", "llama-tied-one-kv-head", "full")  # the card's numbers agree
    with pytest.raises(InputError, match=r"k_proj\.weight of shape"):
        target.attach(read_student(narrow.folder))
    narrow = students.save(tmp_path / "kv-lora", "llama-tied-one-kv-head", "lora")
    with pytest.raises(InputError, match=r"k_proj\.weight, which is no matrix"):
        target.attach(read_student(narrow.folder))


def test_an_adapter_of_something_else_is_refused(tmp_path: Path) -> None:
    saved = students.save(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors |= {
        "base_model.model.model.embed_tokens.lora_A.weight": torch.zeros(2, 48),
        "base_model.model.model.embed_tokens.lora_B.weight": torch.zeros(97, 2),
    }
    save_file(tensors, path)
    with pytest.raises(InputError, match="embed_tokens"):
        tiny_models.pair("llama").decoder.attach(read_student(saved.folder))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"lora_alpha": None}, "lora_alpha must be a number, not None"),
        ({"lora_alpha": "6"}, "lora_alpha must be a number, not '6'"),
        (None, "adapter_config.json: the file is missing"),
    ],
)
def test_adapter_settings_that_cannot_be_used(tmp_path: Path, change: dict[str, object] | None, told: str) -> None:
    path = students.save(tmp_path).folder / "adapter_config.json"
    content = json.loads(path.read_text())
    path.unlink()
    if change is not None:
        path.write_text(json.dumps(content | change))
    with pytest.raises(InputError, match=told):
        read_student(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    path = students.save(tmp_path).folder / "adapter_model.safetensors"
    tensors = load_file(path)
    name = sorted(tensors)[0]
    tensors[name][0, 0] = value
    save_file(tensors, path)
    with pytest.raises(InputError, match="not finite"):
        read_student(tmp_path)
