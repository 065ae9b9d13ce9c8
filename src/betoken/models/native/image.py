"""One file with a model's packed weights: named arrays and a JSON index, read into one block of memory.

Arrays stand on 64-byte edges; the index (name -> dtype, shape, offset) stands behind them. Reading goes into
anonymous memory with huge pages, not into a file mapping: products stream the whole block once a pass, and 4 kB pages
slow that down.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from betoken.errors import InputError

Arrays = dict[str, NDArray[np.generic]]
Index = dict[str, tuple[str, list[int], int]]
_MAGIC = b"betoken-image-1\n"
_EDGE = 64


def block(size: int) -> memoryview:
    """Zeroed anonymous memory, in huge pages where the system has them."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return memoryview(mmap.mmap(-1, max(size, 1)))
    # Python maps shared memory unless told otherwise, and that stays in small pages.
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def write_image(path: Path, arrays: Iterable[tuple[str, NDArray[np.generic]]]) -> None:
    """Write arrays one by one, as they come."""
    index: Index = {}
    offset = 0
    with path.open("wb") as file:
        for name, array in arrays:
            gap = -offset % _EDGE
            file.write(b"\0" * gap)
            offset += gap
            index[name] = (array.dtype.str, list(array.shape), offset)
            file.write(np.ascontiguousarray(array).data)
            offset += array.nbytes
        header = json.dumps(index).encode()
        file.write(header + len(header).to_bytes(8, "little") + _MAGIC)


def read_image(path: Path) -> Arrays:
    """All arrays of an image, views of one block. Raises InputError if the file is missing or not whole."""
    try:
        with path.open("rb") as file:
            index, length = _index(path, file, path.stat().st_size)
            data = block(length)
            file.seek(0)
            read = 0
            while read < length and (got := file.readinto(data[read : min(read + (1 << 26), length)])):
                read += got
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    whole = np.frombuffer(data, dtype=np.uint8)
    return {name: _view(whole, *entry) for name, entry in index.items()}


def in_memory(arrays: Iterable[tuple[str, NDArray[np.generic]]]) -> Arrays:
    """The same without a file: each array copied to a block of its own."""
    out: Arrays = {}
    for name, array in arrays:
        data = np.frombuffer(block(array.nbytes + _EDGE), dtype=np.uint8)
        data[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        out[name] = _view(data, array.dtype.str, list(array.shape), 0)
    return out


def _index(path: Path, file: BinaryIO, size: int) -> tuple[Index, int]:
    """The index and where the arrays end."""
    tail = len(_MAGIC) + 8
    file.seek(max(0, size - tail))
    end = file.read(tail)
    length = int.from_bytes(end[:8], "little")
    if len(end) == tail and end[8:] == _MAGIC and length <= size - tail:
        file.seek(size - tail - length)
        try:
            return json.loads(file.read(length)), size - tail - length
        except ValueError:
            pass
    raise InputError(f"{path}: truncated or corrupt packed weights")


def _view(data: NDArray[np.uint8], dtype: str, shape: list[int], offset: int) -> NDArray[np.generic]:
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    return data[offset : offset + count * kind.itemsize].view(kind).reshape(shape)
