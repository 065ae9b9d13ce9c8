"""Benchmark questions: six public formats read from JSONL files, and seeded draws from them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from betoken.bench.formats import FORMATS, Format
from betoken.errors import InputError

DATA_VARIABLE = "BETOKEN_DATA"
"""Environment variable that names the folder in which suites are looked up."""


@dataclass(frozen=True)
class Question:
    """One prompt of a suite."""

    id: str
    """`suite/own id`, unique within a suite."""
    suite: str
    category: str
    messages: tuple[Mapping[str, str], ...]
    """Chat messages: {"role": ..., "content": ...}."""
    raw: str
    """The prompt as plain text, for models without a chat template."""


@dataclass(frozen=True)
class Labelled:
    """A question with what its suite's file says about it, reference answer included."""

    question: Question
    format: str
    """Name of the file's format."""
    row: Mapping[str, Any]


def default_folder() -> Path | None:
    """The folder of suites that $BETOKEN_DATA names, if it does."""
    named = os.environ.get(DATA_VARIABLE)
    return Path(named) if named else None


def find_counted(text: str, data: Path | None = None) -> tuple[Path, int | None]:
    """The file of `NAME`, `FILE` or `NAME:20`, and the number. Raises InputError like `find_suite`."""
    name, colon, count = text.rpartition(":")
    if colon and count.isdigit():
        return find_suite(name, data), int(count)
    return find_suite(text, data), None


def find_suite(name: str, data: Path | None = None) -> Path:
    """The file of a suite: a path, or a name looked up in `data`, else in the folder that $BETOKEN_DATA names.

    Raises InputError if there is no such file.
    """
    path = Path(name)
    if path.is_file():
        return path
    if path.suffix == ".jsonl" or len(path.parts) > 1:
        raise InputError(f"suite {name}: there is no such file")
    folder = data or default_folder()
    if folder is None:
        raise InputError(f"suite {name!r} is no file: give its path, or its folder with --data or ${DATA_VARIABLE}")
    found = folder / f"{name}.jsonl"
    if not found.is_file():
        have = ", ".join(sorted(other.stem for other in folder.glob("*.jsonl"))) or "no .jsonl file"
        raise InputError(f"suite {name!r} is not in {folder}; it has: {have}")
    return found


def check_suites(paths: Sequence[Path]) -> None:
    """Raises InputError unless there is a suite, and none twice: results know a suite by its file's name."""
    if not paths or len({path.stem for path in paths}) < len(paths):
        raise InputError("suites: name at least one, and none twice")


def read_suite(path: Path) -> list[Question]:
    """All questions of a JSONL file, whose format is recognised by its fields.

    Raises InputError, with file and line, for a file that is missing or empty, a line that is no JSON object, fields
    that are missing, unknown or of the wrong type, and for an id that comes twice.
    """
    return [labelled.question for labelled in read_labelled(path)]


def read_labelled(path: Path) -> list[Labelled]:
    """The same with the rows they come from. Raises InputError like `read_suite`."""
    found: dict[str, Labelled] = {}
    for line, row, format_ in _checked(path):
        where = f"{path}, line {line}"
        try:
            own, category, request, raw = format_.read(row, line)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        question = Question(f"{path.stem}/{own}", path.stem, category, ({"role": "user", "content": request},), raw)
        if question.id in found:
            raise InputError(f"{where}: question {own} stands here a second time")
        found[question.id] = Labelled(question, format_.name, row)
    return list(found.values())


def suite_text(path: Path) -> str:
    """The questions and answers of a suite, one after another, as one text. Raises InputError like `read_suite`."""
    texts = []
    for _, row, format_ in _checked(path):
        parts = [row[name] for name in format_.told if name in row]
        texts.append("\n".join(str(part) for each in parts for part in (each if isinstance(each, list) else [each])))
    return "\n\n".join(texts)


def stratified(questions: Iterable[Question], per_category: int, seed: int) -> list[Question]:
    """Up to `per_category` questions of each category of each suite, seeded; in order of suite and category.

    What is drawn from a category does not depend on the others. Raises InputError for less than 1.
    """
    if per_category < 1:
        raise InputError(f"rows per category must be at least 1, not {per_category}")
    strata: dict[tuple[str, str], list[Question]] = {}
    for question in questions:
        strata.setdefault((question.suite, question.category), []).append(question)
    return [question for stratum in strata.values() for question in _shuffled(stratum, seed)[:per_category]]


def draw(suites: Sequence[Sequence[Question]], rows: int, seed: int) -> list[Question]:
    """`rows` questions, the same number from each suite as far as it reaches, seeded, in mixed order.

    Raises InputError for less than 1 or for more than there are.
    """
    have = sum(len(suite) for suite in suites)
    if not 1 <= rows <= have:
        raise InputError(f"cannot draw {rows} rows: choose 1 to {have}")
    piles = [_shuffled(suite, seed) for suite in suites]
    drawn: list[Question] = []
    depth = 0
    while len(drawn) < rows:
        layer = [pile[depth] for pile in piles if depth < len(pile)]
        drawn += layer[: rows - len(drawn)]
        depth += 1
    return _shuffled(drawn, seed + 1)


def _shuffled(questions: Iterable[Question], seed: int) -> list[Question]:
    """Seeded order by hash: the same on every Python version, and rows that are added move no others."""
    return sorted(questions, key=lambda one: hashlib.sha256(f"{seed}/{one.id}".encode()).digest())


def _checked(path: Path) -> Iterator[tuple[int, Mapping[str, Any], Format]]:
    """Line, row and format of each row; at least one."""
    format_: Format | None = None
    for line, row in _rows(path):
        where = f"{path}, line {line}"
        format_ = format_ or _recognise(row, where)
        _check(row, format_, where)
        yield line, row, format_
    if format_ is None:
        raise InputError(f"{path}: no question in this file")


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text, so no JSONL file") from None
    for line, part in enumerate(text.split("\n"), 1):
        if not part.strip():
            continue
        try:
            row = json.loads(part)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {line}: no valid JSON ({error.msg}, column {error.colno})") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {line}: a row must be a JSON object, not {part.strip():.40}")
        yield line, row


def _recognise(row: Mapping[str, Any], where: str) -> Format:
    fields = set(row)
    for format_ in FORMATS:
        if format_.required.keys() <= fields <= format_.known:
            return format_
    nearest = max(FORMATS, key=lambda one: len(fields & one.known) - len(fields - one.known))
    if not fields & set(nearest.required):
        names = ", ".join(format_.name for format_ in FORMATS)
        raise InputError(f"{where}: the fields {', '.join(sorted(fields)) or '(none)'} fit no known format ({names})")
    return nearest


def _check(row: Mapping[str, Any], format_: Format, where: str) -> None:
    unknown = sorted(set(row) - format_.known)
    if unknown:
        raise InputError(
            f"{where}: unknown field {unknown[0]!r}; {format_.name} has: {', '.join(sorted(format_.known))}"
        )
    for name, kind in format_.required.items():
        if name not in row:
            raise InputError(f"{where}: field {name!r} is missing, which every {format_.name} row has")
        if not isinstance(row[name], kind) or isinstance(row[name], bool):
            raise InputError(f"{where}: {name} must be of type {kind.__name__}, not {row[name]!r:.40}")
