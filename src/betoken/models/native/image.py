"""One file with a model's packed weights: named arrays behind a JSON header, read into one block of memory.

The header is a line of JSON (name -> dtype, shape, offset), arrays stand on 64-byte edges. Reading goes into
anonymous memory with huge pages, not into a file mapping: products stream the whole block once a pass, and 4 kB pages
cost them a tenth of their speed (docs/log.md).
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from betoken.errors import InputError

Arrays = dict[str, NDArray[np.generic]]
_MAGIC = b"betoken-image-1\n"
_EDGE = 64


def block(size: int) -> memoryview:
    """Zeroed anonymous memory, in huge pages where the system has them."""
    memory = mmap.mmap(-1, max(size, 1))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


class ImageWriter:
    """Writes arrays one by one; the file appears under its name only when it is complete."""

    def __init__(self, path: Path) -> None:
        """Starts `path` with a temporary name beside it."""
        self.path = path
        self._part = path.with_name(path.name + f".part{os.getpid()}")
        self._file = self._part.open("wb")
        self._entries: dict[str, tuple[str, list[int], int]] = {}
        self._offset = 0

    def add(self, name: str, array: NDArray[np.generic]) -> None:
        """Append one array."""
        gap = -self._offset % _EDGE
        self._file.write(b"\0" * gap)
        self._offset += gap
        self._entries[name] = (array.dtype.str, list(array.shape), self._offset)
        self._file.write(np.ascontiguousarray(array).data)
        self._offset += array.nbytes

    def __enter__(self) -> ImageWriter:
        """The writer itself."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Finish the file, or remove it after an error (a full disk, Ctrl-C)."""
        try:
            if kind is None:
                header = json.dumps(self._entries).encode()
                self._file.write(header + len(header).to_bytes(8, "little") + _MAGIC)
                self._file.flush()
                os.fsync(self._file.fileno())
        except BaseException:
            kind = OSError
            raise
        finally:
            self._file.close()
            if kind is None:
                self._part.replace(self.path)
            else:
                self._part.unlink(missing_ok=True)


def read_image(path: Path) -> Arrays:
    """All arrays of an image, views of one block. Raises InputError if the file is not whole."""
    size = path.stat().st_size
    with path.open("rb") as file:
        entries, length = _header(path, file, size)
        data = block(length)
        file.seek(0)
        read = 0
        while read < length:
            got = file.readinto(data[read:length])
            if not got:
                raise InputError(f"{path}: truncated; delete it and it will be made again")
            read += got
    whole = np.frombuffer(data, dtype=np.uint8)
    return {name: _view(whole, *entry) for name, entry in entries.items()}


def in_memory(arrays: Iterable[tuple[str, NDArray[np.generic]]]) -> Arrays:
    """The same without a file: each array copied to a block of its own."""
    out: Arrays = {}
    for name, array in arrays:
        data = np.frombuffer(block(array.nbytes + _EDGE), dtype=np.uint8)
        data[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        out[name] = _view(data, array.dtype.str, list(array.shape), 0)
    return out


def _header(path: Path, file: object, size: int) -> tuple[dict[str, tuple[str, list[int], int]], int]:
    tail = len(_MAGIC) + 8
    wrong = InputError(f"{path}: not a whole image of packed weights; delete it and it will be made again")
    if size < tail:
        raise wrong
    file.seek(size - tail)  # type: ignore[attr-defined]
    end = file.read(tail)  # type: ignore[attr-defined]
    length = int.from_bytes(end[:8], "little")
    if end[8:] != _MAGIC or length > size - tail:
        raise wrong
    file.seek(size - tail - length)  # type: ignore[attr-defined]
    try:
        return json.loads(file.read(length)), size - tail - length  # type: ignore[attr-defined]
    except ValueError as error:
        raise wrong from error


def _view(data: NDArray[np.uint8], dtype: str, shape: list[int], offset: int) -> NDArray[np.generic]:
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    return data[offset : offset + count * kind.itemsize].view(kind).reshape(shape)
