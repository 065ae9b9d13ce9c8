"""The progress bar of commands that take long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@contextmanager
def counting(resume: str | None) -> Iterator[Callable[[int, int, str], None]]:
    """A bar with the time left on standard error, fed with (done, total, what comes next).

    `resume`: said after an interruption, with how far it came; None where nothing of it is kept. Draws nothing where
    standard error is no terminal.
    """
    console = Console(stderr=True)
    bar = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", start=False, total=None)
    reached = (0, 0)

    def tell(done: int, total: int, what: str) -> None:
        nonlocal reached
        if reached == (0, 0):
            bar.reset(task, total=total, completed=done)  # what an earlier run did says nothing about the speed
        reached = (done, total)
        bar.update(task, completed=done, total=total, description=what)

    try:
        with bar:
            yield tell
    except KeyboardInterrupt:
        if resume is not None:
            console.print(f"{reached[0]} of {reached[1]} done and kept; {resume}", highlight=False, soft_wrap=True)
        raise
