"""Prompts on which no draft should pay: random words, and beginnings that come again and go on otherwise."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from betoken.bench.suites import Question
from betoken.errors import InputError

SUITE = "adversarial"
_FEWEST_WORDS, _LENGTH, _LINES = 50, 60, 12


def adversarial(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    """`count` seeded prompts from the words of `questions`, of two kinds in turn.

    `random-words`: words in random order. `false-repeats`: lines that all begin with the same words and end in
    different ones, so that whoever copies what followed last time is wrong. Raises InputError if the questions have
    too few different words.
    """
    words = sorted({word.lower() for one in questions for word in re.findall(r"[^\W\d_]{3,12}", one.raw)})
    if count and len(words) < _FEWEST_WORDS:
        raise InputError(f"the suites have {len(words)} different words: {_FEWEST_WORDS} are needed for random prompts")
    return [_question(words, index, random.Random(f"{seed}/{index}")) for index in range(count)]


def _question(words: Sequence[str], index: int, dice: random.Random) -> Question:
    category = ("random-words", "false-repeats")[index % 2]
    if category == "random-words":
        text = " ".join(dice.choices(words, k=_LENGTH))
    else:
        beginning = " ".join(dice.choices(words, k=4))
        text = "\n".join(f"{beginning} {' '.join(dice.choices(words, k=3))}" for _ in range(_LINES))
    return Question(f"{SUITE}/{category}-{index}", SUITE, category, ({"role": "user", "content": text},), text)
