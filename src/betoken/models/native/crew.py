"""Threads that run one compiled forward pass together.

Starting threads, or waking Python ones, costs more than a layer of a small model. A crew's workers stay inside
compiled code: they watch a counter, spin for a moment after each pass and then sleep in growing steps, so a pass
begins within a microsecond when passes follow each other and an idle crew costs next to nothing. Inside a pass,
threads meet at spinning barriers.
"""

from __future__ import annotations

import threading
from functools import cache

import numpy as np

from betoken.models.native import emit
from betoken.models.native.job import MAX_THREADS, MODEL, PASS
from betoken.models.native.kernels import compiled

_JOBS, _ARRIVED, _STOP = 0, 8, 16  # int64 places in the control block, a cache line apart
_SPINS = 50_000


@compiled
def barrier(control, threads):  # type: ignore[no-untyped-def]
    """Wait until all threads of the pass are here. The count only grows, so it needs no reset."""
    if threads > 1:
        where = control + _ARRIVED * 8
        mine = emit.fetch_add(where, 1) + 1
        due = (mine + threads - 1) // threads * threads
        spins = 0
        while emit.load_atomic(where) < due:
            emit.pause()
            spins += 1
            if spins > _SPINS:
                # Somebody else has the other core: let the missing thread run.
                emit.sleep_us(10)


@compiled
def await_job(control, done):  # type: ignore[no-untyped-def]
    """Wait for job number done + 1; True when there is one, False when the crew stops."""
    idle = 0
    while emit.load_atomic(control + _JOBS * 8) == done:
        if emit.load_atomic(control + _STOP * 8):
            return False
        idle += 1
        if idle < _SPINS:
            emit.pause()
        else:
            emit.sleep_us(50 if idle < _SPINS + 2000 else 1000)
    return True


class Crew:
    """A fixed number of threads; the caller's own is number 0."""

    def __init__(self, threads: int) -> None:
        """Starts threads - 1 daemon workers."""
        self.threads = threads
        self.control = np.zeros(64, dtype=np.int64)
        self.model = np.zeros(1, dtype=MODEL)
        self.run = np.zeros(1, dtype=PASS)
        self._turn = threading.Lock()
        for number in range(1, threads):
            arguments = (self.control.ctypes.data, number, self.model, self.run)
            threading.Thread(target=_work, args=arguments, daemon=True, name=f"betoken-{number}").start()

    def forward(self, model: np.ndarray, run: np.ndarray) -> None:
        """One forward pass; returns when all threads are done. One at a time: targets may share a crew."""
        with self._turn:
            self.model[0], self.run[0] = model[0], run[0]
            self.run[0]["threads"] = self.threads
            _lead(self.control.ctypes.data, self.model, self.run)


@cache
def crew(threads: int) -> Crew:
    """The process's crew of this size. Targets share it, since they never run at the same time."""
    return Crew(max(1, min(threads, MAX_THREADS)))


def _work(control: int, number: int, model: np.ndarray, run: np.ndarray) -> None:
    from betoken.models.native.forward import serve

    serve(control, number, model, run)


def _lead(control: int, model: np.ndarray, run: np.ndarray) -> None:
    from betoken.models.native.forward import lead

    lead(control, model, run)
