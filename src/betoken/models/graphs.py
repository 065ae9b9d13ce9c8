"""Recording the work of a pass on a device, to run it again at the cost of one launch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol
from weakref import WeakSet

import torch

from betoken.models.batch import Outputs

log = logging.getLogger("betoken")


class Recorded(NamedTuple):
    """Work that can be run again."""

    replay: Callable[[], None]
    """Runs it on the same tensors."""
    outputs: Outputs
    """Where each replay leaves its results."""


class Capture(Protocol):
    """A way to record work."""

    usable: bool
    """False once recording has failed: no other work will be recorded then."""

    def record(self, work: Callable[[], Outputs]) -> Recorded | None:
        """Record `work`, which was run once before; nothing is computed until it is replayed.

        `work` must read and write tensors that stay where they are, and ask the device for no number. None if it
        does not keep to that, or there is no memory.
        """


class CudaGraphs:
    """Records CUDA graphs. Those that are alive share one memory pool: their passes never overlap."""

    def __init__(self, device: torch.device) -> None:
        """For models on this CUDA device."""
        self.usable = True
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._alive: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def record(self, work: Callable[[], Outputs]) -> Recorded | None:
        """See `Capture.record`; a failure is told once."""
        graph = torch.cuda.CUDAGraph()
        # A pool ends with its last graph, so it is asked of one that lives.
        pool = next((other.pool() for other in self._alive), None)
        try:
            with (
                torch.cuda.device(self._device),
                torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                outputs = work()
        except RuntimeError as error:  # models of other people may do anything in their forward
            self.usable = False
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            log.warning("no CUDA graphs: this model's pass cannot be recorded (%s)", reason)
            return None
        self._alive.add(graph)
        return Recorded(graph.replay, outputs)


def capture_for(device: str, wanted: bool = True) -> Capture | None:
    """How passes on this device are recorded; None on a CPU, or where that is not wanted."""
    return CudaGraphs(torch.device(device)) if wanted and device.startswith("cuda") else None
