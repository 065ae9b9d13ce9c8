"""MATH-500: equality of mathematical answers, judged by the library math-verify.

Sympy can take for ever on a short text (9^{9^{9^9}}), and its own timeouts cannot interrupt a large integer's power.
So it runs in a process of its own, which is killed after a while.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Mapping
from time import monotonic
from typing import Any

from betoken.bench.scorers.score import Score


class MathAnswer:
    """Right if math-verify finds the answer equal to the reference. Call `close` at the end."""

    def __init__(self, *, seconds: float = 10.0) -> None:
        """`seconds`: how long one comparison may take."""
        self._seconds = seconds
        self._worker: subprocess.Popen[str] | None = None

    def score(self, row: Mapping[str, Any], answer: str) -> Score:
        """Compare by value."""
        reply = self._ask(row["answer"], answer)
        if reply is None:
            return Score(False, None, f"no verdict within {self._seconds:g} s")
        expected = f"; expected {row['answer']}"
        return Score(bool(reply["equal"]), reply["extracted"], reply["reason"] + expected)

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.communicate()
            self._worker = None

    def _ask(self, gold: str, answer: str) -> dict[str, Any] | None:
        first = self._worker is None
        worker = self._worker or self._start()
        assert worker.stdin is not None and worker.stdout is not None
        deadline = monotonic() + self._seconds + (60.0 if first else 0.0)  # the first waits for sympy's import
        try:
            worker.stdin.write(json.dumps({"gold": gold, "answer": answer}) + "\n")
            worker.stdin.flush()
            ready, _, _ = select.select([worker.stdout], [], [], max(0.0, deadline - monotonic()))
            line = worker.stdout.readline() if ready else ""
        except BrokenPipeError:
            line = ""
        if not line:  # too slow, or out of memory: the next comparison gets a new process
            self.close()
            return None
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "betoken.bench.scorers.maths_worker"]
        self._worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        return self._worker
