"""The file that `betoken calibrate asd` freezes its proposal in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from betoken.errors import InputError

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
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise InputError(f"{path}: no JSON, so no file of betoken calibrate asd") from None
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise InputError(f"{path}: not a file of betoken calibrate asd")
    try:
        return _checked(found)
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path}: damaged; run betoken calibrate asd again") from None


def _checked(found: Mapping[str, Any]) -> Calibration:
    cap, variant, rows = found["cap"], found["variant"], found["rows"]
    if type(cap) is not int or variant not in (1, 2) or not isinstance(rows, dict):
        raise ValueError
    return Calibration(float(found["budget"]), float(found["gate"]), cap, variant, rows)
