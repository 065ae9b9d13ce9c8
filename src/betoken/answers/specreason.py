"""SpecReason (arXiv 2504.07891): the draft model writes steps; the target grades each and rewrites bad ones."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from betoken.answers.judge import Judge
from betoken.answers.method import Event, Question, Writing
from betoken.answers.packed import PackedPass
from betoken.answers.turns import Table, seat, step_ends
from betoken.errors import InputError
from betoken.models.tokenizer import Tokenizer

GRADE = "Grade the last step of this answer, which may be unfinished: one digit from 0 (useless) to 9 (right). Only it."


@dataclass(frozen=True)
class SpecReason:
    """The draft model writes steps; the target grades each with one token and writes those again that are below."""

    threshold: float = 7.0
    """Least grade, 0 to 9, of a step that stands."""
    score: Literal["greedy", "average"] = "greedy"
    """The most probable digit, or the expectation over the digits."""
    step_tokens: int = 256
    """Most tokens of a step."""
    instruction: str = ""
    """What the grader is asked; "" is a general question."""
    chunk: int = 512
    """Most tokens of a grading forward pass."""
    name = "specreason"
    drafts = True

    def __post_init__(self) -> None:
        """Raises InputError for settings out of range."""
        if not 0.0 <= self.threshold <= 9.0:
            raise InputError(f"specreason: threshold is a grade from 0 to 9, not {self.threshold:g}")
        if self.step_tokens < 1 or self.chunk < 1:
            raise InputError("specreason: step_tokens and chunk must be at least 1")

    def write(self, question: Question) -> Writing:
        """Step by step, until one model ends the answer."""
        judge = Judge(instruction=self.instruction or GRADE)
        suffix = judge.prompt(question.target.tokenizer, question.prompt, raw=question.raw).suffix
        digits = digit_tokens(question.target.tokenizer)
        with ExitStack() as stack:
            table = seat(question, self.name, stack)
            work = PackedPass(question.target.target, question.target.decoder.cache, -1, suffix, chunk=self.chunk)
            while table.finish is None:
                part = yield from table.draft.write(self.step_tokens, step_ends)
                step = table.in_target_tokens(part)[: table.target.room]
                if not step:
                    table.stands([], part, table.draft)
                    continue
                table.desk.drafted += len(step)
                if self._grade(table, work, step, digits) >= self.threshold:
                    table.desk.kept += len(step)
                    yield Event("kept", part.text)
                    table.stands(step, part, table.draft)
                    continue
                yield Event("kept", "")
                yield from table.target_writes(self.step_tokens, step_ends)
            return table.result()

    def _grade(self, table: Table, work: PackedPass, step: list[int], digits: list[list[int]]) -> float:
        """The target's grade of a step, whose keys and values stay; 0 of one that the context cannot hold."""
        began = perf_counter()
        text = [*table.target.prompt, *table.target.tokens, *step]
        if len(text) + len(work.suffix) > work.target.context:
            return 0.0
        work.slot = table.target.sync()
        before = work.nodes
        [logits] = work.score(text, [len(text)])
        fresh = len(text) - len(table.target.cached)
        table.target.cached = text
        grade = grade_of(logits, digits, self.score)
        desk = table.desk
        desk.judge_s += perf_counter() - began
        desk.judge_forwards = work.forwards
        desk.judge_nodes += len(step) + work.nodes - before - fresh
        desk.prefix_confidences += ((len(table.target.tokens) + len(step), grade / 9.0),)
        return grade


def digit_tokens(tokenizer: Tokenizer) -> list[list[int]]:
    """[10] tokens of each digit, with and without a space in front. Raises InputError where a digit has none."""
    found = []
    for digit in "0123456789":
        ids = {tuple(tokenizer.encode(ahead + digit, add_special=False)[-1:]) for ahead in ("", " ", "\n")}
        found.append(sorted(one[0] for one in ids if one))
    if not all(found) or len({token for ids in found for token in ids}) < 10:
        raise InputError("this tokenizer has no token for each digit, so the target cannot grade: use method parse")
    return found


def grade_of(logits: NDArray[np.float32], digits: list[list[int]], score: Literal["greedy", "average"]) -> float:
    """The grade 0 to 9 that logits [V] give."""
    values = np.array([np.logaddexp.reduce(logits[ids].astype(np.float64)) for ids in digits])
    if score == "greedy":
        return float(values.argmax())
    weights = np.exp(values - values.max())
    return float((weights * np.arange(10)).sum() / weights.sum())
