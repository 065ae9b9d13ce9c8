"""PTP on Python source, from nothing: a teacher, two students of it, and the ordinary way to draft, a smaller model.

The claim (arXiv 2512.21323, section 5): on code, a student that reads the random numbers is right for more tokens in a
row than one that predicts them independently (paper: 5.1 against 2.5, a 1.1-billion-parameter model). Here: a model of
a few million parameters and the source of Python's standard library, which every interpreter brings along.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from betoken.bench.subject import Loader, ModelSpec, load_subject
from betoken.errors import InputError
from betoken.models.save import write_tokenizer
from betoken.models.student import EmbeddingKind
from betoken.models.tokenizer import Tokenizer
from betoken.state import SamplingSettings
from betoken.training import checkpoint, jobs
from betoken.training.data import read_documents, texts_of
from betoken.training.reproduce.charts import draw_decoding
from betoken.training.reproduce.corpus import read_corpus, standard_library
from betoken.training.reproduce.decoding import (
    Answers,
    Decoded,
    decode,
    decoding_table,
    draft_model_way,
    ptp_ways,
    together,
)
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
from betoken.training.reproduce.trips import TAUGHT
from betoken.training.vocabulary import make_tokenizer

TEACHER, DRAFTER = "teacher", "ar-drafter"
TOLD: dict[str, str] = {TEACHER: "teacher", DRAFTER: "AR drafter", **{str(name): told for name, told in TAUGHT.items()}}
"""Folder -> what tables call what is in it."""


@dataclass(frozen=True, kw_only=True)
class PythonSettings(Lessons):
    """Sizes, fixed before anything is trained and written to `settings.json` first of all."""

    source: str | None = None
    """Folder of .py files; None is the standard library of the running interpreter."""
    validation_share: float = 0.08
    """Of the files."""
    validation_rows: int = 384
    """Most rows of `context` tokens to validate with."""
    vocabulary: int = 1024
    """Tokens of a byte-level BPE trained on the training files."""
    context: int = 256
    """Tokens of a row, and the most that the models see."""
    hidden_size: int = 192
    """Of the teacher and its students; the inner layer of every MLP is three times as wide."""
    num_hidden_layers: int = 4
    drafter_hidden_size: int = 96
    drafter_layers: int = 2
    num_attention_heads: int = 4
    batch: int = 16
    """Rows of a step."""
    lr: float = 1e-3
    teacher_steps: int = 2000
    drafter_steps: int = 2000
    student_steps: int = 1500
    window: int = 16
    """Nodes of a student's branch."""
    cuts: int = 8
    embedding: EmbeddingKind = "interpolated"
    temperature: float = 1.0
    """Of the sampling law that students learn and all answers are drawn from, as are the next two."""
    top_k: int = 0
    top_p: float = 1.0
    prompts: int = 24
    """Each from another validation file: the tokens around its middle."""
    prompt_tokens: int = 96
    max_new_tokens: int = 64
    nodes: int = 16
    """Most nodes of a forward pass in decoding."""

    def __post_init__(self) -> None:
        check_heads(self.hidden_size, self.num_attention_heads)
        check_heads(self.drafter_hidden_size, self.num_attention_heads)
        check_window("window", self.window, self.context)
        self.fit(self.teacher_steps, 0)
        if self.law.greedy:
            raise InputError("temperature must be above 0: a student that reads random numbers is compared")
        if not 0.0 < self.validation_share < 1.0:
            raise InputError(f"validation_share must lie between 0 and 1, not {self.validation_share}")
        if self.nodes < 2 or min(self.prompts, self.prompt_tokens, self.max_new_tokens) < 1:
            raise InputError("prompts and tokens must be at least 1, nodes at least 2")
        needed = self.prompt_tokens + self.max_new_tokens + self.nodes
        if needed > self.context:
            raise InputError(f"prompt, answer and nodes need a context of {needed}, not {self.context}")

    @property
    def law(self) -> SamplingSettings:
        """See `temperature`."""
        return SamplingSettings(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)

    def sizes(self, hidden_size: int, layers: int) -> dict[str, int]:
        """A model's config."""
        return dict(zip(SIZES, (hidden_size, 3 * hidden_size, layers, self.num_attention_heads), strict=True))


@dataclass(frozen=True)
class PythonFindings:
    """What one seed gave."""

    seed: int
    perplexity: dict[str, float]
    """Of the teacher and the small model on validation files, by folder."""
    right_in_a_row: dict[str, float]
    """Of the small model (a call a token) and both students (one call), by folder: right tokens in a row."""
    decoded: tuple[Decoded, ...]
    """What each brought in decoding, a line a way."""


def reproduce_python(
    settings: PythonSettings, seed: int, out: Path, bar: jobs.Bar, load: Loader = load_subject
) -> PythonFindings:
    """Train and measure everything for one seed in `out`/seed-N; the same call goes on where a killed one stopped.

    Source and vocabulary stand in `out` itself, for all seeds. `load` loads what decodes. Raises InputError for a disk
    that cannot be written, a folder of other settings or another interpreter's source, and too little of it.
    """
    stages = _prepare(settings, out, out / f"seed-{seed}", bar)
    prompts = _prompts(settings, stages)
    folder, perplexity, runs = stages.folder, {}, {}
    trained = (
        (TEACHER, settings.sizes(settings.hidden_size, settings.num_hidden_layers), settings.teacher_steps),
        (DRAFTER, settings.sizes(settings.drafter_hidden_size, settings.drafter_layers), settings.drafter_steps),
    )
    for name, sizes, steps in trained:
        write_json(folder / f"{name}.sizes.json", sizes)
        perplexity[name] = stages.language_model(name, folder / f"{name}.sizes.json", settings.fit(steps, seed))
    runs[DRAFTER] = stages.guesses(TEACHER, DRAFTER, settings.ptp("o-ptp", seed)).mean_run
    for objective in TAUGHT:
        fit, ptp = settings.fit(settings.student_steps, seed), settings.ptp(objective, seed)
        runs[objective] = stages.student(objective, TEACHER, ptp, settings.embedding, fit).validation.mean_run
    students = {told: folder / objective for objective, told in TAUGHT.items()}
    ways = [*ptp_ways(students, [settings.nodes]), draft_model_way(TOLD[DRAFTER], settings.nodes)]
    spec = ModelSpec(str(folder / TEACHER), str(folder / DRAFTER), dtype="float32", in_torch=True)
    answers = Answers(prompts, settings.max_new_tokens, settings.law)
    decoded = decode(spec, ways, answers, folder / "decoding.jsonl", bar, load)
    found = PythonFindings(seed, perplexity, runs, decoded)
    write_json(folder / "findings.json", asdict(found))
    return found


def publish_python(settings: PythonSettings, found: Sequence[PythonFindings], out: Path) -> str:
    """Write `python.md`, `python.png` and where their numbers come from; returns the text.

    Raises InputError for a full disk, and without matplotlib.
    """
    decoded = [one.decoded for one in found]
    text = publish(out / "python.md", f"{python_table(found)}\n\n{decoding_table(decoded)}", asdict(settings))
    draw_decoding(together(decoded), "Drafting Python source", out / "python.png")
    return text


def python_table(found: Sequence[PythonFindings]) -> str:
    """What was trained as a Markdown table, a row a seed and model."""
    lines = [
        "| seed | model | perplexity | right tokens in a row | calls for it |",
        "| --: | --- | --: | --: | --- |",
    ]
    for one in found:
        for name, told in TOLD.items():
            perplexity = f"{one.perplexity[name]:.3f}" if name in one.perplexity else "-"
            run = f"{one.right_in_a_row[name]:.2f}" if name in one.right_in_a_row else "-"
            calls = "-" if name == TEACHER else "one a token" if name == DRAFTER else "one"
            lines.append(f"| {one.seed} | {told} | {perplexity} | {run} | {calls} |")
    return "\n".join(lines)


def _prepare(settings: PythonSettings, out: Path, folder: Path, bar: jobs.Bar) -> Stages:
    """Settings, source and vocabulary on disk. Raises InputError if those of an earlier call are others."""
    corpus = read_corpus(Path(settings.source) if settings.source else standard_library(), settings.validation_share)
    fixed = {**asdict(settings), "files": {"training": len(corpus.training), "validation": len(corpus.validation)}}
    if (out / "settings.json").is_file():
        checkpoint.check_same(out / "settings.json", _read_json(out / "settings.json"), fixed)
    write_json(out / "settings.json", fixed)
    write_texts(out / "train.jsonl", list(corpus.training.values()))
    write_texts(out / "validation.jsonl", list(corpus.validation.values()))
    write_json(out / "files.json", {"training": list(corpus.training), "validation": list(corpus.validation)})
    data = jobs.DataSettings(
        source=str(out / "train.jsonl"),
        validation=str(out / "validation.jsonl"),
        validation_rows=settings.validation_rows,
        sequence=settings.context,
    )
    return Stages(folder, str(_vocabulary(settings, out, list(corpus.training.values()))), data, bar)


def _vocabulary(settings: PythonSettings, out: Path, texts: Sequence[str]) -> Path:
    """The folder of the tokenizer, trained the first time; it is whole or not there."""
    place, fresh = out / "tokenizer", out / ".tokenizer.tmp"
    if not place.is_dir():
        with checkpoint.writing(fresh):
            write_tokenizer(fresh, make_tokenizer(f"bpe:{settings.vocabulary}", texts), settings.context)
            fresh.replace(place)
    return place


def _prompts(settings: PythonSettings, stages: Stages) -> list[list[int]]:
    """The tokens around the middle of each of the first validation files that are long enough."""
    tokenizer = Tokenizer.from_folder(Path(stages.tokenizer))
    found = []
    for text in texts_of(read_documents(str(stages.data.validation))):
        tokens = tokenizer.encode(text)
        start = (len(tokens) - settings.prompt_tokens) // 2
        if start > 0:
            found.append(tokens[start : start + settings.prompt_tokens])
    if len(found) < settings.prompts:
        raise InputError(
            f"{settings.prompts} prompts are wanted, and {len(found)} validation files are longer than "
            f"{settings.prompt_tokens} tokens: ask for fewer, or give more source"
        )
    return found[: settings.prompts]


def _read_json(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); remove it to start again") from None
    return dict(found)
