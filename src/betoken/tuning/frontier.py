"""Tokens a forward against accuracy: the verifier asd over a grid of budgets and gates, on one suite with one drafter.

Every point answers the same questions, and so does strict decoding: the same code with a budget of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from betoken.bench.evaluate import EvalSettings, answers
from betoken.bench.metrics import Interval, paired, wilson
from betoken.bench.provenance import write_provenance
from betoken.bench.results import Progress, Record, ResultFile
from betoken.bench.subject import Loader
from betoken.bench.suites import Labelled
from betoken.errors import InputError


class Setting(NamedTuple):
    """Where on the grid."""

    budget: float
    gate: float | None
    """None of strict decoding, which has no gate."""

    def __str__(self) -> str:
        """For people."""
        return "strict" if self.gate is None else f"budget {self.budget:g}, gate {self.gate:g}"


STRICT = Setting(0.0, None)


@dataclass(frozen=True)
class FrontierSettings:
    """What is swept: the same settings continue a result file, others need another."""

    judged: EvalSettings
    """One suite, and a method with verifier asd, whose budget and gate are left open."""
    budgets: tuple[float, ...]
    gates: tuple[float, ...]

    def __post_init__(self) -> None:
        method = self.judged.method
        if method.verifier != "asd":
            raise InputError(f"the frontier is one of verifier asd, not {method.verifier}")
        for name in ("budget", "gate", "config"):
            if name in method.verifier_settings:
                raise InputError(f"verifier.{name} is swept here: leave it out")
        if len(self.judged.suites) != 1:
            raise InputError(f"a frontier is one suite's: name one, not {len(self.judged.suites)}")
        for name, values in (("budgets", self.budgets), ("gates", self.gates)):
            if not values or min(values) <= 0 or len(set(values)) < len(values):
                raise InputError(f"{name}: at least one number above 0, none twice; strict decoding is always there")
        for setting in self.grid[1:]:
            if self.at(setting).method.verifying.lossless:
                raise InputError(f"{setting} with these verifier settings is strict: there is nothing to sweep")

    @property
    def grid(self) -> list[Setting]:
        """Strict decoding, then every pair."""
        return [STRICT, *(Setting(budget, gate) for gate in self.gates for budget in self.budgets)]

    def at(self, setting: Setting) -> EvalSettings:
        """The evaluation of one point; strict decoding is any of them with a budget of 0 for each request."""
        budget, gate = self.grid[1] if setting == STRICT else setting
        method = self.judged.method
        own = {**method.verifier_settings, "budget": budget, "gate": gate}
        return replace(self.judged, method=replace(method, verifier_settings=own))

    def describe(self, labelled: Sequence[Labelled]) -> dict[str, Any]:
        """The settings as JSON values."""
        return self.judged.describe(labelled) | {"budgets": list(self.budgets), "gates": list(self.gates)}


@dataclass(frozen=True)
class Point:
    """How one setting fared."""

    budget: float
    gate: float | None
    """None of strict decoding."""
    answers: int
    correct: int
    interval: Interval
    """95% Wilson interval of the accuracy."""
    difference: float
    """Accuracy minus that of strict decoding."""
    difference_interval: Interval
    """Its 95% interval, from the same questions under both."""
    tokens_per_forward: float
    mean_tokens: float
    """Mean length of an answer."""
    differing: int
    """Answers whose tokens are not those of strict decoding."""
    exceptions: int
    """Tokens that strict decoding would not have committed."""
    regret: float
    """Their regret in all."""
    best: bool
    """Whether no other setting has both a greater accuracy and more tokens a forward (or one equal, one greater)."""

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.answers

    def describe(self) -> dict[str, Any]:
        """The point as JSON values."""
        told = asdict(self) | {"accuracy": self.accuracy, "interval": list(self.interval)}
        return told | {"difference_interval": list(self.difference_interval)}


def run_frontier(
    settings: FrontierSettings, load: Loader, out: Path, progress: Progress = lambda done, total, what: None
) -> list[Point]:
    """Answer what `out` does not hold yet, and report every point, strict decoding first.

    An interruption loses the answers under way, nothing else. Raises InputError as `run_eval` does.
    """
    labelled = settings.judged.questions()
    told = settings.describe(labelled)
    total = len(settings.grid) * len(labelled)
    with ResultFile(out, told) as results:
        if len(results.records) < total:
            write_provenance(out, told)
            progress(len(results.records), total, f"loading {settings.judged.model.label}")
            subject = load(settings.judged.model.fit_for([settings.judged.method]))
            for setting in settings.grid:
                done = {record["question"] for record in _own(results.records, setting)}
                left = [(index, one) for index, one in enumerate(labelled) if one.question.id not in done]
                budget = 0.0 if setting == STRICT else None
                for record in answers(subject, settings.at(setting), left, budget=budget) if left else ():
                    results.append({**setting._asdict(), **record})
                    progress(len(results.records), total, str(setting))
        return points(results.records, settings.grid)


def points(records: Sequence[Record], grid: Sequence[Setting]) -> list[Point]:
    """A point for each setting of the grid, from a complete set of records."""
    strict = {one["question"]: one for one in _own(records, STRICT)}
    found = [_point(setting, _own(records, setting), strict) for setting in grid]
    return [replace(one, best=not any(_beats(other, one) for other in found)) for one in found]


def _own(records: Sequence[Record], setting: Setting) -> list[Record]:
    return [record for record in records if (record["budget"], record["gate"]) == setting]


def _point(setting: Setting, own: Sequence[Record], strict: dict[str, Record]) -> Point:
    lost = sum(strict[one["question"]]["correct"] and not one["correct"] for one in own)
    gained = sum(one["correct"] and not strict[one["question"]]["correct"] for one in own)
    correct, tokens = sum(one["correct"] for one in own), sum(one["tokens"] for one in own)
    return Point(
        budget=setting.budget,
        gate=setting.gate,
        answers=len(own),
        correct=correct,
        interval=wilson(correct, len(own)),
        difference=(gained - lost) / len(own),
        difference_interval=paired(lost, gained, len(own)),
        tokens_per_forward=tokens / sum(one["forwards"] for one in own),
        mean_tokens=tokens / len(own),
        differing=sum(one["sha256"] != strict[one["question"]]["sha256"] for one in own),
        exceptions=sum(one["exceptions"] for one in own),
        regret=sum(one["regret"] for one in own),
        best=False,
    )


def _beats(other: Point, one: Point) -> bool:
    left, right = (other.correct, other.tokens_per_forward), (one.correct, one.tokens_per_forward)
    return left[0] >= right[0] and left[1] >= right[1] and left != right
