"""Boundaries of answers: by definition, on any split of any text into tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from betoken.answers.boundaries import Kind, boundaries, spread, text_positions
from betoken.errors import InputError

KINDS: tuple[Kind, ...] = ("sentence", "line", "step", "tokens")
texts = st.text(st.sampled_from('ab1.!? \n")\u00e9\u3002\u2026\U0001f327'), max_size=40)


@st.composite
def pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The bytes of a text, split anywhere, in the middle of characters too."""
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(data) - 1)), max_size=len(data))))
    bounds = [0, *(cut for cut in cuts if cut < len(data)), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds) if b > a]


@st.composite
def tokens(draw: st.DrawFn) -> list[bytes]:
    return draw(pieces(draw(texts).encode()))


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def brute(parts: Sequence[bytes], kind: Kind, every: int) -> list[int]:
    """Search by the definition: for each position, the first token end behind it where both sides are text."""
    text = b"".join(parts).decode()
    found = []
    if kind == "tokens":
        starts = range(every, len(parts), every)
    else:
        where = [len(text[:position].encode()) for position in text_positions(text, kind)]
        starts = [next(n for n in range(1, len(parts) + 1) if len(b"".join(parts[:n])) >= at) for at in where]
    for start in starts:
        for count in range(start, len(parts)):
            if is_text(b"".join(parts[:count])):
                found.append(count)
                break
    return sorted(set(found))


@given(tokens(), st.sampled_from(KINDS), st.integers(1, 5))
def test_the_first_token_end_at_or_after_the_position(parts: list[bytes], kind: Kind, every: int) -> None:
    assert boundaries(parts, kind, every=every, most=1000) == brute(parts, kind, every)


@given(tokens(), st.sampled_from(KINDS), st.integers(0, 6))
def test_at_most_n_of_them(parts: list[bytes], kind: Kind, most: int) -> None:
    every = boundaries(parts, kind, every=2, most=1000)
    some = boundaries(parts, kind, every=2, most=most)
    assert len(some) == min(most, len(every))
    assert set(some) <= set(every)
    assert some == sorted(set(some))


@given(st.integers(0, 60), st.integers(1, 60))
def test_spread_evenly(count: int, most: int) -> None:
    """Gaps between the ones that are taken, and to both ends, differ as little as whole numbers allow."""
    taken = spread(range(count), most)
    assert len(taken) == min(count, most)
    gaps = [b - a for a, b in itertools.pairwise(taken)]
    assert not gaps or max(gaps) - min(gaps) <= 1
    if len(taken) == most:
        assert abs(taken[0] - (count - 1 - taken[-1])) <= 1


@given(texts)
def test_every_kind_contains_the_coarser_one(text: str) -> None:
    assert set(text_positions(text, "step")) <= set(text_positions(text, "line"))
    assert set(text_positions(text, "line")) <= set(text_positions(text, "sentence"))


@pytest.mark.parametrize(
    ("text", "kind", "parts"),
    [
        ("One. Two! Three", "sentence", ["One.", " Two!", " Three"]),
        ('He said "no." Then left.', "sentence", ['He said "no."', " Then left."]),
        ("It is 3.5 m. So", "sentence", ["It is 3.5 m.", " So"]),
        ("1. First\n2. Second\n", "sentence", ["1. First\n", "2. Second\n"]),
        ("\u597d\u3002\u662f\u5417\uff1f\u662f", "sentence", ["\u597d\u3002", "\u662f\u5417\uff1f", "\u662f"]),
        ("The sum is 42. \n\nDone", "sentence", ["The sum is 42. \n\n", "Done"]),
        ("a\nb\n\nc", "line", ["a\n", "b\n\n", "c"]),
        ("a\nb\n\nc\n\n\nd", "step", ["a\nb\n\n", "c\n\n\n", "d"]),
        ("no end", "sentence", ["no end"]),
        ("", "line", [""]),
    ],
)
def test_what_is_a_boundary(text: str, kind: Kind, parts: list[str]) -> None:
    cuts = [0, *text_positions(text, kind), len(text)]  # type: ignore[arg-type]
    assert [text[a:b] for a, b in itertools.pairwise(cuts)] == parts


def test_bytes_that_are_no_text_do_not_stop_it() -> None:
    assert boundaries([b"a\xff", b".", b" b"], "sentence") == [2]


@pytest.mark.parametrize("wrong", [{"kind": "word"}, {"kind": "tokens", "every": 0}, {"kind": "line", "most": -1}])
def test_settings_that_cannot_be_used(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        boundaries([b"a"], **wrong)  # type: ignore[arg-type]
