"""The file that `betoken calibrate parse` freezes its settings in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from betoken.frozen import read_frozen

KIND = "parse calibration"


@dataclass(frozen=True)
class JudgeCalibration:
    """Settings of a judge, whom they are for, and the rows they come from."""

    settings: Mapping[str, Any]
    """Of method parse; a cascade takes those that it has."""
    fallback: str | None
    """Why the target answers alone; None where judging pays."""
    target: str
    """Names of the two models, as they call themselves."""
    draft: str
    rows: Mapping[str, str]
    """Id of each question that was asked -> fingerprint of its text."""


def is_judge_calibration(path: Path) -> bool:
    """Whether a file says that it is one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("kind") == KIND


def read_judge_calibration(path: Path) -> JudgeCalibration:
    """The calibration in a file. Raises InputError if there is none, or a value that cannot be."""
    return read_frozen(path, KIND, "betoken calibrate parse", _checked)


def _checked(found: Mapping[str, Any]) -> JudgeCalibration:
    settings, fallback, rows = found["settings"], found["fallback"], found["rows"]
    if not isinstance(settings, dict) or not isinstance(rows, dict) or not isinstance(fallback, str | None):
        raise ValueError
    return JudgeCalibration(settings, fallback, str(found["target"]), str(found["draft"]), rows)
