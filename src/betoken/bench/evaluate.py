"""How many answers are right? Suites decoded in a batch, answer by answer, each judged as it ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from betoken.bench.batching import decode_all
from betoken.bench.evaluation import Evaluation, Numbered, Report, Scoring, complete, counted, scored
from betoken.bench.results import Progress, Record
from betoken.bench.scorers import LETTERS_ASKED, Score, choose_letter, letter_ids
from betoken.bench.subject import Loader, Subject
from betoken.bench.suites import Labelled, Question
from betoken.bench.trial import digest
from betoken.decode import Request
from betoken.errors import InputError
from betoken.state import SamplingSettings, StopSettings
from betoken.tuning.audit import next_logits


@dataclass(frozen=True)
class EvalSettings(Evaluation):
    """What one model is asked."""

    letters: Literal["text", "logits"] = "text"
    """MMLU: the letter that the answer gives, or the likeliest of four at the first token, without an answer."""
    unscored: bool = False
    """Take suites without a scorer too: their answers are decoded and compared, not judged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.letters not in ("text", "logits"):
            raise InputError(f"letters must be text or logits, not {self.letters!r}")

    def questions(self) -> list[Labelled]:
        """The rows of every suite. Raises InputError for a suite without a scorer, and for rows that chose settings."""
        return self._rows(unscored=self.unscored)

    def describe(self, labelled: Sequence[Labelled]) -> dict[str, Any]:
        """The settings as JSON values; `unscored` is not among them, since the rows say it."""
        told = super().describe(labelled)
        del told["unscored"]
        return told


@dataclass(frozen=True, kw_only=True)
class SuiteReport(Report):
    """How a suite went."""

    tokens_per_forward: float
    """Committed tokens a target forward of a row: the acceptance length."""
    cut: int
    """Answers that ended at the token limit or at the end of the context."""
    exceptions: int
    """Tokens that plain decoding would not have committed."""
    regret: float
    """Their regret in all."""


def run_eval(
    settings: EvalSettings, load: Loader, out: Path, progress: Progress = lambda done, total, what: None
) -> list[SuiteReport]:
    """Answer what `out` does not hold yet, and report each suite over all its rows.

    An interruption loses the answers under way, nothing else. Raises InputError for a result file of other
    settings, and for what the loader, a drafter or a verifier refuses.
    """

    def answer(left: list[Numbered]) -> Iterator[Record]:
        return answers(load(settings.model.fit_for([settings.method])), settings, left)

    return [summarise(suite, own) for suite, own in complete(settings, answer, out, progress).items()]


def answers(
    subject: Subject, settings: EvalSettings, numbered: Sequence[Numbered], *, budget: float | None = None
) -> Iterator[Record]:
    """Scored answers as they end; `numbered`: rows with their index in the draw. `budget` 0 is strict."""
    with Scoring(one for _, one in numbered) as scoring:
        if settings.letters == "logits":
            yield from _by_logits(subject, settings, [one for _, one in numbered if one.format == "mmlu"])
            numbered = [pair for pair in numbered if pair[1].format != "mmlu"]
        requests = [_request(subject, one.question, settings, index, budget) for index, one in numbered]
        decoder = settings.method.decoder(subject, settings.batch)
        for index, row, nodes in decode_all(decoder, requests, settings.batch):
            one = numbered[index][1]
            text = subject.codec.decode([token for token in row.new_tokens if token not in row.end_ids])
            yield {
                **scoring.judged(one, text),
                "tokens": row.generated,
                "sha256": digest(row.new_tokens),
                "finish_reason": row.finish_reason,
                "forwards": row.steps,
                "nodes": nodes,
                "exceptions": len(row.ledger.exceptions),
                "regret": row.ledger.spent,
            }


def summarise(suite: str, own: Sequence[Record]) -> SuiteReport:
    """The report of one suite from its records."""
    return SuiteReport(
        **counted(suite, own),
        tokens_per_forward=sum(record["tokens"] for record in own) / sum(record["forwards"] for record in own),
        cut=sum(record["finish_reason"] in ("length", "context") for record in own),
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
            **scored(one, letter, score),
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
