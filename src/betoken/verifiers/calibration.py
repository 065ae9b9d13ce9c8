"""The file that `betoken calibrate asd` freezes its proposal in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from betoken.frozen import read_frozen

KIND = "asd calibration"


@dataclass(frozen=True)
class Calibration:
    """Settings of the verifier asd, and the rows they come from."""

    budget: float
    gate: float
    cap: int
    variant: int
    rows: Mapping[str, str]
    """Id of each question that was traced -> fingerprint of its text."""


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file. Raises InputError if there is none, or a value that cannot be."""
    return read_frozen(path, KIND, "betoken calibrate asd", _checked)


def _checked(found: Mapping[str, Any]) -> Calibration:
    cap, variant, rows = found["cap"], found["variant"], found["rows"]
    if type(cap) is not int or variant not in (1, 2) or not isinstance(rows, dict):
        raise ValueError
    return Calibration(float(found["budget"]), float(found["gate"]), cap, variant, rows)
