"""Auxiliary branches: the tree, and two passes against one forward pass of transformers for each branch alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from betoken.models.batch import visible
from betoken.models.student import EmbeddingKind, Objective, UEmbedding, WeightKind
from betoken.training.draws import Purpose, batch_of, generator
from betoken.training.intervals import laws, picks
from betoken.training.model import StudentModel
from betoken.training.objectives import PLAIN, alive_nodes, input_vectors, inverse_autoregressive
from betoken.training.windows import Windows, cut_points, window_tree
from betoken.tree import Role, RowTree, TokenTree
from training_toys import tiny_base, tiny_student

CPU = torch.device("cpu")


def test_cut_points() -> None:
    first, lengths = np.array([1, 5, 1, 3]), np.array([20, 9, 3, 8])
    starts = cut_points(np.random.default_rng(0), first, lengths, 4, 5)
    assert sorted(set(starts[0])) == starts[0].tolist()  # distinct where there are enough
    assert starts[0].min() >= 1 and starts[0].max() <= 16
    assert (starts[1] == 5).all()  # only one window fits
    assert (starts[2] == 1).all()  # none fits: it is cut off
    assert set(starts[3]) <= {3, 4}
    many = cut_points(np.random.default_rng(1), first[:1].repeat(400), lengths[:1].repeat(400), 4, 5)
    assert sorted(set(many.flatten().tolist())) == list(range(1, 17))


def test_the_tree_is_the_one_a_drafter_would_grow() -> None:
    starts = np.array([[1, 4], [2, 2]])
    rows = []
    for cuts in starts:
        row = RowTree()
        nodes = [row.root(0, anchor=int(cut), shift=-1) for cut in cuts]
        for _ in range(2):
            nodes = [row.add(0, node, Role.PROBE) for node in nodes]
        rows.append(row)
    expected, found = TokenTree.stack(rows), window_tree(starts, 3)
    for name in ("tokens", "parents", "roles", "anchors", "shifts", "wanted"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    lengths = np.array([6, 6])
    windows = Windows.over(starts, 3, np.array([6, 5]), 6, CPU)
    np.testing.assert_array_equal(windows.mask[:, 0].numpy(), visible(expected, lengths, 12))
    assert windows.positions.tolist() == [[0, 3, 1, 4, 2, 5], [1, 1, 2, 2, 3, 3]]
    assert windows.index[0].tolist() == [[1, 4], [2, 5], [3, 5]]
    assert windows.inside[0].tolist() == [[True, True], [True, True], [True, False]]
    values = torch.arange(12).view(2, 6) * 10
    assert windows.of_text(values)[1].tolist() == [[80, 80], [90, 90], [100, 100]]


def alone(model: StudentModel, text: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """[n, V] logits of one branch by transformers' own cache and mask: the text by the base, then the branch."""
    base, positions = model.base.model, torch.arange(len(text))[None]
    with torch.no_grad():
        with model.gate():
            filled = base(input_ids=text[None], position_ids=positions, use_cache=True)
        cache = filled.cache if hasattr(filled, "cache") else filled.past_key_values
        assert isinstance(cache, transformers.DynamicCache)
        out = model.student.model(
            inputs_embeds=vectors[None],
            position_ids=torch.arange(len(vectors))[None] + len(text) - 1,
            **{model.base._cache_name: cache},
        )
    return out.logits[0]


@pytest.mark.parametrize("kind", ["lora", "full", "same"])
@pytest.mark.parametrize("objective", ["o-ptp", "c-ptp", "independent"])
def test_two_passes_equal_each_branch_alone(kind: WeightKind, objective: Objective, tmp_path: Path) -> None:
    base = tiny_base(tmp_path)
    base.model.double()
    embedding: EmbeddingKind = "none" if objective == "independent" else "digits"
    model = tiny_student(base, kind, embedding, start=objective != "o-ptp")
    numbers = np.random.default_rng(3)
    tokens = torch.from_numpy(numbers.integers(0, 258, (2, 20)))
    starts = np.array([[1, 7, 16], [2, 9, 9]])
    windows = Windows.over(starts, 4, np.array([20, 18]), 20, CPU)
    u = None if objective == "independent" else torch.from_numpy(numbers.random((2, 4, 3)))
    with torch.no_grad():
        text = model.read(tokens)
        vectors = input_vectors(model, objective, u, windows)
        found = model.student.head(model.branch(vectors, windows.mask, windows.positions, text.keys))
    shaped, inputs = found.view(2, 4, 3, -1), vectors.view(2, 4, 3, -1)
    for row in range(2):
        for cut in range(3):
            expected = alone(model, tokens[row, : starts[row, cut]], inputs[row, :, cut])
            torch.testing.assert_close(shaped[row, :, cut], expected, atol=1e-10, rtol=1e-10)
    if kind == "lora":  # the gate matters: with the adapter on, the text is another one
        hidden = model.base.read(tokens).hidden
        assert (hidden - text.hidden).abs().max() > 1e-3


def test_inverse_autoregression_draws_numbers_that_pick_the_text(tmp_path: Path) -> None:
    """The numbers come from one depth at a time with kept keys; a forward pass over all nodes must pick with them."""
    base = tiny_base(tmp_path)
    base.model.double()
    model = tiny_student(base, "same", "digits", disturb=0.05)
    numbers = np.random.default_rng(4)
    tokens = torch.from_numpy(numbers.integers(0, 258, (2, 24)))
    windows = Windows.over(np.array([[1, 5, 9], [2, 8, 16]]), 6, np.array([24, 24]), 24, CPU)
    labels = windows.of_text(tokens)
    with torch.no_grad():
        text = model.read(tokens)
        u = inverse_autoregressive(model, text, windows, labels, torch.from_numpy(numbers.random(labels.shape)))
        vectors = input_vectors(model, "scratch", u, windows)
        states = model.branch(vectors, windows.mask, windows.positions, text.keys)
        logits = model.student.head(states).view(2, 6, 3, -1)
    assert torch.equal(picks(laws(logits[:, :-1], PLAIN), u[:, :-1]), labels[:, :-1])
    assert u[:, :-1].std() > 0.1


def test_what_nodes_read(tmp_path: Path) -> None:
    model = tiny_student(tiny_base(tmp_path), "same", "interpolated")
    windows = Windows.over(np.array([[1, 2]]), 3, np.array([9]), 9, CPU)
    u = torch.tensor([[[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]], dtype=torch.float64)
    assert model.embedding is not None
    own = model.embedding(u)
    o = input_vectors(model, "o-ptp", u, windows).view(1, 3, 2, -1)
    c = input_vectors(model, "c-ptp", u, windows).view(1, 3, 2, -1)
    i = input_vectors(model, "independent", None, windows).view(1, 3, 2, -1)
    assert torch.equal(o, own)
    assert torch.equal(c[:, 1:], own[:, :-1]) and torch.equal(c[0, 0, 1], model.start)
    assert (i == model.start).all()


def test_branches_end_at_impossible_tokens() -> None:
    possible = torch.tensor([True, True, False, True]).view(1, 4, 1)
    assert alive_nodes("o-ptp", possible).flatten().tolist() == [True, True, False, False]
    assert alive_nodes("c-ptp", possible).flatten().tolist() == [True, True, True, False]
    assert alive_nodes("independent", possible).all()


@pytest.mark.parametrize("kind", ["bits", "digits", "interpolated"])
def test_embeddings_read_numbers(kind: EmbeddingKind) -> None:
    embedding = UEmbedding(kind, 5)
    u = np.array([0.0, 0.25, 0.75, 0.1, 1.0 - 2.0**-53])
    found = embedding.features(torch.from_numpy(u)).numpy()
    if kind == "bits":
        words = u.astype(np.float32).view(np.uint32)
        expected = [[int(digit) for digit in f"{word:032b}"] for word in words]
    elif kind == "digits":
        expected = [[2 * int(digit) - 1 for digit in f"{int(value * 2**24):024b}"] for value in u]
    else:
        expected = [[np.interp(value, [0, 0.5, 1], row) for row in np.eye(3)] for value in u]
    np.testing.assert_allclose(found, expected, atol=1e-7)
    embedding.reset(torch.Generator().manual_seed(0), 0.5)
    expected_vectors = found @ embedding.weight.detach().numpy().T
    np.testing.assert_allclose(embedding(torch.from_numpy(u)).detach().numpy(), expected_vectors, atol=1e-6)


def test_numbers_of_training_are_a_function_of_their_key() -> None:
    one = generator(3, Purpose.WINDOWS, 5, 1).random(4)
    assert (one == generator(3, Purpose.WINDOWS, 5, 1).random(4)).all()
    for other in (
        generator(4, Purpose.WINDOWS, 5, 1),
        generator(3, Purpose.ORDER, 5, 1),
        generator(3, Purpose.WINDOWS, 5),
    ):
        assert (one != other.random(4)).all()
    epochs = np.concatenate([batch_of(0, 10, 4, n) for n in range(5)]).reshape(2, 10)
    assert [sorted(epoch) for epoch in epochs.tolist()] == [list(range(10))] * 2
    assert epochs[0].tolist() != epochs[1].tolist()
