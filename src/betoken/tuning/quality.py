"""What does a relaxed verifier cost, and what does it bring? Strict, relaxed, strict; then answers that are judged.

Both sides run the same code: strict is the same verifier with a budget of 0 for each request. Speed is measured at a
fixed length, so that nobody wins by stopping early; accuracy with answers that end by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from betoken.bench.evaluate import EvalSettings, answers
from betoken.bench.provenance import write_provenance
from betoken.bench.results import Progress, Record, ResultFile
from betoken.bench.subject import Loader, Method, ModelSpec, Subject
from betoken.bench.suites import Labelled, Question, draw
from betoken.bench.trial import measure
from betoken.decode import Request
from betoken.errors import InputError
from betoken.state import StopSettings
from betoken.tuning.quality_report import QualityReport, summarise

WARM_UP_TOKENS = 16


class Side(NamedTuple):
    """One pass of the protocol."""

    name: str
    budget: float | None
    """0 is strict, None leaves the verifier its own."""


STRICT, RELAXED = Side("strict", 0.0), Side("relaxed", None)
SPEED = (Side("strict 1", 0.0), RELAXED, Side("strict 2", 0.0))
"""B-C-B: the machine's drift shows in the difference of the two strict passes."""


@dataclass(frozen=True)
class QualitySettings:
    """What is audited: the same settings continue a result file, others need another."""

    model: ModelSpec
    method: Method
    """With a relaxed verifier."""
    suites: tuple[Path, ...]
    rows: int | None = None
    """Judged answers of each suite, drawn; None takes all."""
    max_new_tokens: int = 512
    """Most tokens of a judged answer."""
    batch: int = 8
    """Judged answers that are decoded together."""
    speed_rows: int = 8
    """Prompts of each timed pass, drawn evenly from all suites."""
    speed_batch: int = 1
    """Prompts that are decoded together in a timed pass."""
    fixed_tokens: int = 256
    """New tokens of each prompt in a timed pass, end tokens ignored."""
    margin: float = 0.01
    """How much lower an accuracy still counts as kept."""
    seed: int = 0
    raw: bool = False
    without: tuple[Path, ...] = ()
    """Files of `betoken calibrate asd` whose rows are left out."""

    def __post_init__(self) -> None:
        _ = self.judged
        if self.method.verifying.lossless:
            raise InputError(
                f"verifier {self.method.verifier} with these settings is lossless: there is nothing to audit"
            )
        if self.speed_rows < 1 or self.speed_batch < 1:
            raise InputError("speed rows and speed batch must be at least 1")
        if not 0 < self.margin < 1:
            raise InputError(f"margin must be between 0 and 1, not {self.margin}")
        StopSettings(self.fixed_tokens)

    @property
    def judged(self) -> EvalSettings:
        """The evaluation that both sides go through."""
        return EvalSettings(
            self.model,
            self.method,
            self.suites,
            rows=self.rows,
            max_new_tokens=self.max_new_tokens,
            seed=self.seed,
            batch=self.batch,
            raw=self.raw,
            without=self.without,
            unscored=True,
        )

    def timed(self, labelled: Sequence[Labelled]) -> list[tuple[Question, ...]]:
        """The prompts of a timed pass, in groups that are decoded together."""
        suites: dict[str, list[Question]] = {}
        for one in labelled:
            suites.setdefault(one.question.suite, []).append(one.question)
        drawn = draw(list(suites.values()), min(self.speed_rows, len(labelled)), self.seed + 1)
        return [tuple(drawn[at : at + self.speed_batch]) for at in range(0, len(drawn), self.speed_batch)]

    def describe(self, labelled: Sequence[Labelled]) -> dict[str, Any]:
        """The settings as JSON values."""
        own = asdict(self) | {"suites": None, "method": None, "without": None}
        return own | self.judged.describe(labelled)


def run_quality(
    settings: QualitySettings, load: Loader, out: Path, progress: Progress = lambda done, total, what: None
) -> QualityReport:
    """Measure and decode what `out` does not hold yet, and compare. Nothing else should run on the machine meanwhile.

    An interruption loses what was under way, nothing else; timed passes that were interrupted are less comparable.
    Raises InputError for rows that the settings were calibrated on, a result file of other settings, and for what the
    loader, the drafter or the verifier refuses.
    """
    labelled = settings.judged.questions()
    groups = settings.timed(labelled)
    told = settings.describe(labelled)
    total = len(SPEED) * len(groups) + 2 * len(labelled)
    with ResultFile(out, told) as results:
        if len(results.records) < total:
            write_provenance(out, told)
            progress(len(results.records), total, f"loading {settings.model.label}")
            subject = load(settings.model.fit_for([settings.method]))
            done = list(results.records)
            for record in chain(_timed(subject, settings, groups, done), _judged(subject, settings, labelled, done)):
                results.append(record)
                progress(len(results.records), total, f"{record['phase']}, {record['pass']}")
        return summarise(results.records, settings.margin)


def _timed(
    subject: Subject, settings: QualitySettings, groups: Sequence[Sequence[Question]], done: Sequence[Record]
) -> Iterator[Record]:
    have = {(record["pass"], record["group"]) for record in done if record["phase"] == "speed"}
    warm = False
    for side in SPEED:
        for number, group in enumerate(groups):
            if (side.name, number) in have:
                continue
            if not warm:
                for each in (STRICT, RELAXED):
                    _measure(subject, settings, groups[0], each, min(WARM_UP_TOKENS, settings.fixed_tokens))
                warm = True
            found = _measure(subject, settings, group, side, settings.fixed_tokens)
            yield {"phase": "speed", "pass": side.name, "group": number, **found}


def _measure(subject: Subject, settings: QualitySettings, group: Sequence[Question], side: Side, tokens: int) -> Record:
    stop = StopSettings(max_new_tokens=tokens, ignore_eos=True)
    prompts = [subject.prompt(question, raw=settings.raw) for question in group]
    requests = [Request(prompt, stop=stop, budget=side.budget) for prompt in prompts]
    return measure(settings.method.decoder(subject, len(group)), requests)


def _judged(
    subject: Subject, settings: QualitySettings, labelled: Sequence[Labelled], done: Sequence[Record]
) -> Iterator[Record]:
    for side in (STRICT, RELAXED):
        have = {r["question"] for r in done if r["phase"] == "accuracy" and r["pass"] == side.name}
        left = [(index, one) for index, one in enumerate(labelled) if one.question.id not in have]
        for record in answers(subject, settings.judged, left, budget=side.budget) if left else ():
            yield {"phase": "accuracy", "pass": side.name, **record}
