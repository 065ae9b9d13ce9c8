"""Python source to learn from: the standard library of the interpreter that runs, split by file."""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from betoken.errors import InputError

LEFT_OUT = frozenset(
    ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data")
)
"""Folders that are not read: tests, other people's packages, and generated tables."""
LONGEST = 256_000
"""Most characters of a file; longer ones are generated."""


@dataclass(frozen=True)
class Corpus:
    """Files by their path under the source folder, with their text."""

    training: dict[str, str]
    """By path."""
    validation: dict[str, str]
    """In the order of the hashes of the paths, so that the first of them are a fair draw."""


def standard_library() -> Path:
    """Where the running interpreter keeps it."""
    return Path(sysconfig.get_path("stdlib"))


def read_corpus(folder: Path, share: float) -> Corpus:
    """The .py files of a folder: about a `share` of them for validation, by a hash of each relative path alone.

    Left out: `LEFT_OUT`, files longer than `LONGEST`, empty ones, and what is no UTF-8. Raises InputError if either
    part has no file, or the folder cannot be read.
    """
    found = {}
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if path.is_file() and not LEFT_OUT & set(name.parts) and (text := _text(path)).strip() and len(text) <= LONGEST:
            found[name.as_posix()] = text
    held = sorted((place, name) for name in found if (place := _place(name)) < share)
    validation = {name: found[name] for _, name in held}
    training = {name: text for name, text in sorted(found.items()) if name not in validation}
    if not training or not validation:
        raise InputError(
            f"{folder}: {len(training)} .py files to train on and {len(validation)} to validate with; give more source"
        )
    return Corpus(training, validation)


def _place(name: str) -> float:
    """A fixed number in [0, 1) of a path."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2.0**48


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
