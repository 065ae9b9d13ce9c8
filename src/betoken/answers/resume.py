"""PARSE in rounds: the target writes up to the next boundary, then the draft model goes on and is judged again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from betoken.answers.boundaries import Kind, text_positions
from betoken.answers.hearing import Hearing
from betoken.answers.method import Event, Question, Writing
from betoken.answers.turns import Table, seat
from betoken.answers.writer import Part

if TYPE_CHECKING:
    from betoken.answers.parse import Parse


def write(method: Parse, question: Question) -> Writing:
    """Draft, judge, correct, and again, at most `rounds` times; then the target writes the rest."""
    with ExitStack() as stack:
        table = seat(question, method.name, stack)
        for turn in range(method.rounds + 1):
            table.desk.resumed = turn
            part = yield from table.draft.write(table.draft.room, _stops(question))
            draft = table.in_target_tokens(part)
            fitting = draft[: table.target.room]
            kept = (yield from _judged(method, table, fitting)) if fitting else 0
            text = _text(table, fitting[:kept])
            yield Event("kept", text)
            if kept == len(fitting) > 0:
                ended = part.ended and len(fitting) == len(draft)
                table.stands(fitting, Part(part.tokens, text, ended), table.draft)
                break
            table.stands(fitting[:kept], Part(fitting[:kept], text, False), table.target)
            if table.finish is not None:
                break
            table.target.hint = tuple(draft)
            last = turn == method.rounds
            most, enough = _until(method.boundaries, method.every, table.target.room, last=last)
            yield from table.target_writes(most, enough)
            if table.finish is not None:
                break
        return table.result()


def _judged(method: Parse, table: Table, draft: Sequence[int]) -> Generator[Event, None, int]:
    """How many tokens of a draft are kept, from the target's own cache where the layout allows."""
    writer, desk = table.target, table.desk
    plan = method.plan(desk, draft, answer=len(writer.tokens))
    desk.drafted += len(draft)
    slot = writer.sync() if plan.layout == "suffix" else None
    with Hearing(desk, method.judge(plan), draft, method.chunk, answer=tuple(writer.tokens), slot=slot) as hearing:
        kept = yield from method.keep(hearing, plan)
        if slot is not None:
            writer.cached = list(hearing.text)
    desk.kept += kept
    return kept


def _text(table: Table, tokens: Sequence[int]) -> str:
    """What tokens add to the answer's text; half a character comes with its other half."""
    stream = table.target.primed()
    return "".join([stream.push(token) for token in tokens])


def _stops(question: Question) -> Callable[[str], bool]:
    """Whether a draft holds one of the texts that end an answer."""
    stops = question.settings.ending.stop
    return lambda said: any(stop in said for stop in stops)


def _until(kind: Kind, every: int, room: int, *, last: bool) -> tuple[int, Callable[[str], bool]]:
    """Most tokens that the target writes, and when it stops before: behind the next boundary."""
    if last:
        return room, _never
    if kind == "tokens":
        return every, _never
    # A mark stands for the text that follows, so that a line that has just ended counts.
    return room, lambda said: bool(text_positions(said.lstrip("\n") + "x", kind))


def _never(text: str) -> bool:
    return False
