"""The one training loop: AdamW, warm-up, accumulation, autocast, checkpoints; the same result after a kill.

Which rows a step takes and which random numbers it uses follow from the seed and the step alone, and a checkpoint holds
weights and moments as they are: on a CPU with the same threads, a continued run is bit-identical to one that was never
interrupted.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from betoken.errors import InputError
from betoken.training import checkpoint
from betoken.training.draws import batch_of

Tell = Callable[[int, int, str], None]
"""Told (steps done, steps in all, what to show)."""


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """How long and how fast to learn."""

    steps: int
    batch: int = 8
    """Rows of a micro-batch."""
    accumulate: int = 1
    """Micro-batches of a step."""
    lr: float = 1e-4
    warmup: int = 100
    """Steps over which the learning rate rises from 0."""
    schedule: Literal["constant", "cosine"] = "constant"
    """After the warm-up: as it is, or falling to a tenth along half a cosine."""
    weight_decay: float = 0.0
    clip: float = 1.0
    """Greatest norm of a step's gradient."""
    autocast: Literal["none", "bfloat16"] = "none"
    """The dtype of matrix products in the forward pass; weights and moments stay float32."""
    checkpoint_every: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.warmup < 0 or not 0.0 <= self.weight_decay < math.inf:
            raise InputError("warmup and weight_decay must not be negative, and weight_decay must be finite")
        if not (0.0 < self.lr < math.inf and self.clip > 0):
            raise InputError("lr and clip must be above 0, and lr must be finite")
        if self.schedule not in ("constant", "cosine"):
            raise InputError(f"unknown schedule {self.schedule!r}; choose constant or cosine")
        if self.autocast not in ("none", "bfloat16"):
            raise InputError(f"unknown autocast {self.autocast!r}; choose none or bfloat16")

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        if self.schedule == "constant":
            return self.lr
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * (0.1 + 0.45 * (1.0 + math.cos(math.pi * done)))


class Loss(NamedTuple):
    """What a micro-batch gives."""

    value: torch.Tensor
    """Scalar to descend."""
    metrics: tuple[float, ...]
    """One number a name of `Task.metrics`, for people."""


class Task(Protocol):
    """What is learnt."""

    metrics: tuple[str, ...]
    rows: int
    """Rows of training data."""
    device: torch.device

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """What is trained, by name, in a fixed order."""

    def loss(self, rows: np.ndarray, step: int, part: int) -> Loss:
        """Loss of some rows; random numbers by `step` and `part`, the micro-batch."""


@dataclass(frozen=True)
class Fitted:
    """A run that came to its end."""

    columns: tuple[str, ...]
    history: list[list[float]]
    """One row a step: loss, then the task's metrics."""


def fit(task: Task, settings: FitSettings, out: Path, configuration: Mapping[str, Any], tell: Tell) -> Fitted:
    """Train, or go on where the checkpoint in `out` is.

    `configuration`: everything that the result depends on besides `settings`; a checkpoint of another one is refused.
    Ctrl-C finishes the step, writes a checkpoint and raises KeyboardInterrupt. Raises InputError for a loss that is
    no number and for a disk that cannot be written.
    """
    weights = task.parameters()
    optimizer = torch.optim.AdamW(
        weights.values(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=settings.weight_decay
    )
    columns = ("loss", *task.metrics)
    whole = {**configuration, **asdict(settings)}
    del whole["checkpoint_every"]  # how often it is saved changes nothing
    progress = checkpoint.load(out, columns, weights, optimizer, whole)
    history = progress.history if progress else []
    begun = len(history)
    with _gentle() as interrupted:
        for step in range(begun, settings.steps):
            history.append(_step(task, settings, step, optimizer))
            tell(step + 1, settings.steps, _told(columns, history))
            last = step + 1 == settings.steps
            if last or interrupted() or (step + 1) % settings.checkpoint_every == 0:
                now = checkpoint.Progress(step + 1, history)
                checkpoint.save(out, now, columns, weights, optimizer, whole)
            if interrupted():
                raise KeyboardInterrupt
    return Fitted(columns, history)


def _step(task: Task, settings: FitSettings, step: int, optimizer: torch.optim.AdamW) -> list[float]:
    """One update. Returns the means over its micro-batches."""
    sums = np.zeros(1 + len(task.metrics))
    optimizer.zero_grad(set_to_none=True)
    for part in range(settings.accumulate):
        rows = batch_of(settings.seed, task.rows, settings.batch, step * settings.accumulate + part)
        with _precision(settings, task.device):
            loss = task.loss(rows, step, part)
        torch.autograd.backward(loss.value / settings.accumulate)
        sums += [float(loss.value.detach()), *loss.metrics]
    means: list[float] = (sums / settings.accumulate).tolist()
    if not math.isfinite(means[0]):
        raise InputError(f"the loss is {means[0]} at step {step + 1}: lower --lr or raise --warmup, and start again")
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    nn.utils.clip_grad_norm_(weights, settings.clip)
    for group in optimizer.param_groups:
        group["lr"] = settings.rate(step)
    optimizer.step()
    return means


def _precision(settings: FitSettings, device: torch.device) -> AbstractContextManager[Any]:
    if settings.autocast == "none":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def _told(columns: tuple[str, ...], history: list[list[float]], over: int = 20) -> str:
    """Means of the last steps."""
    recent = np.nanmean(np.array(history[-over:]), axis=0)
    return ", ".join(f"{name} {value:.3f}" for name, value in zip(columns, recent, strict=True))


@contextmanager
def _gentle() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C only sets what the yielded function says; the second interrupts as usual."""
    asked = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
