"""The cache of keys and values against plain Python lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from betoken.errors import BetokenError
from betoken.models.cache import TorchCache

HEADS, WIDTH, LAYERS = 2, 3, 2
CPU = torch.device("cpu")


def new_cache() -> TorchCache:
    return TorchCache(LAYERS, CPU)


def forward(cache: TorchCache, slots: list[int], nodes: int, rng: np.random.Generator) -> torch.Tensor:
    """One pass that writes random keys [L, B, heads, N, width]; values are their negatives."""
    window = cache.begin(slots, nodes)
    keys = torch.from_numpy(rng.normal(size=(LAYERS, len(slots), HEADS, nodes, WIDTH)))
    for layer in range(LAYERS):
        cache.extend(layer, window, keys[layer], -keys[layer])
    return keys


def assert_holds(cache: TorchCache, slot: int, expected: list[torch.Tensor], rng: np.random.Generator) -> None:
    """A pass of one node sees the slot's positions, in order, in every layer."""
    window = cache.begin([slot], 1)
    new = torch.from_numpy(rng.normal(size=(LAYERS, 1, HEADS, 1, WIDTH)))
    for layer in range(LAYERS):
        keys, values = cache.extend(layer, window, new[layer], -new[layer])
        wanted = torch.stack([*(position[layer] for position in expected), new[layer, 0, :, 0]], dim=1)
        assert torch.equal(keys[0, :, : len(expected) + 1], wanted)
        assert torch.equal(values[0, :, : len(expected) + 1], -wanted)
    cache.keep([slot], [[]])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_history_of_a_slot_is_what_was_kept(data: st.DataObject) -> None:
    rng = np.random.default_rng(0)
    cache = new_cache()
    held: dict[int, list[torch.Tensor]] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["open", "pass", "pass", "pass", "truncate", "fork", "close"]))
        if action == "open" or not held:
            held[cache.open()] = []
            continue
        slot = data.draw(st.sampled_from(sorted(held)))
        length = data.draw(st.integers(0, len(held[slot])))
        if action == "pass":
            slots = data.draw(
                st.permutations(data.draw(st.lists(st.sampled_from(sorted(held)), min_size=1, unique=True)))
            )
            nodes = data.draw(st.integers(1, 70))
            keys = forward(cache, slots, nodes, rng)
            chosen = st.lists(st.integers(0, nodes - 1), unique=True).map(sorted)
            paths = [data.draw(chosen) for _ in slots]
            cache.keep(slots, paths)
            for b, (one, path) in enumerate(zip(slots, paths, strict=True)):
                held[one] = held[one] + [keys[:, b, :, node] for node in path]
        elif action == "truncate":
            cache.truncate(slot, length)
            held[slot] = held[slot][:length]
        elif action == "fork":
            held[cache.fork(slot, length)] = held[slot][:length]
        else:
            cache.close(slot)
            del held[slot]
    for slot, expected in held.items():
        assert cache.length(slot) == len(expected)
        assert_holds(cache, slot, expected, rng)


def test_columns_without_a_position_are_finite() -> None:
    cache, rng = new_cache(), np.random.default_rng(0)
    slots = [cache.open() for _ in range(3)]
    forward(cache, slots[:1], 100, rng)
    cache.keep(slots[:1], [range(100)])
    window = cache.begin(slots, 2)
    new = torch.ones(3, HEADS, 2, WIDTH, dtype=torch.float64)
    keys, values = cache.extend(0, window, new, new)
    assert keys.shape[2] == values.shape[2] == window.span >= 102
    assert torch.isfinite(keys).all()
    assert torch.isfinite(values).all()


def test_rows_side_by_side_are_read_without_a_copy() -> None:
    cache = new_cache()
    slots = [cache.open() for _ in range(3)]
    new = torch.ones(2, HEADS, 1, WIDTH)
    keys, _ = cache.extend(0, cache.begin(slots[1:], 1), new, new)
    again, _ = cache.extend(0, cache.begin(slots[1:], 1), new, new)
    assert keys.data_ptr() == again.data_ptr()


def test_misuse_is_an_error() -> None:
    cache, rng = new_cache(), np.random.default_rng(0)
    slot = cache.open()
    forward(cache, [slot], 3, rng)
    with pytest.raises(BetokenError, match="leaves the 3 nodes"):
        cache.keep([slot], [[0, 3]])
    forward(cache, [slot], 3, rng)
    cache.keep([slot], [[0, 1]])
    with pytest.raises(BetokenError, match="leaves the 0 nodes"):
        cache.keep([slot], [[0]])  # a pass can be kept once
    for wrong in (-1, 3):
        with pytest.raises(BetokenError, match="holds 2 positions"):
            cache.truncate(slot, wrong)
        with pytest.raises(BetokenError, match="holds 2 positions"):
            cache.fork(slot, wrong)
    with pytest.raises(BetokenError, match="only once"):
        cache.begin([slot, slot], 1)
    cache.close(slot)
    for act in (cache.length, cache.close):
        with pytest.raises(BetokenError, match="not open"):
            act(slot)
