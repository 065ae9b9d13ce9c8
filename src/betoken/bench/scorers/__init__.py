"""Is an answer right? One scorer for each suite that has a definite answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from betoken.bench.scorers.choices import LETTERS_ASKED, Letter, choose_letter, final_letter, letter_ids
from betoken.bench.scorers.code import HumanEval, Mbpp
from betoken.bench.scorers.maths import MathAnswer
from betoken.bench.scorers.numbers import FinalNumber, final_number
from betoken.bench.scorers.score import Score, Scorer

SCORERS: Mapping[str, Callable[[], Scorer]] = {
    "gsm8k": FinalNumber,
    "math500": MathAnswer,
    "mmlu": Letter,
    "humaneval": HumanEval,
    "mbpp": Mbpp,
}
"""Name of a suite's format -> its scorer."""

__all__ = ["LETTERS_ASKED", "SCORERS", "Score", "Scorer", "choose_letter", "final_letter", "final_number", "letter_ids"]
