"""Is a drafter ever slower than plain decoding? Many prompts, each drafter right beside plain decoding.

One measurement of half a second says little about 3%, so there are two rounds. First every prompt is decoded once by
every drafter. Plain decoding stands between two drafters and is shared by both, its neighbours in time:

    suffix plain ptd | lookahead plain prompt-lookup | ...       (the order goes round from prompt to prompt)

Where a drafter stays below the floor, plain decoding and it follow each other in pairs, and the median ratio counts.
Prompts that were fast at once are not repeated, so the share after the repeats is the better one for the drafter;
the report gives both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from betoken.bench.adversarial import adversarial
from betoken.bench.provenance import write_provenance
from betoken.bench.results import Progress, Record, ResultFile
from betoken.bench.runner import said_once, settled_heap, warm_up
from betoken.bench.subject import PLAIN, Loader, Method, ModelSpec, Subject, check_methods, check_temperature
from betoken.bench.suites import Question, draw, read_suite
from betoken.bench.trial import measure
from betoken.decode import Request
from betoken.errors import InputError
from betoken.state import SamplingSettings, StopSettings

KIND = "never-slower"
"""What the settings of a result file say that it is."""


@dataclass(frozen=True)
class FloorSettings:
    """What a result file is about: the same settings continue it, others need another file."""

    model: ModelSpec
    methods: tuple[Method, ...]
    """Plain decoding is measured besides."""
    suites: tuple[Path, ...]
    prompts: int = 200
    """Drawn evenly from all suites."""
    adversarial: int = 20
    """Prompts besides on which no draft should pay."""
    temperature: float = 0.0
    hot: float = 1.5
    """Temperature of the adversarial prompts."""
    max_new_tokens: int = 96
    floor: float = 0.97
    """Least speed, as a share of plain decoding's."""
    repeats: int = 5
    """Pairs in which a measurement below the floor is repeated."""
    seed: int = 0
    raw: bool = False

    def __post_init__(self) -> None:
        check_methods(self.methods)
        if all(method.label == PLAIN for method in self.methods):
            raise InputError("name a drafter that is not plain decoding")
        StopSettings(self.max_new_tokens)
        if not self.suites:
            raise InputError("suites: name at least one")
        if self.repeats < 1 or self.adversarial < 0 or not self.floor > 0:
            raise InputError("repeats must be at least 1, adversarial at least 0, the floor above 0")
        for temperature in (self.temperature, self.hot):
            check_temperature(self.methods, temperature)

    def cases(self) -> list[Case]:
        """The seeded draw and the adversarial prompts."""
        suites = [read_suite(path) for path in self.suites]
        drawn = draw(suites, self.prompts, self.seed)
        everything = [question for suite in suites for question in suite]
        return [Case(question, self.temperature) for question in drawn] + [
            Case(question, self.hot) for question in adversarial(everything, self.adversarial, self.seed)
        ]

    def describe(self, cases: Sequence[Case]) -> dict[str, Any]:
        """The settings as JSON values."""
        told = asdict(self)
        told["suites"] = [path.stem for path in self.suites]
        told["methods"] = [method.describe() for method in self.methods]
        told["questions"] = [case.question.id for case in cases]
        return {"kind": KIND} | told


class Case(NamedTuple):
    """A prompt and the temperature at which it is answered."""

    question: Question
    temperature: float


class Turn(NamedTuple):
    """Methods that decode one prompt right after each other, plain decoding among them. One record of the file."""

    case: Case
    round: int
    """0: the first measurement; 1 and on: the pairs of a repetition."""
    methods: tuple[Method, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from all others of the run."""
        return (self.case.question.id, self.round, tuple(sorted(method.label for method in self.methods)))


def run_floor(
    settings: FloorSettings, load: Loader, out: Path, progress: Progress = lambda done, total, what: None
) -> list[Record]:
    """Make every measurement that `out` does not hold yet; returns all its records.

    Raises InputError for a result file of other settings, and for what the loader or a drafter refuses.
    """
    cases = settings.cases()
    told = settings.describe(cases)
    with ResultFile(out, told) as results, said_once():
        done = {_key(record): record for record in results.records}
        runner = _Runner(settings, load, out, told)
        total = len(cases) * len(_neighbours(settings.methods, 0))

        def record_of(turn: Turn) -> Record:
            if turn.key not in done:
                again = f", pair {turn.round}" if turn.round else ""
                progress(len(done), total, f"{turn.case.question.id}{again}")
                done[turn.key] = runner.measured(turn)
                results.append(done[turn.key])
            return done[turn.key]

        for index, case in enumerate(cases):
            first = [record_of(Turn(case, 0, methods)) for methods in _neighbours(settings.methods, index)]
            again = list(_again(settings, case, index, first))
            total += len(again)
            for turn in again:
                record_of(turn)
        progress(len(done), total, "done")
        return results.records


def _neighbours(methods: Sequence[Method], index: int) -> list[tuple[Method, ...]]:
    """Each drafter beside plain decoding, in an order that goes round with the prompt's index."""
    own = [method for method in methods if method.label != PLAIN]
    start = index % len(own)
    turned = own[start:] + own[:start]
    pairs = [turned[at : at + 2] for at in range(0, len(turned), 2)]
    groups = [(pair[0], Method.plain(), *pair[1:]) for pair in pairs]
    return [group[::-1] for group in groups] if index // len(own) % 2 else groups


def _again(settings: FloorSettings, case: Case, index: int, first: Sequence[Record]) -> Iterator[Turn]:
    """The pairs in which drafters below the floor are repeated."""
    for record in first:
        for label, ratio in ratios(record).items():
            if ratio >= settings.floor:
                continue
            (method,) = [one for one in settings.methods if one.label == label]
            for number in range(1, settings.repeats + 1):
                pair = (Method.plain(), method) if (index + number) % 2 else (method, Method.plain())
                yield Turn(case, number, pair)


def ratios(record: Record) -> dict[str, float]:
    """Speed over plain decoding's of each drafter of a turn: tokens a second without prefill."""
    speeds = {run["method"]: run["tokens_per_s"] for run in record["runs"]}
    plain = speeds.pop(PLAIN)
    return {label: speed / plain for label, speed in speeds.items()}


class _Runner:
    """Measures turns; the model is loaded and warmed up for the first of them."""

    def __init__(self, settings: FloorSettings, load: Loader, out: Path, told: dict[str, Any]) -> None:
        self.settings, self.load, self.out, self.told = settings, load, out, told

    @cached_property
    def subject(self) -> Subject:
        """The model, ready to be measured."""
        settings = self.settings
        subject = self.load(settings.model.fit_for(settings.methods))
        write_provenance(self.out, self.told)
        methods, limit = [Method.plain(), *settings.methods], settings.max_new_tokens
        with settled_heap():
            for temperature in sorted({settings.temperature, settings.hot}):
                warm_up(subject, methods, SamplingSettings(temperature, seed=settings.seed), 1, limit, raw=settings.raw)
        return subject

    def measured(self, turn: Turn) -> Record:
        """The record of a turn."""
        settings, case = self.settings, turn.case
        request = Request(
            self.subject.prompt(case.question, raw=settings.raw),
            SamplingSettings(temperature=case.temperature, seed=settings.seed),
            StopSettings(max_new_tokens=settings.max_new_tokens),
        )
        with settled_heap():
            runs = [self._run(method, request) for method in turn.methods]
        return {
            "question": case.question.id,
            "category": case.question.category,
            "temperature": case.temperature,
            "round": turn.round,
            "prompt_tokens": len(request.prompt),
            "runs": runs,
        }

    def _run(self, method: Method, request: Request) -> Record:
        found = measure(method.decoder(self.subject), [request])
        (row,) = found.pop("rows")
        kept = ("tokens", "prefill_s", "decode_s", "outside_s", "tokens_per_s", "tokens_per_s_with_prefill")
        told = {name: row[name] for name in ("forwards", "nodes_per_forward", "sha256")}
        return {"method": method.label} | {name: found[name] for name in kept} | told


def _key(record: Record) -> tuple[object, ...]:
    """`Turn.key` of a record."""
    return (record["question"], record["round"], tuple(sorted(run["method"] for run in record["runs"])))
