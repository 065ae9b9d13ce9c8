"""Files that are whole or absent: staged folders, locks, checksums, room on the disk."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from filelock import FileLock

from betoken.errors import InputError

_BLOCK = 1 << 22
_FULL = (errno.ENOSPC, errno.EDQUOT)

Advance = Callable[[int], None]


class Progress(Protocol):
    """Where long file work reports how far it is."""

    def task(self, title: str, total: int) -> AbstractContextManager[Advance]:
        """Inside the context, call the function it gives with the bytes done since the last call."""


class SilentProgress:
    """Progress that is not shown."""

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Advance]:
        yield lambda amount: None


class BarProgress:
    """A bar on standard error for each task, gone when it ends; nothing where that is not a terminal."""

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Advance]:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
            bar = bars.add_task(title, total=total)
            yield lambda amount: bars.advance(bar, amount)


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """A new folder next to `folder` that takes its place if the block ends well, and is removed if it does not."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
    try:
        yield stage
        stage.chmod(0o755)  # mkdtemp makes it private
        for path in sorted(stage.rglob("*")):
            _sync(path)
        _sync(stage)
        if folder.exists():
            shutil.rmtree(folder)
        stage.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def remove_stale_stages(folder: Path) -> None:
    """Remove what a killed process left of `staged_folder(folder)`; only under the lock of that folder."""
    for stage in folder.parent.glob(f".{folder.name}.*.tmp"):
        shutil.rmtree(stage, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time works on `folder`; a second one waits here."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        remove_stale_stages(folder)
        yield


@contextmanager
def disk_errors(place: Path, option: str = "--cache-dir") -> Iterator[None]:
    """Turn a full disk or a folder that may not be written into one clear line. `option`: what chooses the place."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise InputError(
                f"{place}: the disk is full; free some space or choose another place with {option}"
            ) from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise InputError(f"{place}: may not be written; choose another place with {option}") from error
        if isinstance(error, NotADirectoryError | FileExistsError):
            raise InputError(f"{place}: is not a folder; choose another place with {option}") from error
        raise


def need_room(place: Path, needed: int) -> None:
    """Raise InputError if the disk that holds `place` has less than `needed` bytes free."""
    there = next(path for path in (place, *place.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise InputError(
            f"{place}: {needed / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB are free; "
            "free some space or choose another place with --cache-dir"
        )


def sha256_of(path: Path, advance: Advance = lambda amount: None) -> str:
    """Hexadecimal SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder, of those that vanish meanwhile too."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
