"""Many requests through one decoder, up to so many at a time: rows come as others leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from betoken.decode import Decoder, Request
from betoken.state import Row


class Finished(NamedTuple):
    """A row that came to its end."""

    place: int
    """Of its request."""
    row: Row
    nodes: int
    """Nodes that were scored for it."""


def decode_all(decoder: Decoder, requests: Sequence[Request], batch: int) -> Iterator[Finished]:
    """Rows as they finish. Each leaves the decoder after the caller has looked at it; those not finished never do."""
    waiting = deque(enumerate(requests))
    active: dict[int, tuple[int, Row]] = {}
    nodes: dict[int, int] = {}
    while waiting or active:
        while waiting and len(active) < batch:
            index, request = waiting.popleft()
            row = decoder.admit(request)
            active[row.id], nodes[row.id] = (index, row), 0
        for advance in decoder.step():
            nodes[advance.row.id] += advance.nodes
        for index, row in [pair for pair in active.values() if pair[1].finish_reason is not None]:
            yield Finished(index, row, nodes.pop(row.id))
            decoder.release(row)
            del active[row.id]
