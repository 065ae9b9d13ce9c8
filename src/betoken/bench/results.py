"""Result files that survive a kill at any moment: one JSON object a line, appended and synced one by one.

The first line holds the settings. A run that is started again with the same settings skips what is there; one with
other settings is refused. A last line that was cut in the middle is dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from betoken.errors import InputError

Record = dict[str, Any]

Progress = Callable[[int, int, str], None]
"""Told how far a long run has come: how much is done, of how much in all, and what comes next."""


class ResultFile:
    """A result file open for appending; one process at a time. Use it as a context manager."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Create the file, or go on with it.

        `settings`: JSON values. Raises InputError if the file belongs to other settings, is no result file, is being
        written by another run, or cannot be written.
        """
        self.path = path
        self.records: list[Record] = []
        """What was there before and what was appended since, without the settings."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from None
        try:
            self._take_over(json.loads(json.dumps(dict(settings))))
        except BaseException:
            os.close(self._file)
            raise

    def append(self, record: Record) -> None:
        """Write one record and wait until it is on the disk. Raises InputError on a full disk."""
        line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        try:
            end = os.lseek(self._file, 0, os.SEEK_END)
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, end)
            raise InputError(
                f"{self.path}: cannot be written ({error.strerror}); what was measured so far is kept"
            ) from None
        self.records.append(record)

    def __enter__(self) -> ResultFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def _take_over(self, settings: Record) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{self.path}: another run is writing this file; wait for it or name another") from None
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:
            if content and not content.startswith(b'{"settings"'[: len(content)]):
                raise InputError(f"{self.path}: not a result file; name another")
            self._begin(settings)
            return
        found, self.records = _parse(whole, self.path)
        differing = sorted(key for key in found.keys() | settings.keys() if found.get(key) != settings.get(key))
        if differing and not self.records:  # a run that ended before it had measured anything
            self._begin(settings)
            return
        if differing:
            raise InputError(
                f"{self.path}: was made with other settings ({', '.join(differing)}); name another file or remove it"
            )
        os.ftruncate(self._file, len(whole))

    def _begin(self, settings: Record) -> None:
        os.ftruncate(self._file, 0)
        self.append({"settings": settings})
        self.records.clear()


def read_results(path: Path) -> tuple[Record, list[Record]]:
    """Settings and records of a result file, finished or not. Raises InputError if it is none."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    return _parse(content[: content.rfind(b"\n") + 1], path)


def _parse(content: bytes, path: Path) -> tuple[Record, list[Record]]:
    records: list[Record] = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError:
            raise InputError(f"{path}, line {number}: not a line of a result file") from None
        if not isinstance(record, dict):
            raise InputError(f"{path}, line {number}: not a line of a result file")
        records.append(record)
    if not records or not isinstance(records[0].get("settings"), dict):
        raise InputError(f"{path}: not a result file (its first line holds no settings)")
    return records[0]["settings"], records[1:]
