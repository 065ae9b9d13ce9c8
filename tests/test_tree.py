"""Visibility and positions of random trees against a slow reference that follows parents one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from betoken.errors import InputError
from betoken.tree import WHOLE_CACHE, Role, RowTree, TokenTree


@st.composite
def row_trees(draw: st.DrawFn) -> RowTree:
    tree = RowTree.under(draw(st.integers(0, 9)))
    for _ in range(draw(st.integers(0, 10))):
        token = draw(st.integers(0, 9))
        if draw(st.integers(0, 3)) == 0:
            tree.root(token, anchor=draw(st.integers(-1, 12)), shift=draw(st.integers(-2, 2)))
            continue
        parent = draw(st.integers(0, len(tree) - 1))
        probe = tree.roles[parent] == Role.PROBE or draw(st.booleans())
        tree.add(token, parent, Role.PROBE if probe else Role.CANDIDATE, shift=draw(st.integers(-2, 2)))
    return tree


batches = st.lists(st.tuples(row_trees(), st.integers(0, 9)), min_size=1, max_size=3)


@given(batches)
def test_a_node_sees_its_anchor_its_ancestors_and_itself(batch: list[tuple[RowTree, int]]) -> None:
    tree = TokenTree.stack([row for row, _ in batch])
    lengths = np.array([length for _, length in batch])
    seen, positions = tree.visible_cache(lengths), tree.positions(lengths)
    for b, (row, length) in enumerate(batch):
        for node in range(len(row)):
            line = [node]
            while row.parents[line[-1]] >= 0:
                line.append(row.parents[line[-1]])
            root = line[-1]
            cached = length if row.anchors[root] == WHOLE_CACHE else min(row.anchors[root], length)
            assert seen[b, node] == cached
            assert np.flatnonzero(tree.ancestors[b, node]).tolist() == sorted(line)
            assert positions[b, node] == max(0, cached + len(line) - 1 + sum(row.shifts[n] for n in line))
            assert tree.depths[b, node] == len(line) - 1
            assert tree.roots[b, node] == root
            assert tree.path(b, node) == line[::-1]


@given(batches)
def test_padding_sees_nothing_and_is_no_child(batch: list[tuple[RowTree, int]]) -> None:
    tree = TokenTree.stack([row for row, _ in batch])
    assert tree.counts.tolist() == [len(row) for row, _ in batch]
    for b, (row, _) in enumerate(batch):
        assert not tree.ancestors[b, len(row) :].any()
        assert not tree.ancestors[b, :, len(row) :].any()
        assert not tree.wanted[b, len(row) :].any()
        children = [n for node in range(tree.width) for n in tree.children(b, node)]
        assert sorted(children) == [n for n in range(len(row)) if row.roles[n] == Role.CANDIDATE]


@given(row_trees(), st.integers(0, 9))
def test_child_is_the_first_candidate_with_the_token_never_a_probe(row: RowTree, token: int) -> None:
    tree = TokenTree.stack([row])
    for node in range(len(row)):
        fits = [
            n
            for n in range(len(row))
            if row.parents[n] == node and row.tokens[n] == token and row.roles[n] == Role.CANDIDATE
        ]
        expected = fits[0] if fits else None
        assert tree.child(0, node, token) == expected
        assert row.child(node, token) == expected


def test_a_chain_is_one_line_of_candidates() -> None:
    tree = TokenTree.stack([RowTree.chain(7, [1, 2], [0.5, 0.25])])
    assert tree.parents.tolist() == [[-1, 0, 1]]
    assert tree.roles.tolist() == [[Role.PENDING, Role.CANDIDATE, Role.CANDIDATE]]
    assert tree.confidence.tolist() == [[1.0, 0.5, 0.25]]
    assert tree.positions(np.array([4])).tolist() == [[4, 5, 6]]


def test_a_probe_with_shift_minus_one_stands_beside_its_parent_and_sees_it() -> None:
    """PTP's branch under the first draft: its nodes have the positions of the drafts from there on."""
    row = RowTree.chain(7, [1, 2])
    below = 1
    for q in range(3):
        below = row.add(0, below, Role.PROBE, u=0.5, shift=-1 if q == 0 else 0)
    tree = TokenTree.stack([row])
    assert tree.positions(np.array([4])).tolist() == [[4, 5, 6, 5, 6, 7]]
    assert np.flatnonzero(tree.ancestors[0, below]).tolist() == [0, 1, 3, 4, 5]


def test_there_is_no_child_of_a_node_that_does_not_exist() -> None:
    for parent in (1, -1):
        with pytest.raises(InputError, match="no parent"):
            RowTree.under(0).add(1, parent)
