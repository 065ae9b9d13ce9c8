"""MMLU: one letter of four, read from the text or from the logits before it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from betoken.bench.scorers.score import Score
from betoken.errors import InputError

if TYPE_CHECKING:
    from betoken.bench.subject import Codec

LETTERS = "ABCD"
LETTERS_ASKED = "Answer with the letter alone."
"""What a chat question ends with where the first token is the answer."""

_BOXED = re.compile(r"\\boxed\s*\{\s*(?:\\text(?:bf)?\s*\{)?\s*\(?([A-D])\b")
_STATED = re.compile(
    r"(?i:\b(?:answer|choice|option)\b\W{0,6}(?:(?:is|would be|should be|:)\W{0,8})"
    r"(?:(?:option|choice|letter)\W{0,4})?)([A-D])\b(?![ ]+[a-z]|['\u2019])"
)
_LINE = re.compile(r"^\W{0,6}([A-D])(?:[.):*]|\W*$)", re.MULTILINE)
_NAMED = re.compile(r"(?i:\b(?:option|choice|letter)\s*)\(?([A-D])\b")


class Letter:
    """Right if the letter that the text settles on is the reference's."""

    def score(self, row: Mapping[str, Any], answer: str) -> Score:
        """Compare the letters."""
        found, where = final_letter(answer)
        return Score(found == row["answer"], found, f"{where}; expected {row['answer']}")

    def close(self) -> None:
        """Holds nothing."""


def final_letter(text: str) -> tuple[str | None, str]:
    """The letter that an answer gives, and where it was found.

    The last boxed letter, else the last "answer is X", else a line that starts with a letter (if all such lines agree),
    else the last "option X".
    """
    for pattern, where in ((_BOXED, "boxed"), (_STATED, "stated as the answer")):
        if found := pattern.findall(text):
            return found[-1], where
    lines = set(_LINE.findall(text))
    if len(lines) == 1:
        return lines.pop(), "on a line of its own"
    if found := _NAMED.findall(text):
        return found[-1], "named as an option"
    return None, "several letters, none stated as the answer" if lines else "no letter in the answer"


def letter_ids(codec: Codec) -> list[list[int]]:
    """For each of A, B, C, D the token ids that write it: alone and after a space, as far as those are one token.

    Raises InputError if the tokenizer has no single token for a letter.
    """
    found = []
    for letter in LETTERS:
        written = [codec.encode(text, add_special=False) for text in (letter, f" {letter}")]
        own = sorted({ids[0] for ids in written if len(ids) == 1})
        if not own:
            raise InputError(f"the tokenizer has no single token for {letter}: score the letters by text")
        found.append(own)
    return found


def choose_letter(logits: NDArray[np.float32], ids: Sequence[Sequence[int]]) -> tuple[str, float]:
    """The letter with the highest logit at the first answer position, and its lead over the second.

    `logits` [V]; `ids`: of `letter_ids`. A letter counts with its best spelling; ties go to the first letter.
    """
    best = np.array([max(float(logits[one]) for one in own) for own in ids])
    order = np.argsort(-best, kind="stable")
    return LETTERS[order[0]], float(best[order[0]] - best[order[1]])
