"""Two models that write one answer in turns: SpecReason and Speculative Thinking.

Both hand text from one model to the other where a step ends, at a blank line.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass, field

from betoken.answers.desk import Desk
from betoken.answers.method import AnswerResult, Event, Question
from betoken.answers.writer import Part, Writer
from betoken.state import FinishReason
from betoken.text import StopFilter


def step_ends(text: str) -> bool:
    """Whether a turn's text has come to a blank line; those it begins with belong to the step before."""
    return "\n\n" in text.lstrip("\n")


@dataclass
class Table:
    """Both writers at one desk."""

    desk: Desk
    draft: Writer
    target: Writer
    same: bool
    """Whether both models have the same tokens."""
    finish: FinishReason | None = None
    """How the answer ended; None while it goes on."""
    shown: StopFilter = field(init=False)

    def __post_init__(self) -> None:
        self.shown = StopFilter(self.desk.question.settings.ending.stop)

    def in_target_tokens(self, part: Part) -> list[int]:
        """A draft part in the target's tokens."""
        if self.same:
            return part.tokens
        return self.target.engine.tokenizer.encode(part.text, add_special=False)

    def stands(self, tokens: list[int], part: Part, by: Writer) -> None:
        """A part, in the target's tokens, continues the answer, which may end with it."""
        tokens = tokens[: self.target.room]
        self.target.take(tokens)
        if self.same:
            self.draft.take(tokens)
        elif by is self.draft:
            self.draft.take(part.tokens)
        else:
            self.draft.take(self.draft.engine.tokenizer.encode(part.text, add_special=False))
        self.shown.push(part.text)
        if self.shown.stopped or part.ended:
            self.finish = "stop"
        elif self.target.room == 0 or self.draft.room == 0:
            limit = self.desk.question.settings.max_new_tokens
            self.finish = "length" if len(self.target.tokens) >= limit else "context"

    def target_writes(self, most: int, enough: Callable[[str], bool]) -> Generator[Event, None, None]:
        """The target goes on for a turn, which stands."""
        part = yield from self.target.write(most, enough)
        self.stands(part.tokens, part, self.target)

    def result(self) -> AnswerResult:
        """The answer, cut before a stop text, and the account."""
        desk, text = self.desk, StopFilter(self.desk.question.settings.ending.stop)
        desk.draft_tokens, desk.draft_s = self.draft.written, self.draft.seconds
        desk.target_tokens, desk.target_s = self.target.written, self.target.seconds
        desk.target_forwards = self.target.forwards
        said = text.push(self.target.text()) + text.finish()
        return desk.result(list(self.target.tokens), said, self.finish)


def seat(question: Question, method: str, stack: ExitStack) -> Table:
    """A table for two, cleared when the stack ends. Raises InputError without a draft model."""
    desk = Desk(question, method)
    drafting = question.draft_here(method)
    same = drafting.tokenizer.vocabulary == question.target.tokenizer.vocabulary
    draft = stack.enter_context(Writer(drafting, question, "draft"))
    target = stack.enter_context(Writer(question.target, question, "text"))
    return Table(desk, draft, target, same)
