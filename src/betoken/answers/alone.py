"""One model alone, in the same terms: what every other method is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from betoken.answers.desk import Desk
from betoken.answers.method import Event, Question, Writing


@dataclass(frozen=True)
class TargetAlone:
    """The target's own answer."""

    name = "target"
    drafts = False

    def write(self, question: Question) -> Writing:
        """Nothing is drafted."""
        return (yield from Desk(question, self.name).write([]))


@dataclass(frozen=True)
class DraftAlone:
    """The draft model's answer, which nobody judges."""

    name = "draft"
    drafts = True

    def write(self, question: Question) -> Writing:
        """The draft is the answer."""
        desk = Desk(question, self.name)
        draft, finish = yield from desk.draft()
        desk.kept = len(draft)
        text = desk.text(draft)
        yield Event("kept", text)
        return desk.result(list(draft), text, finish)
