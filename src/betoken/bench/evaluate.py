"""How many answers are right? Suites decoded in a batch, answer by answer, each judged as it ends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from betoken.bench.batching import decode_all
from betoken.bench.held_out import check_held_out, leave_out
from betoken.bench.metrics import Interval, wilson
from betoken.bench.provenance import write_provenance
from betoken.bench.results import Record, ResultFile
from betoken.bench.scorers import LETTERS_ASKED, SCORERS, Score, Scorer, choose_letter, letter_ids
from betoken.bench.subject import Loader, Method, ModelSpec, Subject
from betoken.bench.suites import Labelled, Question, draw, read_labelled
from betoken.bench.trial import digest
from betoken.decode import Request
from betoken.errors import InputError
from betoken.state import SamplingSettings, StopSettings
from betoken.tuning.audit import next_logits

Progress = Callable[[int, int, str], None]
"""Called with answers done, answers in all, and what comes next."""


@dataclass(frozen=True)
class EvalSettings:
    """What is asked: the same settings continue a result file, others need another."""

    model: ModelSpec
    method: Method
    suites: tuple[Path, ...]
    rows: int | None = None
    """Questions of each suite, drawn; None asks all."""
    max_new_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    """Of the draw, and of the rows: row i samples with seed + i."""
    batch: int = 8
    """Most rows that are decoded together."""
    raw: bool = False
    letters: Literal["text", "logits"] = "text"
    """MMLU: the letter that the answer gives, or the likeliest of four at the first token, without an answer."""
    without: tuple[Path, ...] = ()
    """Files of `betoken calibrate asd` whose rows are left out."""
    unscored: bool = False
    """Take suites without a scorer too: their answers are decoded and compared, not judged."""

    def __post_init__(self) -> None:
        self.method.check()
        SamplingSettings(self.temperature)
        StopSettings(self.max_new_tokens)
        if self.batch < 1:
            raise InputError(f"batch must be at least 1, not {self.batch}")
        if len({path.stem for path in self.suites}) < len(self.suites) or not self.suites:
            raise InputError("suites: name at least one, and none twice")
        if self.letters not in ("text", "logits"):
            raise InputError(f"letters must be text or logits, not {self.letters!r}")
        if self.temperature and self.method.verifier == "greedy":
            raise InputError(f"verifier greedy decodes at temperature 0, not {self.temperature:g}; use replay")

    def questions(self) -> list[Labelled]:
        """The rows of every suite. Raises InputError for a suite without a scorer, and for rows that chose settings."""
        found = [
            one
            for path in self.suites
            for one in chosen(path, self.rows, self.seed, self.without, unscored=self.unscored)
        ]
        check_held_out([self.method], [one.question for one in found])
        return found

    def describe(self, labelled: Sequence[Labelled]) -> dict[str, Any]:
        """The settings as JSON values, with a digest of the rows instead of where their files lie."""
        told = asdict(self)
        del told["unscored"]  # which rows there are says it
        told["suites"] = [path.stem for path in self.suites]
        told["without"] = len(self.without)
        told["method"] = self.method.describe()
        told["questions"] = len(labelled)
        told["questions_sha256"] = fingerprint_of(labelled)
        return told


def chosen(
    path: Path, rows: int | None, seed: int, without: Sequence[Path] = (), *, unscored: bool = False
) -> list[Labelled]:
    """Rows of one suite that can be scored: all, or `rows` drawn by seed, those of calibrations left out.

    Raises InputError for a suite without a scorer (unless `unscored`), or with fewer rows.
    """
    labelled = leave_out(read_labelled(path), without)
    if not labelled:
        raise InputError(f"{path.name}: every row was used in a calibration, so none is left")
    if labelled[0].format not in SCORERS and not unscored:
        raise InputError(f"{path.name}: {labelled[0].format} has no scorer; suites with one: {', '.join(SCORERS)}")
    own = {one.question.id: one for one in labelled}
    if rows is None:
        return labelled
    return [own[one.id] for one in draw([[one.question for one in labelled]], rows, seed)]


def fingerprint_of(labelled: Sequence[Labelled]) -> str:
    """A digest of rows, references included."""
    told = [[one.question.id, one.format, one.row] for one in labelled]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class SuiteReport:
    """How a suite went."""

    suite: str
    answers: int
    correct: int
    interval: Interval
    """95% Wilson interval of the accuracy."""
    tokens_per_forward: float
    """Committed tokens a target forward of a row: the acceptance length."""
    mean_tokens: float
    """Mean length of an answer."""
    cut: int
    """Answers that ended at the token limit or at the end of the context."""
    unextracted: int
    """Answers in which no answer was found."""
    exceptions: int
    """Tokens that plain decoding would not have committed."""
    regret: float
    """Their regret in all."""

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.answers

    def describe(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self) | {"interval": list(self.interval), "accuracy": self.accuracy}


def run_eval(
    settings: EvalSettings, load: Loader, out: Path, progress: Progress = lambda done, total, what: None
) -> list[SuiteReport]:
    """Answer what `out` does not hold yet, and report each suite over all its rows.

    An interruption loses the answers under way, nothing else. Raises InputError for a result file of other
    settings, and for what the loader, a drafter or a verifier refuses.
    """
    labelled = settings.questions()
    told = settings.describe(labelled)
    with ResultFile(out, told) as results:
        done = {record["question"] for record in results.records}
        left = [(index, one) for index, one in enumerate(labelled) if one.question.id not in done]
        if left:
            write_provenance(out, told)
            progress(len(results.records), len(labelled), f"loading {settings.model.label}")
            for record in answers(load(settings.model.fit_for([settings.method])), settings, left):
                results.append(record)
                progress(len(results.records), len(labelled), record["suite"])
        return [summarise(path.stem, results.records) for path in settings.suites]


def answers(
    subject: Subject, settings: EvalSettings, numbered: Sequence[tuple[int, Labelled]], *, budget: float | None = None
) -> Iterator[Record]:
    """Scored answers as they end; `numbered`: rows with their index in the draw. `budget` 0 is strict."""
    with ExitStack() as stack:
        scorers: dict[str, Scorer] = {
            name: stack.enter_context(closing(SCORERS[name]()))
            for name in SCORERS.keys() & {one.format for _, one in numbered}
        }
        if settings.letters == "logits":
            yield from _by_logits(subject, settings, [one for _, one in numbered if one.format == "mmlu"])
            numbered = [pair for pair in numbered if pair[1].format != "mmlu"]
        requests = [_request(subject, one.question, settings, index, budget) for index, one in numbered]
        decoder = settings.method.decoder(subject, settings.batch)
        for index, row, nodes in decode_all(decoder, requests, settings.batch):
            one = numbered[index][1]
            text = subject.codec.decode([token for token in row.new_tokens if token not in row.end_ids])
            scorer = scorers.get(one.format)
            yield {
                **_judged(one, text, scorer.score(one.row, text) if scorer else None),
                "tokens": row.generated,
                "sha256": digest(row.new_tokens),
                "finish_reason": row.finish_reason,
                "forwards": row.steps,
                "nodes": nodes,
                "exceptions": len(row.ledger.exceptions),
                "regret": row.ledger.spent,
            }


def summarise(suite: str, records: Sequence[Record]) -> SuiteReport:
    """The report of one suite from its records."""
    own = [record for record in records if record["suite"] == suite]
    correct = sum(record["correct"] for record in own)
    tokens = sum(record["tokens"] for record in own)
    return SuiteReport(
        suite=suite,
        answers=len(own),
        correct=correct,
        interval=wilson(correct, len(own)),
        tokens_per_forward=tokens / sum(record["forwards"] for record in own),
        mean_tokens=tokens / len(own),
        cut=sum(record["finish_reason"] in ("length", "context") for record in own),
        unextracted=sum(record["extracted"] is None for record in own),
        exceptions=sum(record["exceptions"] for record in own),
        regret=sum(record["regret"] for record in own),
    )


def _request(subject: Subject, question: Question, settings: EvalSettings, index: int, budget: float | None) -> Request:
    sampling = SamplingSettings(temperature=settings.temperature, seed=settings.seed + index)
    stop = StopSettings(max_new_tokens=settings.max_new_tokens)
    return Request(subject.prompt(question, raw=settings.raw), sampling, stop, budget=budget)


def _by_logits(subject: Subject, settings: EvalSettings, labelled: Sequence[Labelled]) -> Iterator[Record]:
    """MMLU without writing: one forward a question."""
    ids = letter_ids(subject.codec) if labelled else []
    for one in labelled:
        prompt = subject.prompt(_asks_for_letter(one.question), raw=settings.raw)
        letter, lead = choose_letter(next_logits(subject.target, prompt), ids)
        score = Score(letter == one.row["answer"], letter, f"leads by {lead:.3f}; expected {one.row['answer']}")
        yield {
            **_judged(one, letter, score),
            "tokens": 1,
            "sha256": None,
            "finish_reason": "stop",
            "forwards": 1,
            "nodes": 1,
            "exceptions": 0,
            "regret": 0.0,
        }


def _asks_for_letter(question: Question) -> Question:
    """The question as it is put where the first token is the answer."""
    asked = f"{question.raw.removesuffix('Answer:')}\n{LETTERS_ASKED}"
    return Question(question.id, question.suite, question.category, ({"role": "user", "content": asked},), question.raw)


def _judged(one: Labelled, text: str, score: Score | None) -> Mapping[str, Any]:
    told = asdict(score) if score else {"correct": None, "extracted": None, "reason": "not judged"}
    return {"question": one.question.id, "suite": one.question.suite, "text": text, **told}
