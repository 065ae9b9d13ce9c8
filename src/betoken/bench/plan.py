"""What a benchmark measures, and in which order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from betoken.bench.subject import PLAIN, Method, ModelSpec, check_methods, check_temperature
from betoken.bench.suites import Question, find_counted, read_suite, stratified
from betoken.errors import InputError
from betoken.state import SamplingSettings, StopSettings


@dataclass(frozen=True)
class SuiteSpec:
    """A suite and how many questions of each of its categories are asked."""

    path: Path
    per_category: int

    @classmethod
    def parse(cls, text: str, per_category: int, data: Path | None = None) -> SuiteSpec:
        """`NAME`, `FILE`, `NAME:20`. Raises InputError if there is no such suite."""
        path, count = find_counted(text, data)
        return cls(path, per_category if count is None else count)


@dataclass(frozen=True)
class BenchSettings:
    """Everything that a result file is about: the same settings continue it, others need another file."""

    models: tuple[ModelSpec, ...]
    methods: tuple[Method, ...]
    """Plain decoding is measured besides."""
    suites: tuple[SuiteSpec, ...]
    temperatures: tuple[float, ...] = (0.0,)
    top_k: int = 0
    """Of the sampling law at each temperature, as is the next one."""
    top_p: float = 1.0
    batches: tuple[int, ...] = (1,)
    max_new_tokens: int = 128
    seed: int = 0
    repeats: int = 1
    """Alternated measurements of each question."""
    raw: bool = False

    def __post_init__(self) -> None:
        check_methods(self.methods)
        named = {
            "models": [spec.label for spec in self.models],
            "suites": [suite.path.stem for suite in self.suites],
            "temperatures": self.temperatures,
            "batches": self.batches,
        }
        for name, values in named.items():
            if not values or len(set(values)) < len(values):
                raise InputError(f"{name}: name at least one, and none twice")
        if min(self.batches) < 1 or self.repeats < 1:
            raise InputError("batch sizes and repeats must be at least 1")
        StopSettings(self.max_new_tokens)
        for temperature in self.temperatures:
            check_temperature(self.methods, temperature)
            self.sampling(temperature)

    def sampling(self, temperature: float) -> SamplingSettings:
        """How answers are sampled. Raises InputError for settings that cannot be."""
        return SamplingSettings(temperature=temperature, top_k=self.top_k, top_p=self.top_p, seed=self.seed)

    @property
    def all_methods(self) -> tuple[Method, ...]:
        """Plain decoding, then the others."""
        others = tuple(method for method in self.methods if method.label != PLAIN)
        return (Method.plain(), *others)

    def questions(self) -> list[Question]:
        """The seeded stratified sample of every suite."""
        return [
            question
            for suite in self.suites
            for question in stratified(read_suite(suite.path), suite.per_category, self.seed)
        ]

    def describe(self, questions: Sequence[Question]) -> dict[str, Any]:
        """The settings as JSON values, with a digest of the questions instead of where their files lie."""
        told = asdict(self)
        told["methods"] = [method.describe() for method in self.all_methods]
        told["suites"] = {suite.path.stem: suite.per_category for suite in self.suites}
        asked = "\n".join(f"{one.id}\t{one.category}\t{one.messages}\t{one.raw}" for one in questions)
        told["questions"] = len(questions)
        told["questions_sha256"] = hashlib.sha256(asked.encode()).hexdigest()
        return told


class Setting(NamedTuple):
    """One cell of the grid; every method is measured in each."""

    model: str
    temperature: float
    batch: int


class Trial(NamedTuple):
    """One measurement to make: some questions, decoded together by one method."""

    setting: Setting
    questions: tuple[Question, ...]
    repeat: int
    method: Method

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from all others of the run."""
        ids = tuple(question.id for question in self.questions)
        return (*self.setting, ids, self.repeat, self.method.label)


def plan(settings: BenchSettings, spec: ModelSpec, questions: Sequence[Question]) -> Iterator[Trial]:
    """The trials of one model in the order in which they are made.

    All methods follow each other on the same questions, so that a machine that slows down slows all of them. Who
    comes first goes round, from a start that the seed gives.
    """
    methods = settings.all_methods
    for temperature in settings.temperatures:
        for batch in settings.batches:
            setting = Setting(spec.label, temperature, batch)
            for repeat in range(settings.repeats):
                for index in range(0, len(questions), batch):
                    first = (settings.seed + repeat + index // batch) % len(methods)
                    for method in methods[first:] + methods[:first]:
                        yield Trial(setting, tuple(questions[index : index + batch]), repeat, method)
