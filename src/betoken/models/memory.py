"""Does a model fit? An estimate of the memory it needs, what the machine has free, and the refusal in between."""

from __future__ import annotations

import math
import os
from pathlib import Path

from betoken.errors import InputError
from betoken.models.config import DecoderConfig

_BYTES = {"int4": 0.5625, "int8": 1, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
_RUNTIME = 400 << 20
"""Interpreter, torch and numba (0.29 GB resident, Linux, torch 2.13) and a tokenizer of 150,000 tokens (0.11 GB)."""
_TREE_NODES = 64
"""Most logits rows that are alive at once for each request."""


def needed_bytes(config: DecoderConfig, dtype: str, context: int, batch: int = 1) -> int:
    """Estimated bytes of resident memory to decode `batch` requests of up to `context` positions.

    `dtype`: int4, int8, bfloat16, float16, float32 or float64. Counts weights, keys and values (float32 unless the
    dtype is a 16-bit one), logits of one tree, the largest tensor once more while it is converted, and the runtime.
    """
    if dtype not in _BYTES:
        raise InputError(f"unknown dtype {dtype}; choose one of {', '.join(_BYTES)}")
    width = _BYTES[dtype]
    sizes = {name: math.prod(shape) for name, shape in config.tensor_shapes.items()}
    weights = int(sum(sizes.values()) * width)
    if dtype in ("int8", "int4"):  # one float32 scale for each output row, norms and biases stay float32
        weights += 4 * sum(shape[0] for shape in config.tensor_shapes.values())
    state_width = 2 if dtype in ("bfloat16", "float16") else max(4, int(width))
    keys_values = 2 * config.num_layers * config.num_kv_heads * config.head_dim * context * batch * state_width
    logits = 4 * _TREE_NODES * batch * config.vocab_size
    return weights + 4 * max(sizes.values()) + keys_values + logits + _RUNTIME


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes this process may still take: free memory of the machine, or what its cgroup leaves; None if unknown.

    `root` is where `proc` and `sys` are mounted.
    """
    limits = [_machine_available(root), *_cgroup_available(root)]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def check_fits(config: DecoderConfig, dtype: str, context: int, batch: int = 1, available: int | None = None) -> None:
    """Raise InputError, with both numbers, if the model needs more than is available.

    `available`: bytes; None asks `available_bytes` (and an unknown amount is taken to be enough).
    """
    needed = needed_bytes(config, dtype, context, batch)
    free = available_bytes() if available is None else available
    if free is not None and needed > free:
        raise InputError(
            f"the model needs about {needed / 1e9:.1f} GB as {dtype} with a context of {context} x {batch}, "
            f"{free / 1e9:.1f} GB are free: take a smaller model, context, batch or dtype"
        )


def _machine_available(root: Path) -> int | None:
    lines = _read(root / "proc/meminfo").splitlines()
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    if root != Path("/"):
        return None
    try:  # not Linux: all of the memory, which is better than no limit
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _cgroup_available(root: Path) -> list[int]:
    """What each cgroup (version 2, or the memory controller of version 1) around this process still allows."""
    left = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, limit, usage, cached = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            mount, cached = "sys/fs/cgroup/memory", "total_inactive_file"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        base = root / mount
        inside = Path(path.lstrip("/"))
        for group in [base / inside, *(base / parent for parent in inside.parents)]:
            allowed, used = _read(group / limit).strip(), _read(group / usage).strip()
            if allowed.isdigit() and used.isdigit():
                left.append(max(0, int(allowed) - int(used) + _cached(group, cached)))
    return left


def _cached(group: Path, key: str) -> int:
    """Bytes of file cache in the group that the kernel gives back under pressure."""
    for line in _read(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
