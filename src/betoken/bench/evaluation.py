"""What evaluations of one model and of two share: which questions are asked, how they go on, how a suite went."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from betoken.bench.held_out import check_held_out, leave_out
from betoken.bench.metrics import Interval, wilson
from betoken.bench.provenance import write_provenance
from betoken.bench.results import Progress, Record, ResultFile
from betoken.bench.scorers import SCORERS, Score, Scorer
from betoken.bench.subject import Method, ModelSpec, check_temperature
from betoken.bench.suites import Labelled, check_suites, draw, read_labelled
from betoken.errors import InputError
from betoken.state import StopSettings

Numbered = tuple[int, Labelled]
"""A row and its index in the draw."""


@dataclass(frozen=True)
class Evaluation:
    """What is asked: the same settings continue a result file, others need another."""

    model: ModelSpec
    method: Method
    """How tokens are decoded."""
    suites: tuple[Path, ...]
    rows: int | None = None
    """Questions of each suite, drawn; None asks all."""
    max_new_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    """Of the draw, and of the rows: row i samples with seed + i."""
    batch: int = 8
    """Most questions that are answered together."""
    raw: bool = False
    without: tuple[Path, ...] = ()
    """Files of `betoken calibrate` whose rows are left out."""

    def __post_init__(self) -> None:
        """Raises InputError for settings that cannot be used."""
        self.method.check()
        check_temperature([self.method], self.temperature)
        StopSettings(self.max_new_tokens)
        if self.batch < 1:
            raise InputError(f"batch must be at least 1, not {self.batch}")
        check_suites(self.suites)

    def questions(self) -> list[Labelled]:
        """The rows of every suite. Raises InputError for a suite without a scorer, and for rows that chose settings."""
        return self._rows()

    def _rows(self, *, unscored: bool = False) -> list[Labelled]:
        found = [
            one for path in self.suites for one in chosen(path, self.rows, self.seed, self.without, unscored=unscored)
        ]
        check_held_out([self.method], [one.question for one in found])
        return found

    def describe(self, labelled: Sequence[Labelled]) -> dict[str, Any]:
        """The settings as JSON values, with a digest of the rows instead of where their files lie."""
        told = asdict(self)
        told["suites"] = [path.stem for path in self.suites]
        told["without"] = len(self.without)
        told["questions"] = len(labelled)
        told["questions_sha256"] = fingerprint_of(labelled)
        return told


@dataclass(frozen=True, kw_only=True)
class Report:
    """How a suite went."""

    suite: str
    answers: int
    correct: int
    interval: Interval
    """95% Wilson interval of the accuracy."""
    unextracted: int
    """Answers in which no answer was found."""
    mean_tokens: float
    """Mean length of an answer."""

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.answers

    def describe(self) -> dict[str, Any]:
        """The report as JSON values."""
        told = {name: list(value) if isinstance(value, Interval) else value for name, value in asdict(self).items()}
        return told | {"accuracy": self.accuracy}


def counted(suite: str, own: Sequence[Record]) -> dict[str, Any]:
    """The fields of `Report`, from the records of a suite."""
    correct = sum(record["correct"] for record in own)
    return {
        "suite": suite,
        "answers": len(own),
        "correct": correct,
        "interval": wilson(correct, len(own)),
        "unextracted": sum(record["extracted"] is None for record in own),
        "mean_tokens": sum(record["tokens"] for record in own) / len(own),
    }


def complete(
    settings: Evaluation, answer: Callable[[list[Numbered]], Iterable[Record]], out: Path, progress: Progress
) -> dict[str, list[Record]]:
    """Answer what `out` does not hold yet. Returns the records of each suite, by its name.

    `answer`: gives the scored answers of rows as they end. An interruption loses those under way, nothing else.
    Raises InputError for a result file of other settings.
    """
    labelled = settings.questions()
    told = settings.describe(labelled)
    with ResultFile(out, told) as results:
        done = {record["question"] for record in results.records}
        left = [(index, one) for index, one in enumerate(labelled) if one.question.id not in done]
        if left:
            write_provenance(out, told)
            progress(len(results.records), len(labelled), f"loading {settings.model.label}")
            for record in answer(left):
                results.append(record)
                progress(len(results.records), len(labelled), record["suite"])
    names = [path.stem for path in settings.suites]
    return {name: [record for record in results.records if record["suite"] == name] for name in names}


class Scoring(ExitStack):
    """The scorers of some rows; use it in a `with` block."""

    def __init__(self, labelled: Iterable[Labelled]) -> None:
        super().__init__()
        self._scorers: dict[str, Scorer] = {
            name: self.enter_context(closing(SCORERS[name]()))
            for name in SCORERS.keys() & {one.format for one in labelled}
        }

    def judged(self, one: Labelled, text: str) -> Record:
        """What was answered, and whether it is right."""
        scorer = self._scorers.get(one.format)
        return scored(one, text, scorer.score(one.row, text) if scorer else None)


def scored(one: Labelled, text: str, score: Score | None) -> Record:
    """The fields of a record that say what was answered and whether it is right; None of what nobody judges."""
    told = asdict(score) if score else {"correct": None, "extracted": None, "reason": "not judged"}
    return {"question": one.question.id, "suite": one.question.suite, "text": text, **told}


def chosen(
    path: Path, rows: int | None, seed: int, without: Sequence[Path] = (), *, unscored: bool = False
) -> list[Labelled]:
    """Rows of one suite that can be scored: all, or `rows` drawn by seed, those of calibrations left out.

    Raises InputError for a suite without a scorer (unless `unscored`), or with fewer rows.
    """
    labelled = leave_out(read_labelled(path), without)
    if not labelled:
        raise InputError(f"{path.name}: every row was used in a calibration, so none is left")
    if labelled[0].format not in SCORERS and not unscored:
        raise InputError(f"{path.name}: {labelled[0].format} has no scorer; suites with one: {', '.join(SCORERS)}")
    own = {one.question.id: one for one in labelled}
    if rows is None:
        return labelled
    return [own[one.id] for one in draw([[one.question for one in labelled]], rows, seed)]


def fingerprint_of(labelled: Sequence[Labelled]) -> str:
    """A digest of rows, references included."""
    told = [[one.question.id, one.format, one.row] for one in labelled]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
