"""What commands that decode many answers, and score them, have in common."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from betoken.bench.evaluation import Report


def warn_of_gaps(suites: Sequence[Path]) -> None:
    """Say on standard error what the kernel does not keep generated code from, before any runs."""
    from betoken.bench.scorers.sandbox import gaps
    from betoken.bench.suites import read_labelled

    if any(read_labelled(path)[0].format in ("humaneval", "mbpp") for path in suites) and (gap := gaps()):
        typer.echo(f"note: {gap}", err=True)


@contextmanager
def result_file(out: Path | None) -> Iterator[tuple[Path, str]]:
    """Where answers are kept, for this run only without `out`, and how an interrupted run goes on."""
    if out is not None:
        yield out, f"the same command continues {out}"
        typer.echo(f"{out}", err=True)
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch) / "results.jsonl", "use --out FILE to be able to continue"


def right(report: Report) -> str:
    """How many answers of a suite are right, in words."""
    low, high = report.interval
    return (
        f"{100 * report.accuracy:.1f} % right ({report.correct} of {report.answers}, 95% interval {100 * low:.1f} to "
        f"{100 * high:.1f})"
    )


def unextracted(report: Report) -> str:
    """What is added where answers were not found."""
    return f"; no answer found in {report.unextracted}" if report.unextracted else ""
