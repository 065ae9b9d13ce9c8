"""From the result file of `betoken bench never-slower` to a table by drafter and the prompts that remain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from betoken.bench import metrics
from betoken.bench.floor import KIND, ratios
from betoken.bench.provenance import read_provenance
from betoken.bench.results import Record, read_results
from betoken.bench.subject import PLAIN
from betoken.bench.tables import origin, table
from betoken.errors import InputError


@dataclass(frozen=True)
class Found:
    """A drafter on one prompt."""

    question: str
    temperature: float
    tokens: int
    first: float
    """Speed over plain decoding's, measured once."""
    again: tuple[float, ...]
    """The same in each pair of the repetition; empty where the first was not below the floor."""
    nodes_per_forward: float
    acceptance_length: float

    @property
    def ratio(self) -> float:
        """What counts: the median of the repetition, or the first where there was none."""
        return metrics.median(self.again) if self.again else self.first


@dataclass(frozen=True)
class Drafter:
    """A drafter over all prompts."""

    method: str
    prompts: tuple[Found, ...]
    unsettled: int
    """Prompts below the floor whose repetition is not complete."""
    unequal: int
    """Prompts whose text differs from plain decoding's."""

    def share(self, floor: float) -> float:
        """Of prompts at or above the floor."""
        return sum(one.ratio >= floor for one in self.prompts) / len(self.prompts)

    def share_at_once(self, floor: float) -> float:
        """The same, of first measurements alone."""
        return sum(one.first >= floor for one in self.prompts) / len(self.prompts)

    def slow(self, floor: float) -> list[Found]:
        """The prompts that remain below, the slowest first."""
        return sorted((one for one in self.prompts if one.ratio < floor), key=lambda one: one.ratio)


@dataclass(frozen=True)
class FloorReport:
    """All drafters of a result file."""

    settings: Record
    provenance: Record
    drafters: tuple[Drafter, ...]

    @property
    def floor(self) -> float:
        """Least speed, as a share of plain decoding's."""
        return float(self.settings["floor"])

    def describe(self) -> dict[str, Any]:
        """The report as JSON values."""
        told = asdict(self)
        for drafter, values in zip(self.drafters, told["drafters"], strict=True):
            values["share"], values["share_at_once"] = drafter.share(self.floor), drafter.share_at_once(self.floor)
            for one, value in zip(drafter.prompts, values["prompts"], strict=True):
                value["ratio"] = one.ratio
        return told


def read_floor(path: Path) -> FloorReport:
    """Raises InputError if the file is no result of `betoken bench never-slower`, or empty."""
    settings, records = read_results(path)
    if settings.get("kind") != KIND:
        raise InputError(f"{path}: not a result of betoken bench never-slower")
    if not records:
        raise InputError(f"{path}: nothing has been measured yet")
    labels = [method["label"] for method in settings["methods"] if method["label"] != PLAIN]
    drafters = [_drafter(label, records, settings) for label in labels]
    return FloorReport(settings, read_provenance(path), tuple(one for one in drafters if one.prompts))


def _drafter(label: str, records: Sequence[Record], settings: Record) -> Drafter:
    first: dict[str, tuple[Record, Record]] = {}
    again: dict[str, list[float]] = {}
    unequal: set[str] = set()
    for record in records:
        runs = {run["method"]: run for run in record["runs"]}
        if label not in runs:
            continue
        question = record["question"]
        if runs[label]["sha256"] != runs[PLAIN]["sha256"]:
            unequal.add(question)
        if record["round"] == 0:
            first[question] = (record, runs[label])
        else:
            again.setdefault(question, []).append(ratios(record)[label])
    prompts = [
        Found(
            question,
            record["temperature"],
            run["tokens"],
            ratios(record)[label],
            tuple(again.get(question, ())),
            run["nodes_per_forward"],
            run["tokens"] / run["forwards"],
        )
        for question, (record, run) in first.items()
    ]
    open_ones = sum(one.first < settings["floor"] and len(one.again) < settings["repeats"] for one in prompts)
    return Drafter(label, tuple(prompts), open_ones, len(unequal))


def told(report: FloorReport) -> str:
    """The table by drafter and the prompts that remain below the floor, in Markdown."""
    settings, floor = report.settings, report.floor
    what = (
        f"{settings['prompts']} prompts of {', '.join(settings['suites'])} at T = {settings['temperature']:g} and "
        f"{settings['adversarial']} adversarial ones at T = {settings['hot']:g}, up to {settings['max_new_tokens']} "
        f"new tokens, seed {settings['seed']}, each request cold; tokens a second without prefill, over those of plain "
        f"decoding beside it. Below {floor:g}: median of {settings['repeats']} pairs."
    )
    head = ["drafter", f"at least {floor:g}x", "at once", "median", "worst", "worst at once", "repeated", "same text"]
    rows = []
    for drafter in report.drafters:
        prompts = drafter.prompts
        rows.append(
            [
                drafter.method,
                f"**{drafter.share(floor):.1%}** of {len(prompts)}",
                f"{drafter.share_at_once(floor):.1%}",
                f"{metrics.median([one.ratio for one in prompts]):.3f}x",
                f"{min(one.ratio for one in prompts):.3f}x",
                f"{min(one.first for one in prompts):.3f}x",
                f"{sum(bool(one.again) for one in prompts)}",
                f"{len(prompts) - drafter.unequal} of {len(prompts)}",
            ]
        )
    name = settings["model"]["model"]
    parts = [f"**{name}: never slower?**", " ".join([what, *origin(report.provenance)]), table(head, rows)]
    parts += [_remaining(report)]
    unsettled = sum(drafter.unsettled for drafter in report.drafters)
    if unsettled:
        parts.append(f"Unfinished: {unsettled} repetitions are not complete; the same command continues.")
    return "\n\n".join(parts) + "\n"


def _remaining(report: FloorReport) -> str:
    slow = [(drafter.method, one) for drafter in report.drafters for one in drafter.slow(report.floor)]
    if not slow:
        return f"No prompt remains below {report.floor:g}x."
    rows = [
        [
            method,
            one.question,
            f"{one.temperature:g}",
            f"{one.ratio:.3f}x",
            " ".join(f"{again:.2f}" for again in (one.first, *one.again)),
            f"{one.tokens}",
            f"{one.acceptance_length:.2f}",
            f"{one.nodes_per_forward:.1f}",
        ]
        for method, one in slow
    ]
    head = ["remain below", "prompt", "T", "median", "once, then pairs", "tokens", "acceptance length", "nodes"]
    return table(head, rows)
