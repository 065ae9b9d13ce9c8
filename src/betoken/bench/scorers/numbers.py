"""GSM8K: the final number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from betoken.bench.scorers.score import Score

# A minus adjoins its number, or it is a bullet; after a digit, letter or bracket it is an operator.
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = rf"(?<![\w)\].])[-\u2212]?(?:[$€£] ?)?(?<![\w.])(?:{_DIGITS})"
_LEAD = r"(?:\s|[*_$€£\\({\[=:≈~]|\\boxed|\\text|\\mathbf|USD|EUR)*"
_MARKED = re.compile(rf"####{_LEAD}([-\u2212]?[$€£]?(?:{_DIGITS}))")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_STATED = re.compile(r"answer\b[ *_]*(?:is|are|would be|=|:)([^\n]*)", re.IGNORECASE)
_SENTENCE = re.compile(r"[.!?](?:\s|$)")


class FinalNumber:
    """Right if the final number is the reference's, whatever its commas, currency, percent sign or trailing zeros.

    The final number is the one after the last ####, else in the last \\boxed, else after the last "answer is", else
    the last number of the text.
    """

    def score(self, row: Mapping[str, Any], answer: str) -> Score:
        """Compare by value."""
        expected = _value(row["answer"].rpartition("####")[2])
        found, where = final_number(answer)
        if found is None:
            return Score(False, None, "no number in the answer")
        right = expected is not None and _value(found) == expected
        return Score(right, found, f"{where}; expected {expected}")

    def close(self) -> None:
        """Holds nothing."""


def final_number(text: str) -> tuple[str | None, str]:
    """The final number as written, without sign decoration, and where it was found; None if there is none."""
    text = plain(text)
    if marked := _MARKED.findall(text):
        return _digits(marked[-1]), "after ####"
    for boxed in reversed(_BOXED.findall(text)):
        if inside := _numbers(boxed):
            return inside[-1], "boxed"
    for stated in reversed(_STATED.findall(text)):
        said = _SENTENCE.split(stated)[0]
        if numbers := _numbers(said.rpartition("=")[2]):
            return numbers[0], "stated as the answer"
    numbers = _numbers(text)
    return (numbers[-1], "last number") if numbers else (None, "no number")


def plain(text: str) -> str:
    """Without what LaTeX puts inside numbers: 1{,}234, 1,\\!234, \\$5, 5\\%."""
    for old, new in (("{,}", ","), ("\\!", ""), ("\\,", ""), ("\\$", "$"), ("\\%", "%")):
        text = text.replace(old, new)
    return text


def _numbers(text: str) -> list[str]:
    return [_digits(number) for number in re.findall(_NUMBER, text)]


def _digits(number: str) -> str:
    kept = "".join(one for one in number if one.isdigit() or one == ".")
    return f"-{kept}" if number.lstrip()[0] in "-\u2212" else kept


def _value(text: str) -> Decimal | None:
    numbers = _numbers(plain(text))
    return Decimal(numbers[0]) if numbers else None
