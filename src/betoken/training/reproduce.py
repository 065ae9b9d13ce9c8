"""PTP's claims on grid trips, reproduced from nothing: one function, one folder, one table.

Two claims of arXiv 2512.21323 (section 5, taxi trips) on data whose entropy is known (`trips`):

1. C-PTP trained from scratch is as good a model of the data as an autoregressive one of the same size (paper:
   perplexity 19.88 against 19.81).
2. A student that reads the random numbers is right for many more tokens in a row than one that does not (paper: 44
   tokens against 10).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from betoken.bench import provenance
from betoken.errors import InputError
from betoken.models.student import EmbeddingKind, Objective
from betoken.training import jobs, trips
from betoken.training.fit import FitSettings
from betoken.training.ptp import PtpSettings

TAUGHT: tuple[Objective, ...] = ("o-ptp", "independent")
SEQUENCE = trips.LENGTH + 2
"""Begin, the cells, end."""


@dataclass(frozen=True, kw_only=True)
class TripSettings:
    """Sizes, fixed before anything is trained."""

    trips: int = 20_000
    validation: int = 256
    hidden_size: int = 64
    intermediate_size: int = 192
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    batch: int = 32
    lr: float = 2e-3
    lm_steps: int = 1500
    scratch_steps: int = 1200
    student_steps: int = 1500
    window: int = 32
    """Nodes of a student's branch."""
    cuts: int = 4
    scratch_window: int = SEQUENCE - 1
    """Nodes of a scratch model's branch. Less than a whole trip can start anywhere in it."""
    scratch_cuts: int = 1
    embedding: EmbeddingKind = "interpolated"

    def __post_init__(self) -> None:
        for name in ("window", "scratch_window"):
            if not 2 <= getattr(self, name) < SEQUENCE:
                raise InputError(f"{name} must be from 2 to {SEQUENCE - 1}, not {getattr(self, name)}")
        if self.hidden_size < 1 or self.hidden_size % self.num_attention_heads:
            raise InputError(f"hidden_size must be a multiple of the {self.num_attention_heads} attention heads")


@dataclass(frozen=True)
class TripFindings:
    """What one seed gave."""

    seed: int
    entropy: float
    """Perplexity of the generator itself over the tokens after the begin token: no model can be below it."""
    autoregressive: float
    """Perplexity of the autoregressive model on held-out trips."""
    scratch: float
    """Perplexity of the branches of C-PTP from scratch, each number drawn in its token's interval."""
    scratch_text: float
    """Perplexity of the same weights as an ordinary model."""
    right_in_a_row: dict[str, float] = field(default_factory=dict)
    """Objective -> right tokens in a row from a branch's first node, on held-out trips."""


def reproduce_trips(settings: TripSettings, seed: int, out: Path, bar: jobs.Bar) -> TripFindings:
    """Train and measure everything for one seed in `out`/seed-N; the same call goes on where a killed one stopped.

    Raises InputError for a disk that cannot be written, or a folder of other settings.
    """
    folder = out / f"seed-{seed}"
    made = _Runs(settings, seed, folder, bar)
    made.write_data()
    lm = made.language_model()
    runs: dict[str, float] = {}
    for objective in TAUGHT:
        runs[objective] = made.student(objective, settings.student_steps).validation.mean_run
    scratch = made.student("scratch", settings.scratch_steps)
    if scratch.validation.perplexity is None or scratch.text_perplexity is None:
        raise AssertionError("objective scratch measures perplexities")
    per_token = trips.entropy() * trips.LENGTH / (SEQUENCE - 1)  # the end token is certain
    found = TripFindings(seed, math.exp(per_token), lm, scratch.validation.perplexity, scratch.text_perplexity, runs)
    _write(folder / "findings.json", asdict(found))
    return found


@dataclass(frozen=True)
class _Runs:
    settings: TripSettings
    seed: int
    folder: Path
    bar: jobs.Bar

    @property
    def config(self) -> Path:
        return self.folder / "sizes.json"

    def write_data(self) -> None:
        """Trips for training and validation, one a line, a letter a cell; the model's sizes."""
        sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        _write(self.config, {name: getattr(self.settings, name) for name in sizes})
        held = trips.trips(self.settings.validation, seed=self.seed, first=self.settings.trips)
        for name, found in (("train", trips.trips(self.settings.trips, seed=self.seed)), ("validation", held)):
            lines = (json.dumps({"text": "".join(chr(ord("a") + cell) for cell in trip)}) for trip in found.tolist())
            provenance.replace(self.folder / f"{name}.jsonl", "\n".join(lines) + "\n")

    def language_model(self) -> float:
        """The autoregressive model: claim 1's opponent, claim 2's teacher."""
        model = jobs.ModelSettings(config=self.config, tokenizer="characters")
        return jobs.train_lm(model, self._data(), self._fit(self.settings.lm_steps), self.folder / "lm", self.bar)

    def student(self, objective: Objective, steps: int) -> jobs.Trained:
        """A student of the language model, or a model from scratch."""
        settings = self.settings
        scratch = objective == "scratch"
        if scratch:
            model = jobs.ModelSettings(config=self.config, tokenizer="characters")
        else:
            model = jobs.ModelSettings(model=str(self.folder / "lm"))
        return jobs.train_ptp(
            model,
            self._data(),
            jobs.StudentSettings(
                weights="same" if scratch else "full",
                embedding="none" if objective == "independent" else settings.embedding,
            ),
            PtpSettings(
                objective=objective,
                window=settings.scratch_window if scratch else settings.window,
                cuts=settings.scratch_cuts if scratch else settings.cuts,
                seed=self.seed,
            ),
            self._fit(steps),
            self.folder / objective,
            self.bar,
        )

    def _data(self) -> jobs.DataSettings:
        return jobs.DataSettings(
            source=str(self.folder / "train.jsonl"),
            validation=str(self.folder / "validation.jsonl"),
            validation_rows=self.settings.validation,
            sequence=SEQUENCE,
            pack=False,
        )

    def _fit(self, steps: int) -> FitSettings:
        settings = self.settings
        return FitSettings(steps=steps, batch=settings.batch, lr=settings.lr, schedule="cosine", seed=self.seed)


def publish(settings: TripSettings, found: Sequence[TripFindings], out: Path) -> str:
    """Write `trips.md` and where its numbers come from; returns the table. Raises InputError for a full disk."""
    result = out / "trips.md"
    provenance.write_provenance(result, asdict(settings))
    table = trips_table(found)
    provenance.replace(result, table + "\n")
    return table


def trips_table(found: Sequence[TripFindings]) -> str:
    """The findings as a Markdown table, a row a seed."""
    head = (
        "| seed | entropy | autoregressive | C-PTP from scratch | difference | its text | O-PTP | independent | ratio |"
    )
    lines = [head, "| --: |" + " --: |" * 8]
    for one in found:
        difference = 100.0 * (one.scratch / one.autoregressive - 1.0)
        taught, blind = one.right_in_a_row["o-ptp"], one.right_in_a_row["independent"]
        ratio = f"{taught / blind:.1f}x" if blind else "-"
        lines.append(
            f"| {one.seed} | {one.entropy:.3f} | {one.autoregressive:.3f} | {one.scratch:.3f} | {difference:+.1f} % "
            f"| {one.scratch_text:.3f} | {taught:.2f} | {blind:.2f} | {ratio} |"
        )
    return "\n".join(lines)


def _write(path: Path, value: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path.parent}: cannot be made ({error.strerror})") from None
    provenance.replace(path, json.dumps(value, indent=1) + "\n")
