"""Where an answer may be cut: ends of sentences, lines, steps, or every k tokens.

Boundaries are text positions, so they mean the same to two models with different tokenizers. In tokens, a boundary is
the first token end at or after its text position; a token end inside a character is no position of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from betoken.errors import InputError

Kind = Literal["sentence", "line", "step", "tokens"]

_SPACED, _UNSPACED = ".!?\u2026", "\u3002\uff01\uff1f"
"""Marks that end a sentence before white space, and those (of Chinese and Japanese) that need none."""
_CLOSERS = "\"')\\]}*\u2019\u201d\u300d\u300f\uff09"
_NUMBERING = r"^[ \t]*\d+\.(?=[ \t])"
"""The number of a list item: no sentence."""
_PATTERNS = {
    "sentence": re.compile(
        rf"{_NUMBERING}|(?P<end>(?:[{_SPACED}]+[{_CLOSERS}]*(?=\s)|[{_UNSPACED}]+[{_CLOSERS}]*)(?:[ \t]*\n+)?|\n+)",
        re.MULTILINE,
    ),
    "line": re.compile(r"(?P<end>\n+)"),
    "step": re.compile(r"(?P<end>\n\n+)"),
}


def text_positions(text: str, kind: Literal["sentence", "line", "step"]) -> list[int]:
    """Positions in `text`, rising, each behind a sentence, line or step and before more text.

    Line breaks belong to what they end, and a line break ends a sentence too.
    """
    ends = (match.end("end") for match in _PATTERNS[kind].finditer(text) if match["end"] is not None)
    return [end for end in ends if end < len(text)]


def boundaries(pieces: Sequence[bytes], kind: Kind, *, every: int = 32, most: int = 8) -> list[int]:
    """Numbers of tokens after which an answer of T tokens may be cut, rising, each in 1..T-1, at most `most`.

    `pieces` [T]: the bytes that each token adds to the text. `every`: tokens between two boundaries of kind `tokens`.
    Where there are more than `most`, those are taken that are spread evenly among them. Raises InputError for an
    unknown kind or numbers out of range (`most` may be 0: no boundary).
    """
    if kind not in (*_PATTERNS, "tokens"):
        raise InputError(f"boundaries must be {', '.join(_PATTERNS)} or tokens, not {kind!r}")
    if every < 1 or most < 0:
        raise InputError(f"boundaries: every must be at least 1 and most at least 0, not {every} and {most}")
    cuts = _cuts(pieces)
    counts = [count for count, _ in cuts]
    if kind == "tokens":
        places = [bisect_left(counts, count) for count in range(every, len(pieces), every)]
    else:
        text = _decode(b"".join(pieces))
        begins = [0, *accumulate(len(_encode(character)) for character in text)]
        ends = [end for _, end in cuts]
        places = [bisect_left(ends, begins[position]) for position in text_positions(text, kind)]
    return spread([counts[place] for place in dict.fromkeys(places) if place < len(cuts)], most)


def _cuts(pieces: Sequence[bytes]) -> list[tuple[int, int]]:
    """Token ends that are positions within the text: tokens and bytes up to them. Bytes that are no UTF-8 are whole."""
    data = b"".join(pieces)
    characters = {0, *accumulate(len(_encode(character)) for character in _decode(data))}
    ends = enumerate(accumulate(map(len, pieces)), 1)
    return [(count, end) for count, end in ends if 0 < end < len(data) and end in characters]


def spread(ends: Sequence[int], most: int) -> list[int]:
    """At most `most` of the boundaries, evenly among them: the middle of each of `most` equal groups."""
    count = len(ends)
    if count <= most:
        return list(ends)
    return [ends[(2 * group + 1) * count // (2 * most)] for group in range(most)]


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
