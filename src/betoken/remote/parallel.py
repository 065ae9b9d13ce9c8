"""Several requests at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def side_by_side(calls: Sequence[Callable[[], T]], most: int) -> list[T]:
    """The results of all calls, at most `most` of them under way at a time; the first error is raised at once.

    The threads are daemons: one that hangs in a socket keeps neither Ctrl-C nor the end of the program waiting.
    """
    waiting: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[tuple[int, T | None, BaseException | None]] = SimpleQueue()
    stopped = False

    def work() -> None:
        while not stopped:
            try:
                place = waiting.get_nowait()
            except Empty:
                return
            try:
                done.put((place, calls[place](), None))
            except BaseException as error:
                done.put((place, None, error))

    for place in range(len(calls)):
        waiting.put(place)
    results: dict[int, T] = {}
    for _ in range(min(most, len(calls))):
        Thread(target=work, daemon=True).start()
    try:
        while len(results) < len(calls):
            place, result, error = done.get()
            if error is not None:
                raise error
            results[place] = result  # type: ignore[assignment] # no error: a result
    finally:
        stopped = True
    return [results[place] for place in range(len(calls))]
