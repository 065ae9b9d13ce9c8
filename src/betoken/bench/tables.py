"""A benchmark report as tables in Markdown, which also read well on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from betoken.bench.report import FLOOR, OVERALL, Line, Report, lines_of, settings_of
from betoken.bench.results import Record

_NAMED = 5
"""Slow prompts that are named for each drafter; all of them in wide reports."""

Columns = Mapping[str, Callable[[Line], str]]

MAIN: Columns = {
    "drafter": lambda line: line.method + _marks(line),
    "speed-up, median [95%]": lambda line: f"**{line.speedup:.2f}x** [{line.low:.2f}, {line.high:.2f}]",
    "slowest prompt": lambda line: f"{line.slowest:.2f}x",
    f"below {FLOOR}x": lambda line: f"{line.below} of {line.count}",
    "tokens/s (plain)": lambda line: f"{line.tokens_per_s:.1f} ({line.plain_tokens_per_s:.1f})",
    "acceptance length": lambda line: f"{line.acceptance_length:.2f}",
    "same text": lambda line: f"{line.equal} of {line.answers}" if line.exact else "not promised",
}
"""What everybody looks at."""

DETAILS: Columns = {
    "drafter": lambda line: line.method,
    "speed-up with prefill": lambda line: f"{line.speedup_with_prefill:.2f}x",
    "geometric mean": lambda line: f"{line.geometric_mean:.2f}x",
    "total time": lambda line: f"{line.total_ratio:.2f}x",
    "first token, ms (plain)": lambda line: _ms(line.first_token_s, line.plain_first_token_s),
    "token p50, ms (plain)": lambda line: _ms(line.token_p50_s, line.plain_token_p50_s),
    "token p95, ms (plain)": lambda line: _ms(line.token_p95_s, line.plain_token_p95_s),
    "nodes per forward": lambda line: f"{line.nodes_per_forward:.1f}",
    "outside the target": lambda line: f"{line.outside_share:.1%}",
    "peak memory, GB": lambda line: f"{line.peak_bytes / 1e9:.2f}",
}
"""The rest, for wide reports."""


def markdown(report: Report, *, wide: bool = False) -> str:
    """For each model, temperature and batch: a table over all prompts, the slow prompts, and a table by category.

    `wide` adds times per token, overhead and memory, and names every slow prompt.
    """
    parts = [_origin(report)]
    for model, temperature, batch in settings_of(report):
        chosen = lines_of(report, model, temperature, batch)
        overall = [line for line in chosen if line.category == OVERALL]
        how = "greedy" if temperature == 0 else f"T = {temperature:g}"
        parts.append(f"**{model}, {how}, batch {batch}**")
        parts.append(_told(MAIN, overall))
        if wide:
            parts.append(_told(DETAILS, overall))
        parts += _slow(report, overall, None if wide else _NAMED)
        categories = list(dict.fromkeys(line.category for line in chosen if line.category != OVERALL))
        if len(categories) > 1:
            parts.append(_by_category(chosen, categories))
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are aligned to the right."""
    ruler = ["---"] + ["--:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ruler, *rows])


def origin(provenance: Record) -> list[str]:
    """Sentences about machine, versions, commit and date, from a provenance file; none without one."""
    sessions = provenance.get("sessions", [])
    if not sessions:
        return []
    last = sessions[-1]
    machine: dict[str, Any] = last["machine"]
    told = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads; torch "
        f"{last['versions']['torch']}; {_short(last['commit'])}; {last['date'][:10]}."
    ]
    for name in ("machine", "commit", "versions"):
        if any(one[name] != last[name] for one in sessions):
            told.append(f"Measured in {len(sessions)} sessions whose {name} differs.")
    return told


def named(ids: Sequence[str]) -> str:
    """`a`, or `a +3` for a batch of four."""
    return ids[0] if len(ids) == 1 else f"{ids[0]} +{len(ids) - 1}"


def _told(columns: Columns, lines: Sequence[Line]) -> str:
    return table(list(columns), [[tell(line) for tell in columns.values()] for line in lines])


def _slow(report: Report, lines: Sequence[Line], most: int | None) -> list[str]:
    """One paragraph that names the slow prompts of each drafter; none if there are none."""
    told = []
    for line in lines:
        cell = (line.model, line.temperature, line.batch, line.method)
        slow = [one for one in report.below if (one.model, one.temperature, one.batch, one.method) == cell]
        if not slow:
            continue
        shown = ", ".join(f"{named(one.questions)} {one.speedup:.2f}x" for one in slow[:most])
        more = f" and {len(slow) - most} more" if most is not None and len(slow) > most else ""
        told.append(f"{line.method}: {shown}{more}")
    repeats = report.settings.get("repeats", 1)
    how = "measured once" if repeats == 1 else f"medians of {repeats}"
    return [f"Below {FLOOR}x of plain decoding ({how}): {'; '.join(told)}."] if told else []


def _by_category(lines: Sequence[Line], categories: Sequence[str]) -> str:
    methods = list(dict.fromkeys(line.method for line in lines))
    found = {(line.method, line.category): line for line in lines}
    rows = []
    for category in categories:
        own = [found.get((method, category)) for method in methods]
        count = max(line.count for line in own if line)
        told = [f"{line.speedup:.2f}x [{line.low:.2f}, {line.high:.2f}]" if line else "-" for line in own]
        rows.append([category, str(count), *told])
    return table(["speed-up by category", "n", *methods], rows)


def _marks(line: Line) -> str:
    marks = [] if line.lossless else ["lossy"]
    marks += ["warm"] if line.warm else []
    return f" ({', '.join(marks)})" if marks else ""


def _ms(own: float, plain: float) -> str:
    return f"{1000 * own:.1f} ({1000 * plain:.1f})"


def _law(settings: Mapping[str, Any]) -> list[str]:
    """What limited the sampling; older results have no such settings."""
    top_k, top_p = settings.get("top_k", 0), settings.get("top_p", 1.0)
    return [*([f"top-k {top_k}"] if top_k else []), *([f"top-p {top_p:g}"] if top_p < 1.0 else [])]


def _origin(report: Report) -> str:
    """One paragraph: what was asked, where and when it ran."""
    settings = report.settings
    asked = ", ".join(f"{name} ({count} a category)" for name, count in settings["suites"].items())
    told = [
        f"{settings['questions']} prompts of {asked}, up to {settings['max_new_tokens']} new tokens, seed "
        f"{settings['seed']}, each request cold; plain decoding and the drafters in alternation."
    ]
    law = _law(settings) if any(settings.get("temperatures", ())) else []
    told += [f"Sampled with {' and '.join(law)}."] if law else []
    told += origin(report.provenance)
    if report.missing:
        told.append(f"Unfinished: {report.missing} measurements have no plain counterpart yet.")
    return " ".join(told)


def _short(commit: str | None) -> str:
    """`commit 0123abcde`, and whether the tree had changes besides."""
    head, plus, _ = (commit or "unknown").partition("+")
    return f"commit {head[:9]}{' with changes' if plus else ''}"
