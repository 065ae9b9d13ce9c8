"""Where a number comes from: machine, versions, commit, command, date. Written beside every result file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from betoken.errors import InputError

PACKAGES = ("betoken", "torch", "numpy", "numba", "transformers", "tokenizers", "safetensors")
CPU_FLAGS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
    "asimd",
)


def session(command: Sequence[str] | None = None) -> dict[str, Any]:
    """This process, as JSON values: machine, package versions, commit, command, date (UTC) and load average."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]] if command is None else list(command),
        "machine": machine(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "commit": commit(),
        "load_average": list(os.getloadavg()),
    }


def machine() -> dict[str, Any]:
    """What the speed depends on: processor, cores, threads, memory, clock governor, instruction sets, GPU."""
    cpu = _cpu()
    flags = set(cpu.get("flags", cpu.get("Features", "")).split())
    return {
        "cpu": cpu.get("model name", platform.processor() or platform.machine()),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "unknown",
        "flags": [flag for flag in CPU_FLAGS if flag in flags],
        "system": f"{platform.system()} {platform.release()}",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def commit() -> str | None:
    """The commit that betoken's source is at, `+changes` if the tree differs from it; None outside a checkout."""
    folder = Path(__file__).parent
    head = _git(folder, "rev-parse", "HEAD")
    if not head:
        return None
    return f"{head}+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else head


def provenance_path(result: Path) -> Path:
    """`bench.jsonl` -> `bench.provenance.json`."""
    return result.with_name(f"{result.stem}.provenance.json")


def write_provenance(result: Path, settings: Mapping[str, Any]) -> None:
    """Add this process to the sessions that made a result file. Raises InputError if that cannot be written.

    A resumed run has several sessions; `report` says so when their machines or commits differ.
    """
    path = provenance_path(result)
    sessions = read_provenance(result).get("sessions", []) if result.is_file() else []
    text = json.dumps({"settings": settings, "sessions": [*sessions, session()]}, indent=1, ensure_ascii=False)
    replace(path, text + "\n")


def read_provenance(result: Path) -> dict[str, Any]:
    """What stands beside a result file; {} if nothing does, or nothing readable."""
    try:
        found = json.loads(provenance_path(result).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def replace(path: Path, text: str) -> None:
    """Write a text file whole or not at all. Raises InputError if it cannot be written."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> dict[str, str]:
    lines = (line.partition(":") for line in _read("/proc/cpuinfo").split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
