"""Students of low-rank changes on our own kernels: as two passes in transformers, whatever the weights' dtype."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import students
import tiny_models
from betoken.errors import BetokenError, InputError
from betoken.models.native.equalise import Equaliser
from betoken.models.native.image import in_memory
from betoken.models.native.isa import isa
from betoken.models.native.model import pack_model
from betoken.models.native.target import NativeTarget
from betoken.models.student import read_student
from betoken.models.target import TakesStudent
from betoken.tree import TokenTree
from students import INPUTS, branches_scored, one_branch, text_of, with_branches
from tiny_models import prefill

pytestmark = pytest.mark.skipif(isa() == "none", reason="this processor has no native kernels")

FAMILIES = ["llama", "qwen2", "qwen3-head-dim-10", "llama-tied-one-kv-head"]


def native(family: str, dtype: str, threads: int = 2, *, equalised: bool = False) -> NativeTarget:
    both = tiny_models.pair(family)
    tensors, config = both.reference.state_dict(), both.decoder.config
    embeddings = tensors["model.embed_tokens.weight"].to(torch.float32)
    equalise = Equaliser(config, embeddings, torch.tensor(text_of(64, 9)).view(2, 32)) if equalised else None
    arrays = in_memory(pack_model(tensors, config, dtype, equalise))
    return NativeTarget(config, arrays, embeddings.numpy(), name=family, dtype=dtype, threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("equalised", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_branches_score_as_two_passes_in_transformers(
    tmp_path: Path, family: str, equalised: bool, threads: int
) -> None:
    """Rows of different lengths, chains and branches in one batch; equalised layers get an equalised student."""
    saved = students.save(tmp_path, family, embedding="digits")
    reference, target = tiny_models.pair(family).reference, native(family, "float32", threads, equalised=equalised)
    target.attach(read_student(saved.folder))
    texts, chains = [text_of(9, 1), text_of(4, 2)], [text_of(4, 3), text_of(2, 4)]
    scored = branches_scored(target, texts, chains, [INPUTS[: len(chain)] for chain in chains])
    for text, chain, branches in zip(texts, chains, scored, strict=True):
        for depth, ours in enumerate(branches):
            theirs = students.branch_logits(reference, saved, [*text, *chain[: depth + 1]], INPUTS[depth])
            np.testing.assert_allclose(ours, theirs.numpy(), atol=5e-4, rtol=5e-4)


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
@pytest.mark.parametrize("weights", ["lora", "same"])
def test_no_trace_of_a_student_at_other_nodes(tmp_path: Path, dtype: str, weights: str) -> None:
    """Bit for bit, with the branches in the same pass or not; and the kept text is that of plain decoding."""
    target, alone = native("qwen2", dtype), native("qwen2", dtype)
    target.attach(read_student(students.save(tmp_path, "qwen2", weights).folder))
    text, chain = text_of(12, 5), text_of(4, 3)
    tree, _ = with_branches(chain, INPUTS)
    ordinary, _ = with_branches(chain, INPUTS)
    ordinary.inputs = [float("nan")] * len(ordinary)
    found, expected = [], []
    for one, grown, out in ((target, tree, found), (alone, ordinary, expected)):
        store = one.new_cache()
        slot = prefill(one, store, text)
        scores = one.forward(TokenTree.stack([grown]), store, [slot])
        out += [scores.logits(0, node) for node in range(len(grown))]
        store.keep([slot], [[0, 1, 2, 3]])
        chains, _ = with_branches([7, 8], [])
        scores = one.forward(TokenTree.stack([chains]), store, [slot])
        out += [scores.logits(0, node) for node in range(2)]
    for node, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert bool(np.array_equal(ours, theirs)) is not (len(chain) <= node < len(tree))


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
def test_a_branch_alone_has_the_bits_of_the_branch_in_a_batch(tmp_path: Path, dtype: str) -> None:
    """However many nodes, rows and threads: more than one tile of eight, and auxiliary nodes at any place of a tile."""
    saved = students.save(tmp_path, "llama")
    crowd, single = native("llama", dtype, 2), native("llama", dtype, 1)
    for one in (crowd, single):
        one.attach(read_student(saved.folder))
    texts, chains = [text_of(9, 1), text_of(70, 2), text_of(4, 3)], [text_of(4, 4), text_of(3, 5), text_of(1, 6)]
    scored = branches_scored(crowd, texts, chains, [INPUTS[: len(chain)] for chain in chains])
    for text, chain, branches in zip(texts, chains, scored, strict=True):
        for depth, together in enumerate(branches):
            alone = one_branch(single, [*text, *chain[: depth + 1]], INPUTS[depth])
            np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize(("dtype", "error"), [("int8", 0.05), ("int4", 0.4)])
def test_integer_weights_change_a_branch_about_as_they_change_text(tmp_path: Path, dtype: str, error: float) -> None:
    """Root mean square of the difference to float32, in standard deviations of the logits."""
    saved = students.save(tmp_path, "llama")
    text, found = text_of(20, 1), {}
    for kind in ("float32", dtype):
        target = native("llama", kind, equalised=kind != "float32")
        target.attach(read_student(saved.folder))
        tree, [branch] = with_branches(text[-1:], INPUTS[:1])
        store = target.new_cache()
        scores = target.forward(TokenTree.stack([tree]), store, [prefill(target, store, text[:-1])])
        found[kind] = [np.stack([scores.logits(0, n) for n in nodes]) for nodes in ([0], branch)]
    plain, drafted = (
        float((ours - theirs).std() / theirs.std()) for ours, theirs in zip(found[dtype], found["float32"], strict=True)
    )
    assert 0.0 < drafted < min(error, 3.0 * plain)


@pytest.mark.parametrize("parts", [["self_attn.q_proj"], ["self_attn.v_proj", "mlp.up_proj"], ["mlp.down_proj"]])
def test_adapters_of_some_matrices(tmp_path: Path, parts: list[str]) -> None:
    saved = students.save(tmp_path, parts=parts)
    target, text = native("llama", "float32", equalised=True), text_of(8, 1)
    target.attach(read_student(saved.folder))
    theirs = students.branch_logits(tiny_models.pair("llama").reference, saved, text, INPUTS[0])
    np.testing.assert_allclose(one_branch(target, text, INPUTS[0]), theirs, atol=5e-4, rtol=5e-4)


def test_another_student_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """Of fewer matrices and another seed; the room for the first one's passes is there already."""
    first, second = students.save(tmp_path / "a"), students.save(tmp_path / "b", parts=["mlp.up_proj"], seed=8)
    target, text, found = native("llama", "float32"), text_of(8, 1), []
    for saved in (first, second):
        target.attach(read_student(saved.folder))
        theirs = students.branch_logits(tiny_models.pair("llama").reference, saved, text, INPUTS[0])
        found.append(one_branch(target, text, INPUTS[0]))
        np.testing.assert_allclose(found[-1], theirs, atol=5e-4, rtol=5e-4)
    assert not np.allclose(*found, atol=1e-2)


def test_what_the_kernels_do_not_take_is_said(tmp_path: Path) -> None:
    target = native("llama", "int8")
    assert isinstance(target, TakesStudent)
    tree, _ = with_branches(text_of(1, 1), INPUTS[:1])
    store = target.new_cache()
    with pytest.raises(BetokenError, match="no student"):
        target.forward(TokenTree.stack([tree]), store, [store.open()])
    with pytest.raises(InputError, match="--dtype float32"):
        target.attach(read_student(students.save(tmp_path / "full", weights="full").folder))
    with pytest.raises(InputError, match="lm_head"):
        target.attach(read_student(students.save(tmp_path / "head", parts=["lm_head"]).folder))
    with pytest.raises(InputError, match="no matrix of this model"):
        target.attach(read_student(students.save(tmp_path / "other", "qwen3-head-dim-10").folder))
    tree, _ = with_branches(text_of(2, 1), [])
    target.forward(TokenTree.stack([tree]), store, [store.open()])
