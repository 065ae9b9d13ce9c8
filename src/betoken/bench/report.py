"""From a result file to numbers: how much faster each drafter is than plain decoding, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from betoken.bench import metrics
from betoken.bench.provenance import read_provenance
from betoken.bench.results import Record, read_results
from betoken.bench.subject import PLAIN
from betoken.errors import InputError

OVERALL = "all"
FLOOR = 0.97
"""Prompts on which a drafter is slower than this share of plain decoding's speed are named."""


@dataclass(frozen=True)
class Pair:
    """One drafter against plain decoding on the same questions: medians of each over the repeats."""

    category: str
    questions: tuple[str, ...]
    """Ids, one unless requests are decoded together."""
    speedup: float
    """Tokens a second without prefill, over plain's."""
    speedup_with_prefill: float
    plain: Record
    own: Record
    equal: int
    """Answers with the same tokens as plain decoding, in every repeat."""
    answers: int


@dataclass(frozen=True)
class Line:
    """What a drafter did in one category, or over all."""

    model: str
    temperature: float
    batch: int
    method: str
    category: str
    count: int
    """Prompts, or batches of prompts."""
    speedup: float
    """Median over the prompts of tokens a second, over plain's; prefill apart."""
    low: float
    high: float
    """95% bootstrap interval of that median."""
    speedup_with_prefill: float
    geometric_mean: float
    total_ratio: float
    """All tokens over all decode seconds, over plain's: the ratio of total times where the answers are equal."""
    slowest: float
    """The smallest speed-up of a prompt."""
    below: int
    """Prompts with a speed-up below `FLOOR`."""
    tokens_per_s: float
    plain_tokens_per_s: float
    acceptance_length: float
    nodes_per_forward: float
    outside_share: float
    """Part of the decode time outside the target's forward pass."""
    first_token_s: float
    """Median seconds from admission to the first token, prefill included."""
    plain_first_token_s: float
    token_p50_s: float
    """Median over the prompts of a prompt's median time of a token: its step's, over the tokens the step gave."""
    plain_token_p50_s: float
    token_p95_s: float
    plain_token_p95_s: float
    peak_bytes: int
    """Most memory that the process held."""
    equal: int
    answers: int
    lossless: bool
    exact: bool
    """Whether plain decoding's tokens are promised."""
    warm: bool


@dataclass(frozen=True)
class Slow:
    """A prompt, or batch of prompts, on which a drafter stayed below `FLOOR` of plain decoding's speed."""

    model: str
    temperature: float
    batch: int
    method: str
    questions: tuple[str, ...]
    speedup: float


@dataclass(frozen=True)
class Report:
    """All lines of a result file, category by category and over all, with what they come from."""

    settings: Record
    provenance: Record
    lines: tuple[Line, ...]
    below: tuple[Slow, ...]
    """The slowest first."""
    missing: int
    """Measurements of a drafter that have no plain counterpart yet."""

    def describe(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)


def read_report(path: Path) -> Report:
    """Raises InputError if the file is no benchmark result, or holds nothing to compare yet."""
    settings, records = read_results(path)
    if "methods" not in settings or any("method" not in record for record in records):
        raise InputError(f"{path}: not a result of betoken bench")
    cells: dict[Cell, list[Pair]] = {}
    plain, missing = _grouped(record for record in records if record["method"] == PLAIN), 0
    for key, own in _grouped(record for record in records if record["method"] != PLAIN).items():
        if key[:4] not in {other[:4] for other in plain}:
            missing += len(own)
            continue
        cells.setdefault((*key[:3], key[4]), []).append(_pair(plain[(*key[:4], PLAIN)], own))
    if not cells:
        raise InputError(f"{path}: no drafter has been measured beside plain decoding yet")
    lines = [line for cell, pairs in cells.items() for line in _lines(cell, pairs)]
    return Report(settings, read_provenance(path), tuple(lines), _below(cells), missing)


Cell = tuple[str, float, int, str]
Key = tuple[str, float, int, tuple[str, ...], str]


def _grouped(records: Iterable[Record]) -> dict[Key, list[Record]]:
    """Repeats of the same measurement together."""
    groups: dict[Key, list[Record]] = {}
    for record in records:
        ids = tuple(row["question"] for row in record["rows"])
        key = (record["model"], record["temperature"], record["batch"], ids, record["method"])
        groups.setdefault(key, []).append(record)
    return groups


def _pair(plain: Sequence[Record], own: Sequence[Record]) -> Pair:
    def ratio(name: str) -> float:
        return metrics.median([one[name] for one in own]) / metrics.median([one[name] for one in plain])

    reference = [row["sha256"] for row in plain[0]["rows"]]
    equal = sum(
        all(record["rows"][index]["sha256"] == sha for record in [*own, *plain]) for index, sha in enumerate(reference)
    )
    return Pair(
        category=own[0]["category"],
        questions=tuple(row["question"] for row in own[0]["rows"]),
        speedup=ratio("tokens_per_s"),
        speedup_with_prefill=ratio("tokens_per_s_with_prefill"),
        plain=_typical(plain),
        own=_typical(own),
        equal=equal,
        answers=len(reference),
    )


def _typical(repeats: Sequence[Record]) -> Record:
    """The repeat of median speed (the slower middle one of an even number)."""
    return sorted(repeats, key=lambda record: record["tokens_per_s"])[(len(repeats) - 1) // 2]


def _below(cells: Mapping[Cell, Sequence[Pair]]) -> tuple[Slow, ...]:
    slow = [
        Slow(*cell, pair.questions, pair.speedup)
        for cell, pairs in cells.items()
        for pair in pairs
        if pair.speedup < FLOOR
    ]
    return tuple(sorted(slow, key=lambda one: one.speedup))


def _lines(cell: Cell, pairs: Sequence[Pair]) -> list[Line]:
    categories: dict[str, list[Pair]] = {OVERALL: list(pairs)}
    for pair in pairs:
        categories.setdefault(pair.category, []).append(pair)
    return [_line(cell, category, chosen) for category, chosen in categories.items()]


def _line(cell: Cell, category: str, pairs: Sequence[Pair]) -> Line:
    model, temperature, batch, method = cell
    speedups = [pair.speedup for pair in pairs]
    own = [pair.own for pair in pairs]
    rows = [row for record in own for row in record["rows"]]
    forwards = sum(row["forwards"] for row in rows)
    interval = metrics.bootstrap(speedups)
    plain = [pair.plain for pair in pairs]
    speed, plain_speed = _rate(own), _rate(plain)

    def middle(name: str, records: Sequence[Record] = own) -> float:
        return metrics.median([record[name] for record in records])

    return Line(
        model=model,
        temperature=temperature,
        batch=batch,
        method=method,
        category=category,
        count=len(pairs),
        speedup=metrics.median(speedups),
        low=interval.low,
        high=interval.high,
        speedup_with_prefill=metrics.median([pair.speedup_with_prefill for pair in pairs]),
        geometric_mean=metrics.geometric_mean(speedups),
        total_ratio=speed / plain_speed,
        slowest=min(speedups),
        below=sum(speedup < FLOOR for speedup in speedups),
        tokens_per_s=speed,
        plain_tokens_per_s=plain_speed,
        acceptance_length=sum(row["tokens"] for row in rows) / forwards,
        nodes_per_forward=math.fsum(row["nodes_per_forward"] * row["forwards"] for row in rows) / forwards,
        outside_share=_sum(own, "outside_s") / _sum(own, "decode_s"),
        first_token_s=middle("first_token_s"),
        plain_first_token_s=middle("first_token_s", plain),
        token_p50_s=middle("token_p50_s"),
        plain_token_p50_s=middle("token_p50_s", plain),
        token_p95_s=middle("token_p95_s"),
        plain_token_p95_s=middle("token_p95_s", plain),
        peak_bytes=max(record["peak_bytes"] for record in own),
        equal=sum(pair.equal for pair in pairs),
        answers=sum(pair.answers for pair in pairs),
        lossless=all(record["lossless"] for record in own),
        exact=all(record["exact"] for record in own),
        warm=any(record["warm"] for record in own),
    )


def _rate(records: Sequence[Record]) -> float:
    return _sum(records, "tokens") / _sum(records, "decode_s")


def _sum(records: Sequence[Record], name: str) -> float:
    return math.fsum(record[name] for record in records)


def settings_of(report: Report) -> list[tuple[str, float, int]]:
    """Model, temperature and batch of each table, in order."""
    return list(dict.fromkeys((line.model, line.temperature, line.batch) for line in report.lines))


def lines_of(report: Report, model: str, temperature: float, batch: int) -> list[Line]:
    """The lines of one table."""
    return [one for one in report.lines if (one.model, one.temperature, one.batch) == (model, temperature, batch)]
