"""Settings that a `betoken calibrate` command froze to a JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from betoken.errors import InputError

_Calibration = TypeVar("_Calibration")


def read_frozen(
    path: Path, kind: str, command: str, build: Callable[[Mapping[str, Any]], _Calibration]
) -> _Calibration:
    """What `build` makes of a file whose `kind` is this one; `command` is the command that writes such files.

    `build` raises KeyError, TypeError or ValueError for values that cannot be. Raises InputError for a file that is
    missing, of another kind, or damaged.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise InputError(f"{path}: no JSON, so no file of {command}") from None
    if not isinstance(found, dict) or found.get("kind") != kind:
        raise InputError(f"{path}: not a file of {command}")
    try:
        return build(found)
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path}: damaged; run {command} again") from None
