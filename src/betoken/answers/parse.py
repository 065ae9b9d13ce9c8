"""A small model writes a complete answer, the target judges it: cascade, and PARSE with its prefix step.

PARSE, parallel prefix verification (arXiv 2605.04263): a judge that rejects the whole answer reads every prefix of it
in one packed pass; the longest valid prefix is kept and the target writes the rest. A cascade keeps all or nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from betoken.answers import resume
from betoken.answers.boundaries import Kind, boundaries
from betoken.answers.calibration import JudgeCalibration, read_judge_calibration
from betoken.answers.desk import Desk
from betoken.answers.hearing import Hearing
from betoken.answers.judge import LAYOUTS, Judge
from betoken.answers.method import Event, Question, Writing, name_of
from betoken.answers.plan import MOST, UNKNOWN_MOST, UNKNOWN_PASSES, Passes, Plan, Rates, Sizes, cheapest
from betoken.errors import InputError


@dataclass(frozen=True)
class Cascade(Judge):
    """The whole draft if the judge is confident of it, else the target's own answer."""

    threshold: float = 0.5
    """The draft is accepted if the judge's confidence is above it."""
    chunk: int = 512
    """Most tokens of a judging forward pass."""
    accepts: float = 0.5
    """Share of drafts that are likely to be accepted whole: what is chosen by price goes by it."""
    config: str | None = None
    """A file of `betoken calibrate parse`, which gives the judge's settings; they must not be set besides."""
    calibration: JudgeCalibration | None = field(default=None, init=False, repr=False)
    """What the file holds."""
    name = "cascade"

    def __post_init__(self) -> None:
        """Raises InputError for settings out of range, and for a config that cannot be read or says otherwise."""
        if self.config is not None:
            self._take_over(read_judge_calibration(Path(self.config)))
        super().__post_init__()
        _check_share(self.name, "threshold", self.threshold)
        _check_share(self.name, "accepts", self.accepts)
        if self.chunk < 1:
            raise InputError(f"{self.name}: chunk must be at least 1, not {self.chunk}")

    def _take_over(self, found: JudgeCalibration) -> None:
        """Set the settings of a file on this instance, which nobody has seen yet."""
        if found.fallback is None and found.settings.get("instruction") == "":
            raise InputError(f"{self.config} does not hold the judge's question: run betoken calibrate parse again")
        object.__setattr__(self, "calibration", found)
        for one in fields(self):
            if one.name not in found.settings:
                continue
            given, frozen = getattr(self, one.name), found.settings[one.name]
            if given not in (one.default, frozen):
                raise InputError(
                    f"{self.name}: {one.name} {given} beside config, which says {frozen}: give one of the two"
                )
            object.__setattr__(self, one.name, frozen)

    @property
    def fallback(self) -> str | None:
        """Why the target answers alone."""
        return self.calibration.fallback if self.calibration is not None else None

    @property
    def drafts(self) -> bool:
        """Whether a draft is written at all."""
        return self.fallback is None

    def write(self, question: Question) -> Writing:
        """Draft, judge, and where the judge wants it go on as the target."""
        desk = Desk(question, self.name)
        desk.fallback = self.fallback
        self._check_models(question)
        if not self.drafts:
            return (yield from desk.write([]))
        draft, finish = yield from desk.draft()
        if not draft:
            return (yield from desk.write([]))
        plan = self.plan(desk, draft)
        with Hearing(desk, self.judge(plan), draft, self.chunk) as hearing:
            kept = yield from self.keep(hearing, plan)
            desk.kept = kept
            if kept == len(draft):
                yield Event("kept", text := desk.text(draft))
                return desk.result(list(draft), text, finish)
            yield Event("kept", desk.certain(draft[:kept]))
            return (yield from desk.write(draft[:kept], hint=draft, slot=hearing.hand_over(kept)))

    def keep(self, hearing: Hearing, plan: Plan) -> Generator[Event, None, int]:
        """How many tokens of the draft are kept: all or none."""
        return len(hearing.draft) if (yield from self.accepted(hearing)) else 0

    def accepted(self, hearing: Hearing) -> Generator[Event, None, bool]:
        """Whether the judge is confident of the whole draft. What the context cannot hold is not accepted."""
        if not hearing.complete:
            return False
        [confidence] = yield from hearing.confidences([hearing.judged])
        hearing.desk.confidence = confidence
        return confidence > self.threshold

    def judge(self, plan: Plan) -> Judge:
        """The judge that a plan asks for."""
        return Judge(**{one.name: getattr(self, one.name) for one in fields(Judge)} | {"layout": plan.layout})

    def plan(self, desk: Desk, draft: Sequence[int], answer: int = 0) -> Plan:
        """How to judge a draft behind `answer` tokens that stand: as set, and by price where auto is."""
        layouts = LAYOUTS if self.layout == "auto" else (self.layout,)
        passes, counts, ends = self._options(desk, draft)
        costs = desk.target.costs if len(layouts) * len(passes) * len(counts) > 1 else None
        if costs is None:
            passing = UNKNOWN_PASSES if UNKNOWN_PASSES in passes else passes[0]
            count = UNKNOWN_MOST if len(counts) > 1 else counts[0]
            plan = cheapest([Sizes(layouts[0], 0, 0)], [passing], [count], ends, len(draft), Rates(lambda nodes: 0.0))
            desk.plan = Plan(plan.layout, plan.passes, plan.ends)
        else:
            context = float(len(desk.prompt) + answer)
            rates = Rates(lambda nodes: costs.seconds(nodes, context), self.chunk, self.accepts)
            sizes = [self._sizes(desk, layout, answer) for layout in layouts]
            desk.plan = cheapest(sizes, passes, counts, ends, len(draft), rates)
        return desk.plan

    def _options(self, desk: Desk, draft: Sequence[int]) -> tuple[Sequence[Passes], Sequence[int], Sequence[int]]:
        """Passes, numbers of boundaries and boundaries to choose from."""
        return ("two",), (0,), ()

    def _sizes(self, desk: Desk, layout: Literal["suffix", "prompt"], answer: int) -> Sizes:
        question = desk.question
        asked = Judge(layout, self.instruction, self.correct, self.incorrect).prompt(
            desk.target.tokenizer, question.prompt, raw=question.raw
        )
        if layout == "suffix":
            return Sizes(layout, 0 if answer else len(asked.before), len(asked.suffix))
        again = 0 if answer else len(desk.prompt)  # behind an answer the target's own cache holds both
        return Sizes(layout, len(asked.before) + answer, len(asked.suffix), again)

    def _check_models(self, question: Question) -> None:
        """Raises InputError for models that the config is not for."""
        found = self.calibration
        if found is None:
            return
        target = question.target.target.name
        draft = name_of(question.draft) if question.draft is not None else found.draft
        if (target, draft) != (found.target, found.draft):
            raise InputError(
                f"{self.config}: made for {found.draft} judged by {found.target}, not for {draft} judged by {target}: "
                "run betoken calibrate parse on these two"
            )


@dataclass(frozen=True)
class Parse(Cascade):
    """The whole draft if the judge is confident of it, else its longest valid prefix, which the target continues."""

    boundaries: Kind = "sentence"
    """Where prefixes end: behind sentences, lines, steps (blank lines), or every so many tokens."""
    every: int = 32
    """Tokens between two boundaries of kind tokens."""
    most: int | Literal["auto"] = "auto"
    """Most prefixes that are judged; where there are more, evenly spread ones. auto: as many as pay."""
    prefix_threshold: float | None = None
    """A prefix is valid if the judge's confidence is above it; None is `threshold`."""
    rule: Literal["first-failure", "last-pass"] = "first-failure"
    """The prefix that is kept: the last before the first invalid one, or the last valid one."""
    passes: Passes | Literal["auto"] = "auto"
    """Judge answer and prefixes in one pass, or prefixes only once the answer is rejected. auto: the cheaper one."""
    rounds: int = 0
    """How often the draft model may go on after the target has written up to the next boundary."""
    name = "parse"

    def __post_init__(self) -> None:
        """Raises InputError for settings out of range."""
        super().__post_init__()
        if self.prefix_threshold is not None:
            _check_share(self.name, "prefix_threshold", self.prefix_threshold)
        if self.rounds < 0:
            raise InputError(f"{self.name}: rounds must be at least 0, not {self.rounds}")
        boundaries([], self.boundaries, every=self.every, most=MOST if self.most == "auto" else self.most)

    def write(self, question: Question) -> Writing:
        """As a cascade, or in rounds."""
        if self.rounds and self.drafts:
            self._check_models(question)
            return (yield from resume.write(self, question))
        return (yield from super().write(question))

    def keep(self, hearing: Hearing, plan: Plan) -> Generator[Event, None, int]:
        """How many tokens of the draft are kept."""
        desk, before = hearing.desk, len(hearing.answer)
        ends = [end for end in plan.ends if end <= hearing.judged]
        if plan.passes == "two" or not hearing.complete:
            if (yield from self.accepted(hearing)):
                return len(hearing.draft)
            found = (yield from hearing.confidences(ends)) if ends else []
        else:
            *found, whole = yield from hearing.confidences([*ends, hearing.judged])
            desk.confidence = whole
        desk.prefix_confidences += tuple((before + end, one) for end, one in zip(ends, found, strict=True))
        if hearing.complete and desk.confidence is not None and desk.confidence > self.threshold:
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

    def _options(self, desk: Desk, draft: Sequence[int]) -> tuple[Sequence[Passes], Sequence[int], Sequence[int]]:
        codec = desk.target.tokenizer
        pieces = [codec.token_bytes(token) for token in draft]
        most = MOST if self.most == "auto" else self.most
        ends = boundaries(pieces, self.boundaries, every=self.every, most=len(pieces))
        passes: Sequence[Passes] = ("two", "one") if self.passes == "auto" else (self.passes,)
        counts = range(min(most, len(ends)) + 1) if self.most == "auto" else (most,)
        return passes, counts, ends


def _check_share(method: str, name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise InputError(f"{method}: {name} must be at least 0 and at most 1, not {value:g}")
