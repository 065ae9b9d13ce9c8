"""A small model writes a complete answer, the target judges it: cascade, and PARSE with its prefix step.

PARSE, parallel prefix verification (arXiv 2605.04263): a judge that rejects the whole answer reads every prefix of it
in one packed pass; the longest valid prefix is kept and the target writes the rest. A cascade keeps all or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from betoken.answers.boundaries import Kind, boundaries
from betoken.answers.desk import Desk
from betoken.answers.hearing import Hearing
from betoken.answers.judge import Judge
from betoken.answers.method import Event, Question, Writing
from betoken.errors import InputError


@dataclass(frozen=True)
class Cascade(Judge):
    """The whole draft if the judge is confident of it, else the target's own answer."""

    threshold: float = 0.5
    """The draft is accepted if the judge's confidence is above it."""
    chunk: int = 512
    """Most tokens of a judging forward pass."""
    name = "cascade"
    drafts = True

    def __post_init__(self) -> None:
        """Raises InputError for settings out of range."""
        super().__post_init__()
        _check_threshold(self.name, "threshold", self.threshold)
        if self.chunk < 1:
            raise InputError(f"{self.name}: chunk must be at least 1, not {self.chunk}")

    def write(self, question: Question) -> Writing:
        """Draft, judge, and where the judge wants it go on as the target."""
        desk = Desk(question, self.name)
        draft, finish = yield from desk.draft()
        if not draft:
            return (yield from desk.write([]))
        with Hearing(desk, self, draft, self.chunk) as hearing:
            kept = self.keep(hearing)
            desk.kept = kept
            text = desk.text(draft[:kept])
            yield Event("kept", text)
            if kept == len(draft):
                return desk.result(list(draft), text, finish)
            return (yield from desk.write(draft[:kept], hint=draft, slot=hearing.hand_over(kept)))

    def keep(self, hearing: Hearing) -> int:
        """How many tokens of the draft are kept: all or none."""
        return len(hearing.draft) if self.accepts(hearing) else 0

    def accepts(self, hearing: Hearing) -> bool:
        """Whether the judge is confident of the whole draft. What the context cannot hold is not accepted."""
        if not hearing.complete:
            return False
        [hearing.desk.confidence] = hearing.confidences([hearing.judged])
        return hearing.desk.confidence > self.threshold


@dataclass(frozen=True)
class Parse(Cascade):
    """The whole draft if the judge is confident of it, else its longest valid prefix, which the target continues."""

    boundaries: Kind = "sentence"
    """Where prefixes end: behind sentences, lines, steps (blank lines), or every so many tokens."""
    every: int = 32
    """Tokens between two boundaries of kind tokens."""
    most: int = 8
    """Most prefixes that are judged; where there are more, evenly spread ones."""
    prefix_threshold: float | None = None
    """A prefix is valid if the judge's confidence is above it; None is `threshold`."""
    rule: Literal["first-failure", "last-pass"] = "first-failure"
    """The prefix that is kept: the last before the first invalid one, or the last valid one."""
    passes: Literal["one", "two"] = "two"
    """Judge answer and prefixes in one pass, or prefixes only once the answer is rejected."""
    name = "parse"

    def __post_init__(self) -> None:
        """Raises InputError for settings out of range."""
        super().__post_init__()
        if self.prefix_threshold is not None:
            _check_threshold(self.name, "prefix_threshold", self.prefix_threshold)
        boundaries([], self.boundaries, every=self.every, most=self.most)

    def keep(self, hearing: Hearing) -> int:
        """How many tokens of the draft are kept."""
        codec = hearing.desk.target.tokenizer
        pieces = [codec.token_bytes(token) for token in hearing.draft]
        ends = boundaries(pieces, self.boundaries, every=self.every, most=self.most)
        ends = [end for end in ends if end <= hearing.judged]
        if self.passes == "two" or not hearing.complete:
            if self.accepts(hearing):
                return len(hearing.draft)
            found = hearing.confidences(ends) if ends else []
        else:
            *found, whole = hearing.confidences([*ends, hearing.judged])
            hearing.desk.confidence = whole
        hearing.desk.prefix_confidences = tuple(zip(ends, found, strict=True))
        if hearing.desk.confidence is not None and hearing.desk.confidence > self.threshold:
            return len(hearing.draft)
        return self.longest(ends, found)

    def longest(self, ends: Sequence[int], confidences: Sequence[float]) -> int:
        """The end of the longest valid prefix by the rule, 0 if there is none."""
        bound = self.threshold if self.prefix_threshold is None else self.prefix_threshold
        kept = 0
        for end, confidence in zip(ends, confidences, strict=True):
            if confidence > bound:
                kept = end
            elif self.rule == "first-failure":
                break
        return kept


def _check_threshold(method: str, name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise InputError(f"{method}: {name} must be at least 0 and at most 1, not {value:g}")
