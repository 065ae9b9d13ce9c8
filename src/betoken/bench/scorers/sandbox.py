"""Runs generated code where it can do no harm."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFINED = Path(__file__).with_name("confined.py")


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

    seconds: float = 8.0
    """Wall time, and processor time rounded up."""
    memory: int = 1 << 30
    """Bytes of address space."""
    file_bytes: int = 1 << 20
    """Of each file that it writes."""
    files: int = 32
    """Open at once."""


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    passed: bool
    reason: str
    held: tuple[str, ...] = ()
    """The barriers that stood around it, the strongest first; () if it did not come to an end of its own."""


def run_code(program: str, tests: str, limits: Limits | None = None) -> Outcome:
    """Run a program and its tests in a process of its own; passed if both came to their end without an exception.

    The process has an empty folder as its current one, no environment, no network, and can write, start and signal
    nothing outside (see `confined`). What it prints is dropped. It is killed with its group when its time is up.
    A program that exits, whatever its exit code, has not passed: the verdict is a line with a secret of this call,
    written after the tests. (Code that searches the interpreter for that secret could forge it; models do not.)
    """
    limits = limits or Limits()
    token = secrets.token_hex(16)
    asked = {
        "program": program,
        "tests": tests,
        "token": token,
        "limits": {
            "cpu_s": int(limits.seconds) + 1,
            "memory": limits.memory,
            "file_bytes": limits.file_bytes,
            "files": limits.files,
        },
    }
    with tempfile.TemporaryDirectory(prefix="betoken-code-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(CONFINED)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
        late = _wait(process, json.dumps(asked).encode(), limits.seconds)
        return _outcome(process, token, limits, late=late)


def gaps() -> str | None:
    """What the kernel does not keep generated code from here, in a line; None if it keeps it from everything."""
    held = set(run_code("", "").held)
    missing = []
    if not held & {"network namespace", "seccomp"}:
        missing.append("the network")
    if "landlock" not in held:
        missing.append("files that you may write")
    if "seccomp" not in held:
        missing.append("starting processes")
    if not missing:
        return None
    return f"generated code is kept from {', '.join(missing)} by Python alone here, not by the kernel"


def _wait(process: subprocess.Popen[bytes], told: bytes, seconds: float) -> bool:
    """Hand the task over and wait for the end, by its own or by force; whether its time was up."""
    assert process.stdin is not None
    try:
        process.stdin.write(told)
        process.stdin.close()
        process.wait(seconds)
        return False
    except BrokenPipeError:
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        if process.poll() is None or os.name == "posix":
            _kill_group(process)
        process.wait()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # nobody of the group is left


def _outcome(process: subprocess.Popen[bytes], token: str, limits: Limits, *, late: bool) -> Outcome:
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    try:
        written = os.read(process.stdout.fileno(), 1 << 16)
    except BlockingIOError:
        written = b""
    process.stdout.close()
    if late:
        return Outcome(False, f"not finished after {limits.seconds:g} s")
    reply = _reply(written, token)
    if reply is None:
        code = process.returncode
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return Outcome(False, f"ended before its tests did ({how})")
    error = reply["error"]
    return Outcome(error is None, error or "all tests passed", tuple(reply["held"]))


def _reply(written: bytes, token: str) -> dict[str, Any] | None:
    """The line that carries the token, among whatever the program wrote."""
    for line in written.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and secrets.compare_digest(str(found.get("token")), token):
            return found
    return None
