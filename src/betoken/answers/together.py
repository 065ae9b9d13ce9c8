"""Several answers at once: their drafts, judge passes and continuations share forward passes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from betoken.answers.method import AnswerResult, Event, Writing
from betoken.errors import BetokenError


class Together(Iterator[tuple[int, Event]]):
    """The events of several answers, each with the place of its question, as they come.

    An answer that has come to its judge waits until no other is drafted, so that all that wait are judged in the same
    forward passes and then go on side by side. Closing it ends the answers that are not finished.
    """

    def __init__(self, writings: Iterable[Writing], batch: int) -> None:
        """At most `batch` answers are under way at a time."""
        self._waiting = deque(enumerate(writings))
        self._batch = batch
        self._count = len(self._waiting)
        self._stages: dict[int, str] = {}
        """Kind of each answer's last event."""
        self._active: dict[int, Writing] = {}
        self._turns: deque[int] = deque()
        """Whose event is next in this round."""
        self._results: dict[int, AnswerResult] = {}

    @property
    def results(self) -> list[AnswerResult]:
        """All answers, in the order of the questions. Raises BetokenError before the events are read to their end."""
        if len(self._results) < self._count:
            raise BetokenError("the answers are not finished: read their events to their end first")
        return [self._results[place] for place in range(self._count)]

    @property
    def finished(self) -> dict[int, AnswerResult]:
        """Those that are finished so far, by place."""
        return self._results

    def __next__(self) -> tuple[int, Event]:
        """The next event; decodes until there is one."""
        while True:
            if not self._turns and not self._begin_round():
                raise StopIteration
            place = self._turns.popleft()
            try:
                event = next(self._active[place])
            except StopIteration as end:
                del self._active[place], self._stages[place]
                if end.value is not None:
                    self._results[place] = end.value
                continue
            except BaseException:
                self.close()
                raise
            self._stages[place] = event.kind
            return place, event

    def finish(self) -> list[AnswerResult]:
        """Write all answers to their end without reading events."""
        for _ in self:
            pass
        return self.results

    def close(self) -> None:
        """End the answers that are not finished; they have no results."""
        for writing in self._active.values():
            writing.close()
        self._active.clear()
        self._stages.clear()
        self._waiting.clear()
        self._turns.clear()

    def _begin_round(self) -> bool:
        """One event for each answer that need not wait; False when all are finished."""
        while self._waiting and len(self._active) < self._batch:
            place, writing = self._waiting.popleft()
            self._active[place], self._stages[place] = writing, "draft"
        drafting = "draft" in self._stages.values()
        self._turns.extend(place for place, stage in self._stages.items() if not (drafting and stage == "judging"))
        return bool(self._turns)
