"""Speculative Thinking (uservan/speculative_thinking): the target takes over where the draft model's text wavers.

Where a step ends, the draft model is let run on for a few tokens. If they hold a cue word, they are dropped and the
target writes in their place.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from betoken.answers.method import Event, Question, Writing
from betoken.answers.turns import seat, step_ends
from betoken.answers.writer import Part
from betoken.errors import InputError

Cue = Literal["negative", "verify", "positive", "none"]
_WORDS: dict[Cue, tuple[str, ...]] = {
    "verify": ("verify", "think again", "recap", "check"),
    "negative": ("wait", "alternatively", "hold on", "another"),
    "positive": ("yeah", "yes", "final answer", "confident"),
}
_PATTERNS = {cue: re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE) for cue, words in _WORDS.items()}
CHECK = "Let us check whether there are mistakes so far.\n"
"""What the target is made to begin with after too many doubts."""


def cue_of(text: str) -> Cue:
    """What a probe says; a word of verifying counts before one of doubt, and that before one of agreement."""
    for cue, pattern in _PATTERNS.items():
        if pattern.search(text):
            return cue
    return "none"


def never(text: str) -> bool:
    """A turn that only its number of tokens ends."""
    return False


@dataclass(frozen=True)
class SpeculativeThinking:
    """The draft model writes; at cue words the target writes the next tokens, and more after words of doubt."""

    probe: int = 20
    """Tokens of the draft model that are searched for cues behind each step."""
    takeover: int = 20
    """Tokens that the target writes at a cue."""
    verify: int = 125
    """Tokens more that it writes where the cue is a word of verifying."""
    check: int = 125
    """Tokens that it writes after `doubts` words of doubt; grows by `check_growth` each time, up to `check_most`."""
    check_growth: int = 25
    check_most: int = 200
    doubts: int = 15
    """Doubts that trigger a check; grows by `doubts_growth` each time, up to `doubts_most`."""
    doubts_growth: int = 5
    doubts_most: int = 30
    step_tokens: int = 256
    """Most tokens that the draft model writes without a probe."""
    name = "speculative-thinking"
    drafts = True

    def __post_init__(self) -> None:
        """Raises InputError for numbers below 1 (growths may be 0)."""
        for name in ("probe", "takeover", "verify", "check", "check_most", "doubts", "doubts_most", "step_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"speculative-thinking: {name} must be at least 1, not {getattr(self, name)}")
        if self.check_growth < 0 or self.doubts_growth < 0:
            raise InputError("speculative-thinking: check_growth and doubts_growth must be at least 0")

    def write(self, question: Question) -> Writing:
        """Turn by turn, until one model ends the answer."""
        doubts, trigger, check = 0, self.doubts, self.check
        with ExitStack() as stack:
            table = seat(question, self.name, stack)
            while table.finish is None:
                part = yield from table.draft.write(self.step_tokens, step_ends)
                step = table.in_target_tokens(part)[: table.target.room]
                table.desk.drafted += len(step)
                table.desk.kept += len(step)
                yield Event("kept", part.text)
                table.stands(step, part, table.draft)
                if table.finish is not None:
                    break
                probed = yield from table.draft.write(self.probe, never, show=False)
                cue = cue_of(probed.text)
                if cue == "none":
                    continue
                doubts += cue in ("negative", "verify")
                if doubts >= trigger:
                    opening = question.target.tokenizer.encode(CHECK, add_special=False)
                    yield Event("text", CHECK)
                    table.stands(opening, Part(opening, CHECK, False), table.target)
                    if table.finish is None:
                        yield from table.target_writes(check, never)
                    doubts, check = 0, min(self.check_most, check + self.check_growth)
                    trigger = min(self.doubts_most, trigger + self.doubts_growth)
                else:
                    yield from table.target_writes(self.takeover + (self.verify if cue == "verify" else 0), never)
            return table.result()
