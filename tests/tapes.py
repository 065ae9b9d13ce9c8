"""A CUDA graph on a CPU: what a pass does to tensors is written down once and played back without its Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from betoken.models.batch import Outputs
from betoken.models.graphs import Recorded

_REFUSED = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Tape(TorchDispatchMode):
    """The operations of one pass, with the tensors they read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _REFUSED & set(func.tags) and not _by_number(func, args):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        result = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        """The same operations on the same memory, which results go back to."""
        for func, args, kwargs, result in self._calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _by_number(func: Any, args: Any) -> bool:
    """Whether this is indexing by numbers: by a mask, the result's shape would depend on data."""
    masks = (torch.bool, torch.uint8)
    return func is torch.ops.aten.index.Tensor and not any(one is not None and one.dtype in masks for one in args[1])


class Tapes:
    """A `Capture` that counts. As with CUDA graphs, recording leaves no result: outputs are nan until a replay."""

    def __init__(self) -> None:
        self.usable = True
        self.recorded = self.replayed = 0

    def record(self, work: Callable[[], Outputs]) -> Recorded | None:
        try:
            with Tape() as tape:
                outputs = work()
        except RuntimeError:
            self.usable = False
            return None
        for tensor in (outputs.last, *outputs.hidden.values()):
            tensor.fill_(torch.nan)
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            tape.replay()

        return Recorded(replay, outputs)
