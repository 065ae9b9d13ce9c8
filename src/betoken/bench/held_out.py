"""Rows that settings were calibrated on are not for judging those settings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from betoken.answers import calibration as judging
from betoken.bench.subject import Method
from betoken.bench.suites import Labelled, Question
from betoken.errors import InputError
from betoken.verifiers.calibration import read_calibration


def fingerprint(question: Question) -> str:
    """What tells a question by its text, whatever file it stands in."""
    return hashlib.sha256(question.raw.encode()).hexdigest()[:32]


def leave_out(labelled: Iterable[Labelled], calibrations: Iterable[Path]) -> list[Labelled]:
    """The rows that none of these calibrations saw. Raises InputError for a file that is no calibration."""
    used: set[str] = set()
    for path in calibrations:
        used.update(rows_of(path).values())
    return [one for one in labelled if fingerprint(one.question) not in used]


def rows_of(path: Path) -> Mapping[str, str]:
    """Id -> fingerprint of each row of a file of `betoken calibrate`. Raises InputError for any other file."""
    if judging.is_judge_calibration(path):
        return judging.read_judge_calibration(path).rows
    return read_calibration(path).rows


def check_held_out(methods: Iterable[Method], questions: Sequence[Question]) -> None:
    """Raises InputError if a method's verifier was calibrated on any of the questions."""
    for method in methods:
        check_config(method.verifier_settings, questions)


def check_config(settings: Mapping[str, object], questions: Sequence[Question]) -> None:
    """Raises InputError if the `config` among settings comes from any of the questions."""
    config = settings.get("config")
    if config is None:
        return
    used = set(rows_of(Path(str(config))).values())
    seen = [question.id for question in questions if fingerprint(question) in used]
    if seen:
        named = ", ".join(seen[:3]) + (", ..." if len(seen) > 3 else "")
        raise InputError(
            f"{len(seen)} of these rows ({named}) were used to calibrate {config}, so they cannot judge it: "
            f"add --without {config}"
        )
