"""The packed judge pass scores what separate plain requests score, whatever the chunks, and costs what it must."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from answer_worlds import Counting, native, pairs, plain_logits
from betoken.answers.packed import PackedPass
from betoken.models.native.isa import isa
from betoken.models.target import Target
from native_reference import logits_of, to_127_levels
from tiny_models import VOCAB, prefill, reference_logits

needs_kernels = pytest.mark.skipif(isa() == "none", reason="this processor has no native kernels")
token_lists = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6)


@st.composite
def judgements(draw: st.DrawFn) -> tuple[list[int], int, list[int], list[int], int]:
    """Text, how much of it is cached, ends of the prefixes, suffix, chunk."""
    text = draw(st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=30))
    ends = sorted(draw(st.sets(st.integers(1, len(text)), max_size=5)))
    return text, draw(st.integers(0, len(text))), ends, draw(token_lists), draw(st.integers(1, 40))


def packed(target: Target, case: tuple[list[int], int, list[int], list[int], int]) -> list[np.ndarray]:
    text, cached, ends, suffix, chunk = case
    cache = target.new_cache()
    slot = prefill(target, cache, text[:cached])
    work = PackedPass(target, cache, slot, suffix, chunk=chunk)
    logits = work.score(text, ends)
    assert cache.length(slot) == len(text)
    assert work.nodes == len(text) - cached + len(ends) * len(suffix)
    return logits


@needs_kernels
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_bit_identical_to_separate_requests(dtype: str) -> None:
    target = native("qwen2", dtype)

    @settings(max_examples=25, deadline=None)
    @given(judgements())
    def check(case: tuple[list[int], int, list[int], list[int], int]) -> None:
        text, _, ends, suffix, _ = case
        for end, logits in zip(ends, packed(target, case), strict=True):
            np.testing.assert_array_equal(logits, plain_logits(target, text[:end] + suffix, prefill_chunk=7))

    check()


@needs_kernels
def test_every_bit_is_what_plain_numpy_computes() -> None:
    """The oracle here knows neither trees nor caches."""
    both = pairs("llama")
    text, suffix, ends = [5, 9, 60, 2, 77, 31, 8, 40, 3, 3, 12], [90, 4, 11], [1, 4, 9, 11]
    found = packed(native("llama", "int8"), (text, 2, ends, suffix, 8))
    for end, logits in zip(ends, found, strict=True):
        expected = logits_of(both.decoder.config, both.reference.state_dict(), to_127_levels, text[:end] + suffix)[-1]
        np.testing.assert_array_equal(logits, expected)


@settings(max_examples=10, deadline=None)
@given(judgements())
def test_float32_as_transformers_scores_the_text(case: tuple[list[int], int, list[int], list[int], int]) -> None:
    both = pairs("qwen2")
    text, _, ends, suffix, _ = case
    for end, logits in zip(ends, packed(both.decoder, case), strict=True):
        ids = text[:end] + suffix
        np.testing.assert_allclose(logits, reference_logits(both.reference, ids)[-1], atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(logits, plain_logits(both.decoder, ids), atol=1e-4, rtol=1e-4)


@settings(max_examples=8, deadline=None)
@given(judgements(), st.integers(1, 30))
def test_log_probabilities_of_the_text(case: tuple[list[int], int, list[int], list[int], int], first: int) -> None:
    both = pairs("qwen2")
    text, cached, ends, suffix, chunk = case
    first = min(first, len(text) - 1)
    cache = both.decoder.new_cache()
    slot = prefill(both.decoder, cache, text[: min(cached, first - 1)])
    _, found = PackedPass(both.decoder, cache, slot, suffix, chunk=chunk).score_with_text(text, ends, first)
    expected = torch.from_numpy(reference_logits(both.reference, text)).log_softmax(-1)
    wanted = [float(expected[place - 1, text[place]]) for place in range(first, len(text))]
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@needs_kernels
def test_one_forward_where_it_fits_and_logits_only_where_read() -> None:
    target = Counting(native("llama", "int8"))
    cache = target.new_cache()
    work = PackedPass(target, cache, cache.open(), [1, 2, 3], chunk=64)
    work.score(list(range(20)), [5, 11, 20])
    assert target.passes == [20 + 3 * 3]
    assert target.wanted == 3
    work.score(list(range(20)), [7, 20])  # the text is there already
    assert target.passes[1:] == [2 * 3]
    assert (work.forwards, work.nodes) == (2, 35)


@needs_kernels
def test_long_passes_are_chunked() -> None:
    target = Counting(native("llama", "int8"))
    cache = target.new_cache()
    PackedPass(target, cache, cache.open(), [1, 2, 3, 4], chunk=10).score(list(range(25)), [2, 9, 14, 25])
    assert max(target.passes) <= 10
    assert sum(target.passes) == 25 + 4 * 4
