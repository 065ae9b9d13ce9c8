"""Generated code can do no harm, and cannot pass without passing its tests."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from betoken.bench.scorers import sandbox
from betoken.bench.scorers.sandbox import Limits, run_code

QUICK = Limits(seconds=2.0, memory=512 << 20)

HOSTILE = {
    "infinite loop": ("while True: pass", "not finished after"),
    "sleep": ("import time; time.sleep(1000)", "not finished after"),
    "memory hog": ("x = 'a' * (3 << 30)", "MemoryError"),
    "exit before the tests": ("import sys; sys.exit(0)", "SystemExit in the program"),
    "os._exit": ("import os; os._exit(0)", "ended before its tests did"),
    "signal to itself": ("import os; os.kill(os.getpid(), 9)", "refused"),
    "fork bomb": ("import os\nwhile True: os.fork()", "refused"),
    "thread bomb": ("import threading\nwhile True: threading.Thread(target=input).start()", "thread"),
    "subprocess": ("import subprocess; subprocess.run(['true'])", "refused"),
    "shell": ("import os; os.system('true')", "refused"),
    "socket": ("import socket; socket.create_connection(('127.0.0.1', 9))", "refused"),
    "name look-up": ("import socket; socket.getaddrinfo('localhost', 80)", "refused"),
    "foreign code": ("import ctypes; ctypes.CDLL(None)", "refused"),
    "large file": ("open('own', 'wb').write(b'x' * (8 << 20))", "OSError"),
    "many files": ("held = [open('own%d' % n, 'w') for n in range(100)]", "OSError"),
    "deep recursion": ("def f(): return f()\nf()", "RecursionError"),
    "no Python": ("def f(:", "SyntaxError"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_fail_in_time(name: str) -> None:
    program, told = HOSTILE[name]
    began = time.monotonic()
    outcome = run_code(program, "", QUICK)
    assert not outcome.passed and told in outcome.reason, outcome
    assert time.monotonic() - began < 30.0


@pytest.mark.parametrize("act", ["open(PATH, 'a')", "os.remove(PATH)", "os.rename(PATH, 'x')", "os.chmod(PATH, 0)"])
@pytest.mark.parametrize("python_refuses", [True, False])
def test_nothing_outside_is_changed(
    tmp_path: Path, act: str, python_refuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only the kernel stands in the way."""
    if not python_refuses:
        _without_hook(tmp_path, monkeypatch)
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    treasure.chmod(0o644)
    outcome = run_code("import os\n" + act.replace("PATH", repr(str(treasure))), "", QUICK)
    assert not outcome.passed and "PermissionError" in outcome.reason
    assert treasure.read_text() == "gold" and treasure.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "act",
    [
        "import os\nos.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "import _socket\n_socket.socket()",
        "import os\nos.kill(os.getppid(), 9)",
        "import os\nos.setsid()",
        "import os\nos.truncate('/dev/null', 0)",
    ],
)
def test_the_kernel_refuses_what_python_would(act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_hook(tmp_path, monkeypatch)
    outcome = run_code(act, "", QUICK)
    assert not outcome.passed and "PermissionError" in outcome.reason


def _without_hook(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave Python's own barrier out; skips the test where the kernel has no other."""
    if not {"landlock", "seccomp"} <= set(run_code("", "", QUICK).held):
        pytest.skip("this kernel has no Landlock or no seccomp: Python's barrier is all there is")
    script = folder / "confined.py"
    text = sandbox.CONFINED.read_text()
    assert "    sys.addaudithook(" in text
    script.write_text(text.replace("    sys.addaudithook(", "    str("))
    monkeypatch.setattr(sandbox, "CONFINED", script)


def test_what_a_program_finds() -> None:
    """An empty folder that it may use, no environment of ours, ordinary modules."""
    os.environ["BETOKEN_SECRET"] = "1"
    try:
        outcome = run_code(
            "import os, re, math, heapq, collections, typing\nfound = os.listdir('.')\nopen('own', 'w').write('x')",
            "assert found == [] and open('own').read() == 'x' and not {'BETOKEN_SECRET', 'PATH'} & set(os.environ)",
        )
    finally:
        del os.environ["BETOKEN_SECRET"]
    assert outcome.passed and outcome.reason == "all tests passed"
    assert {"limits", "python"} <= set(outcome.held)
    assert sys.platform != "linux" or "seccomp" in outcome.held or "network namespace" in outcome.held


def test_wrong_code_fails_and_output_is_dropped() -> None:
    assert run_code("def f(): return 1", "assert f() == 2").reason.startswith("AssertionError in the tests")
    assert run_code("print('x' * (1 << 24))", "assert True").passed


def test_a_program_cannot_write_its_own_verdict() -> None:
    forged = '{"token": "", "error": null, "held": []}'
    write = f"try: os.write(fd, b'''\\n{forged}\\n''')"
    program = f"import os\nfor fd in range(30):\n  {write}\n  except OSError: pass\nos._exit(0)"
    assert not run_code(program, "assert False", QUICK).passed


def test_its_folder_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(tmp_path))
    run_code("import os\nos.mkdir('deep')\nopen('deep/file', 'w').write('x')", "")
    assert list(tmp_path.iterdir()) == []
