"""Threads that run one compiled forward pass together.

Starting threads, or waking Python ones, costs more than a layer of a small model. A crew's workers stay inside
compiled code: they watch a counter, spin for a moment after each pass and then sleep in growing steps, so a pass
begins within a microsecond when passes follow each other and an idle crew costs next to nothing. Inside a pass,
threads meet at spinning barriers.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from betoken.models.native import emit
from betoken.models.native.job import MAX_THREADS, MODEL, PASS
from betoken.models.native.views import compiled

_JOBS, _ARRIVED, _STOP, STALLS = 0, 8, 16, 24  # int64 places in the control block, a cache line apart
_SPINS = 2_000
"""Turns of a waiting loop, about 50 microseconds, before a waiting thread gives its core to others."""
_NAPS = 5_000
"""Short sleeps, together about half a second, before an idle worker sleeps longer ones."""

_STALLED, _STALLED_SHARE = 20, 0.1
"""Short sleeps at the barriers of one pass, and their part of its time, that say that cores are wanted elsewhere."""
_NAP = 70e-6
"""Seconds that a short sleep takes at least: the 20 microseconds asked for, and the scheduler's slack."""
_FEWEST_ALONE, _MOST_ALONE = 4, 64
_NEWEST = 0.25
"""Weight of the last pass in what a thread needs alone."""


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
                # On a busy machine the thread that is missing may be waiting for this very core. Sleeping, not
                # yielding, makes the scheduler give it over.
                emit.fetch_add(control + STALLS * 8, 1)
                emit.sleep_us(20)


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
            emit.sleep_us(20 if idle < _SPINS + _NAPS else 1_000)
    return True


@dataclass
class Pace:
    """Whether a crew's passes are faster together or alone.

    Other programs that want the same cores make threads wait for each other at every barrier, which can be many times
    slower than one thread alone. Since the number of threads changes no bit of the result, a pass that stalled is
    followed by some that run alone. They tell what a thread needs alone; from then on only a pass that stalled and
    took longer than that is followed by more of them, twice as many each time.
    """

    left: int = 0
    """Passes still to run alone."""
    rest: int = _FEWEST_ALONE
    """Passes that run alone after the next stall."""

    def learn(self, *, together: bool, naps: int, seconds: float, size: int, alone: dict[int, float]) -> None:
        """Take in a pass in which a waiting thread slept `naps` times, and that took so many seconds.

        `size`: passes of the same size take about as long. `alone`: size -> seconds on one thread, which is kept here.
        """
        known = alone.get(size)
        if not together:
            self.left -= self.left > 0
            alone[size] = seconds if known is None else known + _NEWEST * (seconds - known)
        elif naps > _STALLED and (seconds > known if known else naps * _NAP > _STALLED_SHARE * seconds):
            self.left, self.rest = self.rest, min(2 * self.rest, _MOST_ALONE)
        else:
            self.rest = _FEWEST_ALONE


class Crew:
    """A fixed number of threads; the caller's own is number 0.

    The workers end when nobody holds the crew any more, and before the interpreter does.
    """

    def __init__(self, threads: int) -> None:
        """Starts threads - 1 daemon workers."""
        from betoken.models.native.forward import lead, serve  # which need the barriers of this file

        self.threads, self._lead = threads, lead
        self.control = np.zeros(64, dtype=np.int64)
        self._address = self.control.ctypes.data
        self.model = np.zeros(1, dtype=MODEL)
        self.run = np.zeros(1, dtype=PASS)
        self._turn = threading.Lock()
        self.pace = Pace()
        if threads > 1:
            self.control[_STOP] = 1
            # Compiled here, not by a worker: who waits for a worker to end may hold the compiler's lock.
            serve(self._address, 0, self.model, self.run)
            self.control[_STOP] = 0
        workers: list[threading.Thread] = []
        weakref.finalize(self, _stop, self.control, self._turn, workers)
        for number in range(1, threads):
            arguments = (serve, self.control, number, self.model, self.run)
            worker = threading.Thread(target=_work, args=arguments, daemon=True, name=f"betoken-{number}")
            worker.start()
            workers.append(worker)

    def forward(
        self,
        model: NDArray[np.void],
        run: NDArray[np.void],
        logits: NDArray[np.float32],
        hidden: NDArray[np.float32],
        size: int,
        alone: dict[int, float],
    ) -> None:
        """One forward pass into `logits` [wanted, V] and `hidden` [layers, nodes, H]; returns when all are done.

        `size`, `alone`: see `Pace.learn`; every model has its own. One pass at a time: targets may share a crew.
        """
        with self._turn:
            threads = 1 if self.pace.left or self.control[_STOP] else self.threads
            began = perf_counter()
            naps = self._lead(self._address, threads, model, run, logits, hidden, self.model, self.run)
            if self.threads > 1:
                # While one thread is missing, each of the others sleeps.
                naps //= self.threads - 1
                seconds = perf_counter() - began
                self.pace.learn(together=threads > 1, naps=naps, seconds=seconds, size=size, alone=alone)


_crews: weakref.WeakValueDictionary[int, Crew] = weakref.WeakValueDictionary()
"""By size, as long as a target holds them."""


def crew(threads: int) -> Crew:
    """The process's crew of this size. Targets share it, since they never run at the same time."""
    size = max(1, min(threads, MAX_THREADS))
    found = _crews.get(size)
    if found is None:
        found = _crews[size] = Crew(size)
    return found


def _work(
    serve: Callable[..., None], control: NDArray[np.int64], number: int, model: NDArray[np.void], run: NDArray[np.void]
) -> None:
    """A worker's life. It holds the memory that it reads."""
    serve(control.ctypes.data, number, model, run)


def _stop(control: NDArray[np.int64], turn: threading.Lock, workers: Sequence[threading.Thread]) -> None:
    """End the workers after the pass that runs, if one does, and wait for them; later passes run alone."""
    with turn:
        control[_STOP] = 1
    for worker in workers:
        if worker is not threading.current_thread():  # which may be what collects the crew
            worker.join()
