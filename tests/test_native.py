"""The native target: equal to transformers in float32, and bit-identical to itself however a node is scored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numba as nb
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tiny_models
from betoken.errors import BetokenError
from betoken.models.config import DecoderConfig
from betoken.models.native import emit
from betoken.models.native.equalise import Equaliser
from betoken.models.native.image import in_memory
from betoken.models.native.isa import isa
from betoken.models.native.kernels import float_of_half
from betoken.models.native.model import layer_tensors, pack_model
from betoken.models.native.pack import pack_int8, to_int4
from betoken.models.native.target import NativeTarget, load_native
from betoken.models.target import Cache, Target
from betoken.tree import Role, RowTree, TokenTree
from native_reference import logits_of, to_127_levels
from tiny_models import FAMILIES, VOCAB, assert_scores, prefill, row_trees, texts

pytestmark = pytest.mark.skipif(isa() == "none", reason="this processor has no native kernels")
some = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
DTYPES = ["int8", "int4", "float32"]
pairs = cache(tiny_models.pair)


@cache
def native(family: str, dtype: str, threads: int = 2) -> NativeTarget:
    both = pairs(family)
    tensors = both.reference.state_dict()
    config = both.decoder.config
    arrays = in_memory(pack_model(tensors, config, dtype))
    embeddings = tensors["model.embed_tokens.weight"].to(torch.float32 if dtype == "float32" else torch.float16).numpy()
    return NativeTarget(config, arrays, embeddings, name=family, dtype=dtype, threads=threads)


def to_int4_levels(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the 4-bit weights of a matrix [N, K] stand for: integers, and the scale [N] of one."""
    levels, scale = to_int4(torch.from_numpy(matrix), torch.ones(matrix.shape[1]))
    return levels.numpy(), scale.numpy()


def plain(target: Target, text: Sequence[int]) -> np.ndarray:
    """[T, V] logits of plain decoding: one node at a time."""
    store = target.new_cache()
    slot = store.open()
    out = []
    for token in text:
        out.append(target.forward(TokenTree.stack([RowTree.under(token)]), store, [slot]).logits(0, 0))
        store.keep([slot], [[0]])
    return np.stack(out)


def text_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


def random_tree(nodes: int, rng: np.random.Generator) -> RowTree:
    tree = RowTree.under(int(rng.integers(VOCAB)))
    for _ in range(nodes - 1):
        tree.add(int(rng.integers(VOCAB)), int(rng.integers(max(0, len(tree) - 6), len(tree))))
    return tree


def path_tokens(tree: TokenTree, row: int, node: int) -> list[int]:
    return [int(tree.tokens[row, n]) for n in tree.path(row, node)]


@pytest.mark.parametrize("vnni", [False, True])
@pytest.mark.parametrize("rows", range(1, 9))
def test_int8_products_are_exact_integers_on_both_instruction_sets(rows: int, vnni: bool) -> None:
    if vnni and isa() != "vnni":
        pytest.skip("this processor has no AVX-512 VNNI")
    tile = emit.int8_tile(rows, vnni)

    @nb.njit
    def run(x, stride, w, quads, out):  # type: ignore[no-untyped-def]
        tile(x, stride, w, quads, out)

    rng = np.random.default_rng(rows)
    levels = rng.integers(-127, 128, (32, 80)).astype(np.float32)
    levels[:, 0] = 127  # so that the scale of a row is 1 and no value saturates unseen
    packed = pack_int8(torch.from_numpy(levels))
    weights = in_memory([("w", packed.weight)])["w"]
    x = rng.choice([-127, 127, 5, 0, -1], (rows, 80)).astype(np.int64)
    stored = (x + (128 if vnni else 0)).astype(np.uint8)
    out = np.zeros((rows, 32), dtype=np.int32)
    run(stored.ctypes.data, 80, weights.ctypes.data, 20, out.ctypes.data)
    shift = packed.shift if vnni else 0
    np.testing.assert_array_equal(out - shift, x @ levels.astype(np.int64).T)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "llama-wide", "qwen2", "qwen3-head-dim-10", "llama-tied-one-kv-head"])
def test_every_bit_is_what_plain_numpy_computes(family: str, dtype: str) -> None:
    both = pairs(family)
    text = text_of(70, 3)
    rounded = {"int8": to_127_levels, "int4": to_int4_levels, "float32": None}[dtype]
    expected = logits_of(both.decoder.config, both.reference.state_dict(), rounded, text)
    np.testing.assert_array_equal(plain(native(family, dtype, threads=1), text), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_scores_trees_as_transformers_scores_their_text(family: str) -> None:
    @some
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        rows = [data.draw(texts) for _ in range(data.draw(st.integers(1, 3)))]
        trees = [data.draw(row_trees(len(text))) for text in rows]
        assert_scores(pairs(family).reference, native(family, "float32"), rows, trees, 1e-4)

    check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nodes", [2, 7, 8, 9, 16, 33, 64])
@pytest.mark.parametrize("length", [0, 1, 15, 16, 63, 64, 130])
def test_a_tree_scores_bit_for_bit_as_one_node_at_a_time(nodes: int, length: int, dtype: str) -> None:
    target, alone = native("qwen2", dtype, 2), native("qwen2", dtype, 1)
    rng = np.random.default_rng(nodes * 1000 + length)
    text = text_of(length, length)
    store = target.new_cache()
    slot = prefill(target, store, text, chunk=31)
    tree = TokenTree.stack([random_tree(nodes, rng)])
    scores = target.forward(tree, store, [slot])
    for node in {0, nodes - 1, *rng.integers(0, nodes, 4).tolist()}:
        expected = plain(alone, text + path_tokens(tree, 0, node))[-1]
        np.testing.assert_array_equal(scores.logits(0, node), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [3, 15, 62, 64])
def test_shifted_probes_score_bit_for_bit_as_a_forward_pass_of_their_own(length: int, dtype: str) -> None:
    """Branches beside every draft of a chain, against the same branch as a root behind the committed draft."""
    target = native("qwen2", dtype)
    text, draft = text_of(length, 1), text_of(5, 2)
    store = target.new_cache()
    slot = prefill(target, store, text)
    tree = RowTree.chain(draft[0], draft[1:])
    branches = [[tree.add(9, depth, Role.PROBE, shift=-1)] for depth in range(len(draft))]
    for branch in branches:
        branch += [tree.add(11, branch[0], Role.PROBE)]
        branch += [tree.add(13, branch[1], Role.PROBE, shift=2)]
    scores = target.forward(TokenTree.stack([tree]), store, [slot])
    for depth, branch in enumerate(branches):
        own = target.new_cache()
        base = prefill(target, own, [*text, *draft[: depth + 1]], chunk=4)
        alone = RowTree.under(5)
        first = alone.root(9, shift=-1)
        alone.add(13, alone.add(11, first, Role.PROBE), Role.PROBE, shift=2)
        expected = target.forward(TokenTree.stack([alone]), own, [base])
        for node, at in zip(branch, range(first, first + 3), strict=True):
            np.testing.assert_array_equal(scores.logits(0, node), expected.logits(0, at))


@pytest.mark.parametrize("dtype", DTYPES)
def test_after_a_kept_branch_the_row_goes_on_bit_for_bit_as_if_decoded_plainly(dtype: str) -> None:
    target = native("llama", dtype)
    rng = np.random.default_rng(5)
    text = text_of(14)
    store = target.new_cache()
    slot = prefill(target, store, text)
    for _ in range(20):  # crosses blocks of 16 and a page of 64
        tree = TokenTree.stack([random_tree(13, rng)])
        scores = target.forward(tree, store, [slot])
        path = tree.path(0, int(rng.integers(6, 13)))
        np.testing.assert_array_equal(
            scores.logits(0, path[-1]), plain(target, text + path_tokens(tree, 0, path[-1]))[-1]
        )
        store.keep([slot], [path])
        text += path_tokens(tree, 0, path[-1])
    assert len(text) > 80


@pytest.mark.parametrize("dtype", DTYPES)
def test_prefill_in_any_pieces_gives_the_same_bits(dtype: str) -> None:
    target = native("llama", dtype)
    text = text_of(150, 9)
    expected = plain(target, [*text, 3])[-1]
    for chunk in (1, 5, 16, 64, 149, 150):
        store = target.new_cache()
        slot = prefill(target, store, text, chunk)
        got = target.forward(TokenTree.stack([RowTree.under(3)]), store, [slot]).logits(0, 0)
        np.testing.assert_array_equal(got, expected)


@some
@given(data=st.data())
def test_rows_of_a_ragged_batch_score_bit_for_bit_as_alone(data: st.DataObject) -> None:
    target = native("qwen3-head-dim-10", "int8")
    rows = [data.draw(texts) for _ in range(data.draw(st.integers(2, 5)))]
    trees = [data.draw(row_trees(len(text))) for text in rows]
    store = target.new_cache()
    slots = [prefill(target, store, text) for text in rows]
    together = target.forward(TokenTree.stack(trees), store, slots)
    for row, (text, tree) in enumerate(zip(rows, trees, strict=True)):
        own = target.new_cache()
        alone = target.forward(TokenTree.stack([tree]), own, [prefill(target, own, text, chunk=3)])
        for node in np.flatnonzero(tree.wanted):
            np.testing.assert_array_equal(together.logits(row, int(node)), alone.logits(0, int(node)))


@pytest.mark.parametrize("length", [0, 5, 63, 64, 65, 128, 200])
def test_forked_and_truncated_rows_go_on_as_if_decoded_alone(length: int) -> None:
    target = native("llama", "int8")
    text = text_of(200, 1)
    store = target.new_cache()
    first = prefill(target, store, text, 64)
    forked = store.fork(first, length)
    others = text_of(70, 2)
    for slot, more in ((forked, others), (first, text_of(70, 4))):
        if slot == first:
            store.truncate(first, length)
        assert store.length(slot) == length
        for token in more[:-1]:
            target.forward(TokenTree.stack([RowTree.under(token)]), store, [slot])
            store.keep([slot], [[0]])
        got = target.forward(TokenTree.stack([RowTree.under(more[-1])]), store, [slot]).logits(0, 0)
        np.testing.assert_array_equal(got, plain(target, text[:length] + more)[-1])


@pytest.mark.parametrize("length", [5, 63, 64, 70])
def test_a_forked_row_leaves_the_other_as_it_was(length: int) -> None:
    target = native("llama", "int8")
    text = text_of(75, 12)
    store = target.new_cache()
    first = prefill(target, store, text, 64)
    forked = store.fork(first, length)
    for token in text_of(12, 13):
        target.forward(TokenTree.stack([RowTree.under(token)]), store, [forked])
        store.keep([forked], [[0]])
    got = target.forward(TokenTree.stack([RowTree.under(7)]), store, [first]).logits(0, 0)
    np.testing.assert_array_equal(got, plain(target, [*text, 7])[-1])


def test_a_shared_page_is_copied_before_either_row_writes_to_it() -> None:
    target = native("llama", "int8")
    text = text_of(64, 8)
    store = target.new_cache()
    first = prefill(target, store, text, 64)
    second = store.fork(first, 64)
    store.truncate(second, 40)
    target.forward(TokenTree.stack([RowTree.chain(1, [2, 3])]), store, [second])
    store.keep([second], [[0, 1, 2]])
    got = target.forward(TokenTree.stack([RowTree.under(7)]), store, [first]).logits(0, 0)
    np.testing.assert_array_equal(got, plain(target, [*text, 7])[-1])


def test_a_page_that_another_row_reads_is_not_handed_out() -> None:
    target = native("llama", "int8")
    text = text_of(130, 6)
    store = target.new_cache()
    first = prefill(target, store, text, 64)
    store.close(store.fork(first, 128))
    store.truncate(store.fork(first, 128), 10)
    for turn in range(3):
        prefill(target, store, text_of(130, 20 + turn), 64)
    got = target.forward(TokenTree.stack([RowTree.under(7)]), store, [first]).logits(0, 0)
    np.testing.assert_array_equal(got, plain(target, [*text, 7])[-1])


def test_closed_slots_give_their_pages_back() -> None:
    target = native("llama", "int8")
    store = target.new_cache()
    held = 0
    for turn in range(20):
        slot = prefill(target, store, text_of(150, turn), 64)
        copy = store.fork(slot, 100)
        held = held or store.allocated_bytes
        store.close(slot)
        store.close(copy)
    assert store.allocated_bytes == held


def test_hidden_states_are_those_of_the_torch_decoder() -> None:
    both = pairs("qwen2")
    target = native("qwen2", "float32")
    tree = TokenTree.stack([RowTree.chain(5, [6, 7, 8]), RowTree.chain(9, [10])])

    def states(of: Target) -> dict[int, torch.Tensor]:
        store: Cache = of.new_cache()
        return dict(of.forward(tree, store, [store.open(), store.open()], (0, 2, 3)).hidden)

    ours, theirs = states(target), states(both.decoder)
    real = torch.from_numpy(tree.roles != 0)
    for layer in (0, 2, 3):
        torch.testing.assert_close(ours[layer][real], theirs[layer][real], atol=1e-4, rtol=1e-4)


def test_trees_that_cannot_be_scored_are_refused_and_leave_the_row_as_it_was() -> None:
    target = native("llama", "int8")
    text = text_of(20, 4)
    store = target.new_cache()
    slot = prefill(target, store, text)
    unknown, far, hidden = RowTree.chain(1, [VOCAB]), RowTree.under(1), RowTree.under(1)
    far.add(2, 0, shift=1 << 40)
    hidden.add(2, 0, Role.PROBE, u=0.5)
    for tree, told in ((unknown, "token id outside"), (far, "far beyond"), (hidden, "auxiliary inputs")):
        with pytest.raises(BetokenError, match=told):
            target.forward(TokenTree.stack([tree]), store, [slot])
    got = target.forward(TokenTree.stack([RowTree.under(7)]), store, [slot]).logits(0, 0)
    np.testing.assert_array_equal(got, plain(target, [*text, 7])[-1])


def test_every_finite_float16_becomes_its_float32() -> None:
    @nb.njit
    def widen(bits, out):  # type: ignore[no-untyped-def]
        for i in range(bits.size):
            out[i] = float_of_half(bits[i])

    halves = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    halves = halves[np.isfinite(halves.view(np.float16))]
    out = np.zeros(halves.size, dtype=np.float32)
    widen(halves, out)
    np.testing.assert_array_equal(out.view(np.int32), halves.view(np.float16).astype(np.float32).view(np.int32))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3-head-dim-10"])
def test_equalisation_changes_nothing_in_float32(family: str) -> None:
    both = pairs(family)
    tensors, config = both.reference.state_dict(), both.decoder.config
    tokens = torch.tensor(text_of(64)).view(2, 32)
    equalise = Equaliser(config, tensors["model.embed_tokens.weight"], tokens)
    changed = dict(tensors)
    attended = config.num_heads * config.head_dim
    inputs = {
        "qkv": config.hidden_size,
        "out": attended,
        "gate_up": config.hidden_size,
        "down": config.intermediate_size,
    }
    for number in range(config.num_layers):
        layer = layer_tensors(tensors, config, number)
        new, importance, scales = equalise(layer)
        assert {name: scale.shape[0] for name, scale in scales.items()} == inputs
        assert {name: h.shape[0] for name, h in importance.items()} == inputs and all(
            h.min() > 0 for h in importance.values()
        )
        assert any(not torch.equal(new[name], layer[name]) for name in layer)
        changed |= {f"model.layers.{number}.{name}": tensor for name, tensor in new.items()}
    arrays = in_memory(pack_model(changed, config, "float32"))
    embeddings = tensors["model.embed_tokens.weight"].numpy()
    target = NativeTarget(config, arrays, embeddings, name=family, dtype="float32", threads=1)
    text = text_of(20)
    np.testing.assert_allclose(plain(target, text), plain(native(family, "float32"), text), atol=2e-4, rtol=1e-4)


def test_the_real_smollm2_scores_trees_bit_for_bit(smollm2: Path) -> None:
    config = DecoderConfig.from_folder(smollm2)
    target = load_native(smollm2, config, "int8", 2)
    alone = load_native(smollm2, config, "int8", 1)
    rng = np.random.default_rng(0)
    text = rng.integers(0, config.vocab_size, 70).tolist()
    store = target.new_cache()
    slot = prefill(target, store, text, 64)
    tree = TokenTree.stack([random_tree(24, rng)])
    scores = target.forward(tree, store, [slot])
    own = alone.new_cache()
    base = prefill(alone, own, text, 9)
    for node in (0, 7, 23):
        tokens = path_tokens(tree, 0, node)
        branch = own.fork(base, len(text))
        for token in tokens:
            got = alone.forward(TokenTree.stack([RowTree.under(token)]), own, [branch])
            own.keep([branch], [[0]])
        np.testing.assert_array_equal(scores.logits(0, node), got.logits(0, 0))
