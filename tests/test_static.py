"""Passes of fixed shape against ordinary ones: the same scores, from few recordings, whatever the padding holds.

Recordings are tapes here (tapes.py): as on a GPU, a replay runs no Python, so whatever a pass took from the host while
it was recorded would be out of date.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import students
import test_hf
import tiny_models
from betoken.decode import Decoder, Request
from betoken.drafters.prompt_lookup import PromptLookup
from betoken.errors import BetokenError, InputError
from betoken.models.batch import visible
from betoken.models.config import DecoderConfig
from betoken.models.decoder import TorchDecoder
from betoken.models.graphs import capture_for
from betoken.models.hf import HfTarget
from betoken.models.static import (
    MOST_NODES,
    MOST_PASSES,
    MOST_PLACES,
    Inputs,
    Shape,
    StaticCache,
    bucket,
    span_bucket,
)
from betoken.models.student import read_student
from betoken.models.target import Scores
from betoken.state import StopSettings
from betoken.tree import Role, RowTree, TokenTree
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Greedy
from tapes import Tapes
from tiny_models import LONG, LONG_CONFIGS, VOCAB, Asking, random_model

Target = TorchDecoder | HfTarget
CONFIGS: dict[str, Any] = LONG_CONFIGS | {
    "qwen2": lambda: transformers.Qwen2Config(**LONG | {"num_key_value_heads": 1}, tie_word_embeddings=True),
    "phi3": lambda: transformers.Phi3Config(**LONG, sliding_window=None),
}
OWN = ("llama", "qwen2")


def both(family: str, tapes: Tapes) -> tuple[Target, Target]:
    """The same model in ordinary passes and in passes of fixed shape."""
    model = random_model(CONFIGS[family](), 0)
    if family not in OWN:
        return HfTarget(model, name=family), HfTarget(model, name=family, capture=tapes)
    config = DecoderConfig.from_hf(model.config.to_dict() | {"architectures": [type(model).__name__]})
    made = [TorchDecoder(config, model.state_dict(), name=family, capture=capture) for capture in (None, tapes)]
    return made[0], made[1]


@dataclass
class Twins:
    """The same rows in two targets."""

    plain: Target
    static: Target
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    """A number -> slots."""
    made: int = 0

    def __post_init__(self) -> None:
        self.caches = self.plain.new_cache(), self.static.new_cache()

    def admit(self, text: Sequence[int]) -> int:
        slots = [
            tiny_models.prefill(target, cache, text, chunk=100)
            for target, cache in zip((self.plain, self.static), self.caches, strict=True)
        ]
        return self._named(slots)

    def fork(self, row: int, length: int) -> int:
        return self._named([cache.fork(slot, length) for cache, slot in zip(self.caches, self.rows[row], strict=True)])

    def close(self, row: int) -> None:
        for cache, slot in zip(self.caches, self.rows.pop(row), strict=True):
            cache.close(slot)

    def length(self, row: int) -> int:
        ours, theirs = (cache.length(slot) for cache, slot in zip(self.caches, self.rows[row], strict=True))
        assert ours == theirs
        return ours

    def score(self, rows: Sequence[int], trees: Sequence[RowTree], layers: Sequence[int] = ()) -> Scores:
        """One pass in both; raises where they differ."""
        tree = TokenTree.stack(trees)
        expected, found = (
            target.forward(tree, cache, [self.rows[row][at] for row in rows], layers)
            for at, (target, cache) in enumerate(zip((self.plain, self.static), self.caches, strict=True))
        )
        np.testing.assert_array_equal(found.index, expected.index)
        same(found.host, expected.host)
        for layer in layers:
            real = torch.from_numpy(tree.roles != Role.PADDING)
            same(found.hidden[layer][real].numpy(), expected.hidden[layer][real].numpy())
        return found

    def keep(self, rows: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        for at, cache in enumerate(self.caches):
            cache.keep([self.rows[row][at] for row in rows], paths)

    def _named(self, slots: Sequence[int]) -> int:
        self.made += 1
        self.rows[self.made] = slots[0], slots[1]
        return self.made


def same(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for the order of float32 sums."""
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(expected).max(initial=0))))


def text_of(rng: np.random.Generator, length: int) -> list[int]:
    return rng.integers(0, VOCAB, length).tolist()


def tree_of(rng: np.random.Generator, length: int, most: int = 12) -> RowTree:
    """Candidates and probes anywhere: other anchors, shifts, nodes that nobody wants."""
    tree = RowTree.under(int(rng.integers(VOCAB)))
    for _ in range(int(rng.integers(most))):
        token, wanted = int(rng.integers(VOCAB)), bool(rng.random() < 0.8)
        if rng.random() < 0.2:
            tree.root(token, anchor=int(rng.integers(-1, length + 1)), shift=int(rng.integers(-1, 3)), wanted=wanted)
        else:
            tree.add(token, int(rng.integers(len(tree))), shift=int(rng.integers(-1, 2)), wanted=wanted)
    return tree


@pytest.fixture
def tapes() -> Tapes:
    return Tapes()


@given(st.integers(1, 1 << 20))
def test_buckets_are_the_next_size(count: int) -> None:
    assert bucket(count) >= count > bucket(count) // 2
    assert bucket(bucket(count)) == bucket(count) and bucket(count).bit_count() == 1
    span = span_bucket(count)
    assert span >= count and span % 256 == 0 and span_bucket(span) == span
    assert count <= 512 or span <= 1.5 * count


def test_there_are_few_sizes() -> None:
    assert [bucket(n) for n in (1, 2, 3, 5, 8, 9)] == [1, 2, 4, 8, 8, 16]
    assert sorted({span_bucket(n) for n in range(1, 4097)}) == [256, 512, 768, 1024, 1536, 2048, 3072, 4096]


@pytest.mark.parametrize("family", CONFIGS)
def test_rows_that_come_grow_and_go_score_as_in_ordinary_passes(family: str, tapes: Tapes) -> None:
    """Any rows of any lengths in any order, forks, closed slots that serve again, spans and slots that are outgrown."""
    rng = np.random.default_rng(5)
    twins = Twins(*both(family, tapes))
    twins.admit(text_of(rng, 3))
    for step in range(60):
        chance, known = rng.random(), sorted(twins.rows)
        if chance < 0.2 and len(known) < 6:
            twins.admit(text_of(rng, int(rng.choice([1, 20, 200, 300]))))
        elif chance < 0.3:
            row = int(rng.choice(known))
            twins.fork(row, int(rng.integers(twins.length(row) + 1)))
        elif chance < 0.4 and len(known) > 1:
            twins.close(int(rng.choice(known)))
        rows = [row for row in rng.permutation(sorted(twins.rows)).tolist() if rng.random() < 0.6]
        rows = sorted(rows or [min(twins.rows)], reverse=step % 3 == 0)
        trees = [tree_of(rng, twins.length(row)) for row in rows]
        twins.score(rows, trees, [(), (0, 3), (2,)][step % 10 if step % 10 < 3 else 0])
        batch = TokenTree.stack(trees)
        twins.keep(rows, [batch.path(b, int(rng.integers(len(tree)))) for b, tree in enumerate(trees)])
    assert tapes.replayed > tapes.recorded > 3


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_every_pass_of_a_shape_scores_as_transformers_does(family: str, tapes: Tapes) -> None:
    """The first, the recorded and the replayed one, against plain text in transformers."""
    model = random_model(CONFIGS[family](), 0)
    _, static = both(family, tapes)

    @settings(max_examples=8, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        texts = data.draw(st.lists(tiny_models.texts, min_size=1, max_size=3))
        trees = [data.draw(tiny_models.row_trees(len(text))) for text in texts]
        cache = static.new_cache()
        slots = [tiny_models.prefill(static, cache, text) for text in texts]
        for _ in range(3):
            scores = static.forward(TokenTree.stack(trees), cache, slots)
            for row, (text, tree) in enumerate(zip(texts, trees, strict=True)):
                for node in np.flatnonzero(tree.wanted):
                    expected = tiny_models.node_reference(model, text, tree, node)
                    np.testing.assert_allclose(scores.logits(row, node), expected, atol=1e-4, rtol=1e-4)

    check()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)], ids=["side by side", "gathered"])
def test_what_the_padding_holds_tells_on_nothing(family: str, order: tuple[int, ...], tapes: Tapes) -> None:
    """Bit for bit: nan in slots that are nobody's and beyond the span, large numbers behind the nodes of each row."""
    rng = np.random.default_rng(1)
    _, static = both(family, tapes)
    cache = static.new_cache()
    assert isinstance(cache, StaticCache)
    for length in (5, 300, 40):
        tiny_models.prefill(static, cache, text_of(rng, length), chunk=100)
    lengths = [cache.length(slot) for slot in order]
    trees = TokenTree.stack([tree_of(rng, length) for length in lengths])
    assert bucket(trees.batch) > trees.batch and bucket(trees.width) > trees.width
    clean = [static.forward(trees, cache, order, (1,)) for _ in range(3)][-1]
    span = span_bucket(max(lengths) + bucket(trees.width))
    for layer in cache._layers.values():
        for stored in (layer.keys, layer.values):
            assert stored.shape[0] == 5
            stored[[0, 4]] = torch.nan
            stored[:, :, span:] = torch.nan
            for slot, length in zip(order, lengths, strict=True):
                stored[slot, :, length:span] = 1e4
    for known in cache._passes.values():
        known.inputs._numbers.fill_(3)
        known.inputs.ancestors.fill_(True)
    dirty = static.forward(trees, cache, order, (1,))
    np.testing.assert_array_equal(dirty.host, clean.host)
    real = torch.from_numpy(trees.roles != Role.PADDING)
    assert torch.equal(dirty.hidden[1][real], clean.hidden[1][real])


def test_padding_writes_to_nobodys_slot(tapes: Tapes) -> None:
    """A row that takes no part in a padded pass keeps its keys and values bit for bit."""
    rng = np.random.default_rng(2)
    _, static = both("llama", tapes)
    cache = static.new_cache()
    assert isinstance(cache, StaticCache)
    slots = [tiny_models.prefill(static, cache, text_of(rng, 9)) for _ in range(4)]
    before = [layer.keys[slots[3]].clone() for layer in cache._layers.values()]
    for _ in range(3):
        static.forward(TokenTree.stack([tree_of(rng, 9) for _ in range(3)]), cache, slots[:3])
    for layer, kept in zip(cache._layers.values(), before, strict=True):
        assert torch.equal(layer.keys[slots[3]], kept)


def test_scores_stay_when_the_next_pass_comes(tapes: Tapes) -> None:
    rng = np.random.default_rng(3)
    for family in ("llama", "gpt2"):
        _, static = both(family, tapes)
        cache = static.new_cache()
        slot = tiny_models.prefill(static, cache, text_of(rng, 9))
        trees = [TokenTree.stack([RowTree.chain(n, [n + 1, n + 2])]) for n in range(5)]
        found, copies = [], []
        for tree in trees:
            found.append(static.forward(tree, cache, [slot], (0, 3)))
            copies.append([found[-1].device_logits.clone(), *(found[-1].hidden[layer].clone() for layer in (0, 3))])
        for scores, copied in zip(found, copies, strict=True):
            for now, before in zip((scores.device_logits, scores.hidden[0], scores.hidden[3]), copied, strict=True):
                assert torch.equal(now, before)


def decoded(
    target: Target, prompts: Sequence[Sequence[int]], tokens: int, nodes: int
) -> tuple[Decoder, list[list[int]]]:
    drafter = PromptLookup()
    drafter.start(target)
    decoder = Decoder(target, drafter, Greedy(), FixedNodes(nodes))
    return decoder, answered(decoder, prompts, tokens)


def answered(decoder: Decoder, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    stop = StopSettings(max_new_tokens=tokens, ignore_eos=True)
    rows = [decoder.admit(Request(prompt, stop=stop)) for prompt in prompts]
    while any(row.finish_reason is None for row in rows):
        decoder.step()
    for row in rows:
        decoder.release(row)
    return [row.new_tokens for row in rows]


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_answers_are_those_of_ordinary_passes_and_recordings_are_few(family: str, tapes: Tapes) -> None:
    """Prompts longer than the buffer and shorter, texts that outgrow it, requests after requests."""
    rng = np.random.default_rng(4)
    plain, static = both(family, tapes)
    prompts = [text_of(rng, 700), text_of(rng, 4), text_of(rng, 240)]
    _, expected = decoded(plain, prompts, 40, 8)
    decoder, found = decoded(static, prompts, 40, 8)
    assert found == expected
    first = tapes.recorded
    assert first <= 3 * 4 * 6, "rows of 1, 2, 4; nodes of 1 to 8; spans up to 768 in either order of rows"
    for _ in range(2):  # a shape is recorded the second time it comes
        answered(decoder, prompts, 40)
    settled = tapes.recorded
    assert answered(decoder, prompts, 40) == expected
    assert tapes.recorded == settled, "the same requests again need no new recording"
    assert tapes.replayed > 4 * tapes.recorded


def test_the_number_of_recordings_has_a_limit(tapes: Tapes) -> None:
    rng = np.random.default_rng(6)
    twins = Twins(*both("llama", tapes))
    row = twins.admit(text_of(rng, 9))
    subsets = list(chain.from_iterable(combinations(range(4), size) for size in range(5)))
    assert len(subsets) * 7 > MOST_PASSES
    for layers in subsets:
        for nodes in (1, 2, 4, 8, 16, 32, 64):
            twins.score([row], [RowTree.chain(1, text_of(rng, nodes - 1))], layers)
    cache = twins.caches[1]
    assert isinstance(cache, StaticCache)
    assert len(cache._passes) == MOST_PASSES


def test_prefill_and_large_passes_are_ordinary(tapes: Tapes) -> None:
    rng = np.random.default_rng(7)
    twins = Twins(*both("llama", tapes))
    rows = [twins.admit(text_of(rng, 9)) for _ in range(9)]
    cache = twins.caches[1]
    assert isinstance(cache, StaticCache)
    cache._passes.clear()  # of prefill, whose helper wants logits
    before = tapes.recorded
    for _ in range(3):
        twins.score(rows[:1], [RowTree.chain(1, text_of(rng, MOST_NODES))])
        twins.score(rows, [RowTree.chain(1, text_of(rng, MOST_PLACES // 16))] * 9)
        unread = RowTree.chain(1, [2, 3])
        unread.wanted = [False] * 3
        twins.score(rows[:1], [unread])
    assert not cache._passes and tapes.recorded == before


def test_a_student_scores_beside_recorded_passes(tmp_path: Path, tapes: Tapes) -> None:
    pair = tiny_models.pair("llama")
    plain = pair.decoder
    static = TorchDecoder(plain.config, pair.reference.state_dict(), name="llama", capture=tapes)
    student = read_student(students.save(tmp_path).folder)
    plain.attach(student)
    static.attach(student)
    twins = Twins(plain, static)
    row = twins.admit([5, 6, 7])
    for step in range(4):
        tree = RowTree.chain(3 + step, [4, 5])
        twins.score([row], [tree])
        tree.add(0, 0, Role.PROBE, u=0.25, shift=-1)
        twins.score([row], [tree])
    assert tapes.replayed == 4, "the text and four drafts are of one shape"


def test_a_model_that_cannot_be_recorded_runs_in_ordinary_passes(tapes: Tapes) -> None:
    torch.manual_seed(0)
    model = Asking._from_config(CONFIGS["llama"](), attn_implementation="sdpa")
    twins = Twins(*(HfTarget(model, name="asking", capture=capture) for capture in (None, tapes)))
    row = twins.admit([5, 6, 7])
    for _ in range(4):
        twins.score([row], [RowTree.chain(3, [4, 5])])
    assert not tapes.usable and tapes.recorded == tapes.replayed == 0


@pytest.mark.parametrize("family", sorted(test_hf.FAMILIES))
def test_families_of_transformers_are_recorded(family: str, tapes: Tapes) -> None:
    rng, model = np.random.default_rng(9), random_model(test_hf.FAMILIES[family](), 0)
    twins = Twins(*(HfTarget(model, name=family, capture=capture) for capture in (None, tapes)))
    rows = [twins.admit(text_of(rng, length)) for length in (4, 30, 11)]
    for _ in range(4):
        twins.score(rows, [tree_of(rng, twins.length(row), 8) for row in rows], (1, 3))
    assert tapes.usable and tapes.recorded


def test_misuse_is_told_before_anything_is_computed(tapes: Tapes) -> None:
    _, static = both("llama", tapes)
    cache = static.new_cache()
    slot = cache.open()
    with pytest.raises(InputError, match="token id"):
        static.forward(TokenTree.bare([VOCAB]), cache, [slot])
    with pytest.raises(BetokenError, match="only once"):
        static.forward(TokenTree.bare([1, 2]), cache, [slot, slot])
    static.forward(TokenTree.stack([RowTree.chain(1, [2, 3])]), cache, [slot])
    with pytest.raises(BetokenError, match="leaves the 3 nodes"):
        cache.keep([slot], [[0, 3]])  # a node of padding


def test_a_cpu_records_nothing() -> None:
    assert capture_for("cpu") is None
    assert capture_for("cuda", wanted=False) is None


def test_the_mask_is_the_one_of_ordinary_passes() -> None:
    """Inputs on their own: what the device makes of the numbers, and that padding sees itself alone."""
    rng = np.random.default_rng(8)
    lengths = np.array([7, 0, 250])
    trees = TokenTree.stack([tree_of(rng, int(length), 6) for length in lengths])
    inputs = Inputs(Shape(4, 8, 512, True, ()), torch.device("cpu"))
    inputs.fill(trees, [1, 2, 3], lengths)
    mask = inputs.mask(torch.float32)[:, 0] == 0
    expected = visible(trees, lengths, 512)
    np.testing.assert_array_equal(mask[:3, : trees.width].numpy(), expected)
    padding = mask[:, trees.width :].sum(-1)
    assert (padding == 1).all() and (mask[3].sum(-1) == 1).all()
    np.testing.assert_array_equal(inputs.positions[:3, : trees.width].numpy(), trees.positions(lengths))
