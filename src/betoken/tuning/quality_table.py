"""Strict against relaxed decoding for several suites and drafters: an audit of quality for each pair, and one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from betoken.bench.results import Progress
from betoken.bench.subject import Loader, Method, ModelSpec, Subject
from betoken.errors import InputError
from betoken.tuning.quality import QualitySettings, run_quality
from betoken.tuning.quality_report import AccuracyReport, QualityReport


class Cell(NamedTuple):
    """One suite with one drafter."""

    suite: str
    drafter: str
    report: QualityReport

    def describe(self) -> dict[str, Any]:
        """The cell as JSON values."""
        return {"suite": self.suite, "drafter": self.drafter, **self.report.describe()}


def cells_of(asked: QualitySettings, methods: Sequence[Method]) -> list[QualitySettings]:
    """An audit for each method and each suite of `asked`. Drafters without need of it do without the draft model.

    Raises InputError where a method needs a draft model and none is named.
    """
    cells = []
    for method in methods:
        if method.drafter == "draft-model" and asked.model.draft_model is None:
            raise InputError("drafter draft-model needs a second, smaller model: name it with --draft-model")
        model = asked.model if method.drafter == "draft-model" else asked.model.alone()
        cells += [replace(asked, model=model, method=method, suites=(path,)) for path in asked.suites]
    return cells


def run_table(
    cells: Sequence[QualitySettings], load: Loader, folder: Path, progress: Progress = lambda done, total, what: None
) -> Iterator[Cell]:
    """Audit each, with a result file of its own in `folder`, which the same settings continue.

    Raises InputError as `run_quality` does.
    """
    keeping = _Keeping(load)
    for settings in cells:
        suite, drafter = settings.suites[0].stem, settings.method.label

        def tell(done: int, total: int, what: str, where: str = f"{suite}, {drafter}") -> None:
            progress(done, total, f"{where}: {what}")

        yield Cell(suite, drafter, run_quality(settings, keeping, folder / f"{suite}-{drafter}.jsonl", tell))


def markdown(cells: Sequence[Cell]) -> str:
    """The table: a line for each cell."""
    head = (
        "suite",
        "drafter",
        "answers",
        "throughput, relaxed / strict",
        "tokens a forward, strict",
        "relaxed",
        "% right, strict",
        "relaxed",
        "difference in points (95%)",
        "verdict",
        "% of answers that differ",
        "length",
    )
    lines = [head, ["---"] * len(head), *(_line(cell) for cell in cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(cell: Cell) -> Sequence[str]:
    [one] = cell.report.suites
    speed = cell.report.speed
    unsteady = "" if speed.steady else f" (drift {100 * speed.drift:+.1f} %: do not trust it)"
    return (
        cell.suite,
        cell.drafter,
        str(one.answers),
        f"{speed.ratio:.3f}{unsteady}",
        f"{one.strict_tokens_per_forward:.3f}",
        f"{one.relaxed_tokens_per_forward:.3f}",
        *_accuracy(one),
        f"{100 * one.differing / one.answers:.1f}",
        f"{100 * one.length_change:+.1f} %",
    )


def _accuracy(one: AccuracyReport) -> Sequence[str]:
    if not one.judged:
        return "", "", "", one.verdict
    low, high = (100 * end for end in one.interval)
    shares = (f"{100 * right / one.answers:.1f}" for right in (one.strict_correct, one.relaxed_correct))
    return *shares, f"{100 * one.difference:+.1f} ({low:+.1f} to {high:+.1f})", one.verdict


@dataclass
class _Keeping:
    """A loader that keeps what it loaded last: cells follow each other with the same models."""

    load: Loader
    _last: tuple[ModelSpec, Subject] | None = field(default=None, init=False)

    def __call__(self, spec: ModelSpec) -> Subject:
        if self._last is None or self._last[0] != spec:
            self._last = None  # so that two models never fill the memory
            self._last = spec, self.load(spec)
        return self._last[1]
