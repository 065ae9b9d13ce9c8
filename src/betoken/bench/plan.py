"""What a benchmark measures, and in which order."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from betoken.bench.subject import PLAIN, Method, ModelSpec, check_methods
from betoken.bench.suites import Question, find_suite, read_suite, stratified
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
        name, colon, count = text.rpartition(":")
        if colon and count.isdigit():
            return cls(find_suite(name, data), int(count))
        return cls(find_suite(text, data), per_category)


@dataclass(frozen=True)
class BenchSettings:
    """Everything that a result file is about: the same settings continue it, others need another file."""

    models: tuple[ModelSpec, ...]
    methods: tuple[Method, ...]
    """Plain decoding is measured besides."""
    suites: tuple[SuiteSpec, ...]
    temperatures: tuple[float, ...] = (0.0,)
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
            SamplingSettings(temperature)
            if temperature and any(method.verifier == "greedy" for method in self.methods):
                raise InputError(f"verifier greedy decodes at temperature 0, not {temperature:g}; use replay")

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


@dataclass(frozen=True)
class _Toml:
    """The keys of a benchmark's TOML file; `model` and `drafter` are arrays of tables."""

    suites: list[str]
    model: list[dict[str, Any]]
    drafter: list[dict[str, Any]]
    data: str | None = None
    per_category: int = 10
    temperatures: list[float] = field(default_factory=lambda: [0.0])
    batches: list[int] = field(default_factory=lambda: [1])
    max_new_tokens: int = 128
    seed: int = 0
    repeats: int = 1
    raw: bool = False


def read_toml(path: Path) -> BenchSettings:
    """Settings from a TOML file. Raises InputError for one that is unreadable, and for unknown or missing keys.

    Paths are relative to the file's folder:

        suites = ["spec_bench", "humaneval:20"]
        per_category = 10
        [[model]]
        model = "smollm2-135m"
        [[drafter]]
        drafter = "suffix"
        nodes = 8
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: no valid TOML ({error})") from None
    toml: _Toml = _built(_Toml, found, str(path))
    data = path.parent / toml.data if toml.data is not None else None
    methods = []
    for table in toml.drafter:
        if "drafter" not in table:
            raise InputError(f"{path}: [[drafter]] must name a drafter")
        methods.append(_built(Method, {"label": table["drafter"]} | table, f"{path}: [[drafter]]"))
    return BenchSettings(
        models=tuple(_built(ModelSpec, table, f"{path}: [[model]]") for table in toml.model),
        methods=tuple(methods),
        suites=tuple(SuiteSpec.parse(name, toml.per_category, data) for name in toml.suites),
        temperatures=tuple(map(float, toml.temperatures)),
        batches=tuple(toml.batches),
        max_new_tokens=toml.max_new_tokens,
        seed=toml.seed,
        repeats=toml.repeats,
        raw=toml.raw,
    )


def _built(cls: type[Any], table: Mapping[str, Any], where: str) -> Any:
    """A dataclass from a table whose keys are its fields."""
    known = {item.name: item for item in fields(cls)}
    for key, value in table.items():
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}; known: {', '.join(known)}")
        if not _fits(value, str(known[key].type)):
            raise InputError(f"{where}: {key} must be {known[key].type}, not {value!r}")
    try:
        return cls(**table)
    except TypeError as error:
        raise InputError(f"{where}: {str(error).partition('() ')[2]}") from None


def _fits(value: object, annotation: str) -> bool:
    """Whether a TOML value has the type that a field's annotation says."""
    kinds: dict[str, tuple[type, ...]] = {
        "str": (str,),
        "int": (int,),
        "bool": (bool,),
        "list[str]": (str,),
        "list[int]": (int,),
        "list[float]": (int, float),
        "list[dict[str, Any]]": (dict,),
        "Mapping[str, object]": (dict,),
    }
    for choice in annotation.split(" | "):
        if choice == "None":
            continue
        values = value if choice.startswith("list[") and isinstance(value, list) else [value]
        if choice.startswith("list[") and not isinstance(value, list):
            continue
        if all(isinstance(one, kinds[choice]) and (choice == "bool" or not isinstance(one, bool)) for one in values):
            return True
    return False
