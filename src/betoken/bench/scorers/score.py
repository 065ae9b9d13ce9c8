"""What a scorer says, and what every scorer is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Score:
    """Whether one answer is right."""

    correct: bool
    extracted: str | None
    """What was taken for the answer; None if nothing was found."""
    reason: str
    """Why it is right or wrong, in a few words."""


class Scorer(Protocol):
    """Judges answers to the questions of one suite."""

    def score(self, row: Mapping[str, Any], answer: str) -> Score:
        """Judge the text of an answer. `row`: the question as it stands in the suite's file."""

    def close(self) -> None:
        """Give processes back, if it holds any."""
