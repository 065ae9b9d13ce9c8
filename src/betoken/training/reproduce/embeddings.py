"""The three ways in which a PTP student can read a random number, compared on grid trips with all else equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from betoken.models.student import EmbeddingKind
from betoken.training import jobs
from betoken.training.reproduce.stages import publish, write_json
from betoken.training.reproduce.trips import GridSettings, grid_stages

EMBEDDINGS: dict[EmbeddingKind, str] = {
    "bits": "bits of the float32",
    "digits": "binary digits",
    "interpolated": "between three vectors",
}


@dataclass(frozen=True)
class EmbeddingFindings:
    """What one seed gave."""

    seed: int
    right_in_a_row: dict[str, float] = field(default_factory=dict)
    """Kind of embedding -> right tokens in a row from a branch's first node, on held-out trips."""
    loss: dict[str, float] = field(default_factory=dict)
    """Kind of embedding -> mean cross-entropy of the nodes there, in nats."""


def reproduce_embeddings(settings: GridSettings, seed: int, out: Path, bar: jobs.Bar) -> EmbeddingFindings:
    """Train one teacher and an O-PTP student of each kind in `out`/seed-N; the same call continues a killed one.

    Raises InputError for a disk that cannot be written, or a folder of other settings.
    """
    folder = out / f"seed-{seed}"
    stages = grid_stages(settings, seed, folder, bar)
    stages.language_model("lm", folder / "sizes.json", settings.fit(settings.lm_steps, seed))
    found = EmbeddingFindings(seed)
    for kind in EMBEDDINGS:
        fit = settings.fit(settings.student_steps, seed)
        validation = stages.student(f"o-ptp-{kind}", "lm", settings.ptp("o-ptp", seed), kind, fit).validation
        found.right_in_a_row[kind], found.loss[kind] = validation.mean_run, validation.loss
    write_json(folder / "findings.json", asdict(found))
    return found


def publish_embeddings(settings: GridSettings, found: Sequence[EmbeddingFindings], out: Path) -> str:
    """Write `embeddings.md` and where its numbers come from; returns the table. Raises InputError for a full disk."""
    lines = [f"| seed | u embedding | right in a row, of {settings.window} | loss, nats |", "| --: | --- | --: | --: |"]
    lines += [
        f"| {one.seed} | {told} | {one.right_in_a_row[kind]:.2f} | {one.loss[kind]:.4f} |"
        for one in found
        for kind, told in EMBEDDINGS.items()
    ]
    return publish(out / "embeddings.md", "\n".join(lines), asdict(settings))
