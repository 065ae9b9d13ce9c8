"""PTP's claims on grid trips, reproduced from nothing: one function, one folder, one table.

Two claims of arXiv 2512.21323 (section 5, taxi trips) on data whose entropy is known (`trips`):

1. C-PTP trained from scratch is as good a model of the data as an autoregressive one of the same size (paper:
   perplexity 19.88 against 19.81).
2. A student that reads the random numbers is right for many more tokens in a row than one that does not (paper: 44
   tokens against 10).

And what claim 2 is for: how many tokens a forward pass the students bring in decoding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from betoken.bench.subject import Loader, ModelSpec, load_subject
from betoken.errors import InputError
from betoken.models.student import EmbeddingKind, Objective
from betoken.models.tokenizer import Tokenizer
from betoken.training import jobs, trips
from betoken.training.ptp import PtpSettings
from betoken.training.reproduce.decoding import Answers, Decoded, decode, decoding_table, ptp_ways
from betoken.training.reproduce.stages import (
    SIZES,
    Lessons,
    Stages,
    check_heads,
    check_window,
    publish,
    write_json,
    write_texts,
)

Claim = Literal["perplexity", "runs"]
"""The two claims, in the order above."""
ScratchObjective = Literal["scratch", "c-ptp"]
TAUGHT: dict[Objective, str] = {"o-ptp": "O-PTP", "independent": "independent"}
"""Objective, which is its folder's name too -> what tables call its student."""
SEQUENCE = trips.LENGTH + 2
"""Begin, the cells, end."""
FIRST_CELL = "m"
"""The middle of the grid, where decoded trips start."""


@dataclass(frozen=True, kw_only=True)
class GridSettings(Lessons):
    """Sizes of a teacher of grid trips and its students, fixed before anything is trained."""

    trips: int = 20_000
    validation: int = 256
    hidden_size: int = 64
    intermediate_size: int = 192
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    batch: int = 32
    lr: float = 2e-3
    lm_steps: int = 1500
    student_steps: int = 1500
    window: int = 32
    """Nodes of a student's branch."""
    cuts: int = 4

    def __post_init__(self) -> None:
        check_window("window", self.window, SEQUENCE)
        check_heads(self.hidden_size, self.num_attention_heads)
        self.fit(self.lm_steps, 0)


@dataclass(frozen=True, kw_only=True)
class TripSettings(GridSettings):
    """The same with a model from scratch, and decoding."""

    claims: tuple[Claim, ...] = get_args(Claim)
    """Those to test; nothing is trained for the others."""
    scratch_steps: int = 1200
    scratch_window: int = SEQUENCE - 1
    """Nodes of a scratch model's branch. Less than a whole trip can start anywhere in it."""
    scratch_cuts: int = 1
    scratch_objective: ScratchObjective = "scratch"
    """How it gets its numbers: `scratch` from the law of its own branches, node after node; `c-ptp` from that of its
    own reading of the text, which it has before and which tells the nodes whole laws, in one pass."""
    embedding: EmbeddingKind = "interpolated"
    decoded: int = 20
    """Trips that each way of decoding continues from `FIRST_CELL`, with seeds 0, 1, ..."""
    nodes: tuple[int, ...] = (16, 32, 64)
    """Node counts that each way of decoding is tried with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.claims or not set(self.claims) <= set(get_args(Claim)):
            raise InputError(
                f"claims must be some of {', '.join(get_args(Claim))}, not {', '.join(self.claims) or 'none'}"
            )
        check_window("scratch_window", self.scratch_window, SEQUENCE)
        if self.scratch_objective not in get_args(ScratchObjective):
            allowed = " or ".join(get_args(ScratchObjective))
            raise InputError(f"scratch_objective must be {allowed}, not {self.scratch_objective}")
        if self.decoded < 1 or not self.nodes or min(self.nodes) < 1:
            raise InputError("decoded trips and nodes must be at least 1")


@dataclass(frozen=True)
class TripFindings:
    """What one seed gave."""

    seed: int
    entropy: float
    """Perplexity of the generator itself over the tokens after the begin token: no model can be below it."""
    autoregressive: float
    """Perplexity of the autoregressive model on held-out trips."""
    scratch: float | None = None
    """Perplexity of the branches of C-PTP from scratch, each number drawn in its token's interval; None if untested."""
    same_tokens: float | None = None
    """Perplexity of the autoregressive model on the tokens of those branches."""
    by_node: tuple[tuple[float, float], ...] = ()
    """The two by node, autoregressive first: the first node follows no number, the last one all of its branch."""
    scratch_text: float | None = None
    """Perplexity of the same weights as an ordinary model."""
    right_in_a_row: dict[str, float] = field(default_factory=dict)
    """Objective -> right tokens in a row from a branch's first node, on held-out trips."""
    decoded: tuple[Decoded, ...] = ()
    """What the students brought in decoding, a line a way."""


def grid_stages(settings: GridSettings, seed: int, folder: Path, bar: jobs.Bar) -> Stages:
    """Write the trips of a seed (one a line, a letter a cell) and the models' sizes; returns what trains on them."""
    write_json(folder / "sizes.json", {name: getattr(settings, name) for name in SIZES})
    held = trips.trips(settings.validation, seed=seed, first=settings.trips)
    for name, found in (("train", trips.trips(settings.trips, seed=seed)), ("validation", held)):
        write_texts(folder / f"{name}.jsonl", ["".join(chr(ord("a") + cell) for cell in one) for one in found.tolist()])
    data = jobs.DataSettings(
        source=str(folder / "train.jsonl"),
        validation=str(folder / "validation.jsonl"),
        validation_rows=settings.validation,
        sequence=SEQUENCE,
        pack=False,
    )
    return Stages(folder, "characters", data, bar)


def reproduce_trips(
    settings: TripSettings, seed: int, out: Path, bar: jobs.Bar, load: Loader = load_subject
) -> TripFindings:
    """Train and measure everything for one seed in `out`/seed-N; the same call goes on where a killed one stopped.

    `load` loads what decodes. Raises InputError for a disk that cannot be written, or a folder of other settings.
    """
    folder = out / f"seed-{seed}"
    stages = grid_stages(settings, seed, folder, bar)
    sizes = folder / "sizes.json"
    lm = stages.language_model("lm", sizes, settings.fit(settings.lm_steps, seed))
    per_token = trips.entropy() * trips.LENGTH / (SEQUENCE - 1)  # the end token is certain
    runs: dict[str, float] = {}
    decoded: tuple[Decoded, ...] = ()
    if "runs" in settings.claims:
        for objective in TAUGHT:
            fit = settings.fit(settings.student_steps, seed)
            trained = stages.student(objective, "lm", settings.ptp(objective, seed), settings.embedding, fit)
            runs[objective] = trained.validation.mean_run
        decoded = _decode(settings, folder, bar, load)
    found = TripFindings(seed, math.exp(per_token), lm, right_in_a_row=runs, decoded=decoded)
    if "perplexity" in settings.claims:
        found = _from_scratch(settings, found, stages, sizes)
    write_json(folder / "findings.json", asdict(found))
    return found


def _from_scratch(settings: TripSettings, found: TripFindings, stages: Stages, sizes: Path) -> TripFindings:
    """What was found, with C-PTP from scratch beside the autoregressive model on the same tokens."""
    seed = found.seed
    objective, fit = settings.scratch_objective, settings.fit(settings.scratch_steps, seed)
    ptp = PtpSettings(objective=objective, window=settings.scratch_window, cuts=settings.scratch_cuts, seed=seed)
    trained = stages.from_scratch("scratch", sizes, ptp, settings.embedding, fit)
    plain = stages.guesses("lm", "lm", ptp)
    by_node = zip(plain.node_losses, trained.validation.node_losses, strict=True)
    return replace(
        found,
        scratch=trained.validation.perplexity,
        scratch_text=trained.text_perplexity,
        same_tokens=math.exp(plain.loss),
        by_node=tuple((math.exp(one), math.exp(other)) for one, other in by_node),
    )


def _decode(settings: TripSettings, folder: Path, bar: jobs.Bar, load: Loader) -> tuple[Decoded, ...]:
    """Trips from one cell, by both students in every mode."""
    lm = folder / "lm"
    prompt = Tokenizer.from_folder(lm).encode(FIRST_CELL)
    ways = ptp_ways({told: folder / objective for objective, told in TAUGHT.items()}, settings.nodes)
    spec = ModelSpec(str(lm), dtype="float32", in_torch=True)
    answers = Answers([prompt] * settings.decoded, trips.LENGTH - 1, settings.law)
    return decode(spec, ways, answers, folder / "decoding.jsonl", bar, load)


def publish_trips(settings: TripSettings, found: Sequence[TripFindings], out: Path) -> str:
    """Write `trips.md` and where its numbers come from; returns the text. Raises InputError for a full disk."""
    decoded = [one.decoded for one in found if one.decoded]
    parts = [trips_table(found), *_nodes_table(found), *([decoding_table(decoded)] if decoded else [])]
    if settings.scratch_objective == "c-ptp" and "perplexity" in settings.claims:
        parts.append("C-PTP from scratch: numbers and laws from its own reading of the text (scratch_objective c-ptp).")
    text = "\n\n".join(parts)
    return publish(out / "trips.md", text, asdict(settings))


def trips_table(found: Sequence[TripFindings]) -> str:
    """What was trained as a Markdown table, a row a seed; a claim that was not tested has dashes."""
    head = (
        "| seed | entropy | autoregressive | on the branches' tokens | C-PTP from scratch | difference | its text "
        "| O-PTP | independent | ratio |"
    )
    lines = [head, "| --: |" + " --: |" * 9]
    for one in found:
        perplexities, runs = "- | - | - | -", "- | - | -"
        if one.scratch and one.same_tokens and one.scratch_text:
            difference = _difference(one.same_tokens, one.scratch)
            perplexities = f"{one.same_tokens:.3f} | {one.scratch:.3f} | {difference} | {one.scratch_text:.3f}"
        if one.right_in_a_row:
            taught, blind = one.right_in_a_row["o-ptp"], one.right_in_a_row["independent"]
            runs = f"{taught:.2f} | {blind:.2f} | " + (f"{taught / blind:.1f}x" if blind else "-")
        lines.append(f"| {one.seed} | {one.entropy:.3f} | {one.autoregressive:.3f} | {perplexities} | {runs} |")
    return "\n".join(lines)


def _nodes_table(found: Sequence[TripFindings]) -> list[str]:
    """Perplexities by node, autoregressive and from scratch, as a table; none if that claim was not tested."""
    tested = [one for one in found if one.by_node]
    if not tested:
        return []
    columns = " | ".join(f"seed {one.seed}" for one in tested)
    lines = [f"| node of a branch | {columns} |", "| --: |" + " --: |" * len(tested)]
    for node in range(len(tested[0].by_node)):
        pairs = [one.by_node[node] for one in tested]
        cells = [f"{plain:.3f}, {scratch:.3f} ({_difference(plain, scratch)})" for plain, scratch in pairs]
        lines.append(f"| {node + 1} | {' | '.join(cells)} |")
    return ["\n".join(lines)]


def _difference(plain: float, scratch: float) -> str:
    return f"{100.0 * (scratch / plain - 1.0):+.1f} %"
