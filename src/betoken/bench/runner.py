"""Runs a benchmark: plain decoding against each drafter, in alternation, each request cold."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from betoken.bench.plan import BenchSettings, Setting, Trial, plan
from betoken.bench.provenance import write_provenance
from betoken.bench.results import Progress, Record, ResultFile
from betoken.bench.subject import Loader, Method, Subject
from betoken.bench.suites import Question
from betoken.bench.trial import measure
from betoken.decode import Request
from betoken.state import SamplingSettings, StopSettings

WARM_UP = "Write down the numbers from one to twenty in words. Then write them down again, backwards, and say why."
WARM_UP_TOKENS = 24


def run_bench(
    settings: BenchSettings, load: Loader, out: Path, progress: Progress = lambda done, total, what: None
) -> list[Record]:
    """Make every measurement that `out` does not hold yet; returns all its records.

    Each trial has a decoder, cache and drafter of its own, so nothing is reused from one to the next. Models are
    loaded one at a time. An interruption loses the trial under way, nothing else.
    Raises InputError for a result file of other settings, and for what the loader or a drafter refuses.
    """
    questions = settings.questions()
    told = settings.describe(questions)
    with ResultFile(out, told) as results:
        trials = {spec: list(plan(settings, spec, questions)) for spec in settings.models}
        total = sum(map(len, trials.values()))
        done = {_key(record) for record in results.records}
        if len(done) < total:
            write_provenance(out, told)
        for spec, planned in trials.items():
            left = [trial for trial in planned if trial.key not in done]
            if left:
                progress(len(results.records), total, f"loading {spec.label}")
                _run_model(
                    load(spec.fit_for(settings.all_methods)),
                    left,
                    settings,
                    results,
                    lambda what: progress(len(results.records), total, what),
                )
        progress(len(results.records), total, "done")
        return results.records


def _run_model(
    subject: Subject,
    trials: Sequence[Trial],
    settings: BenchSettings,
    results: ResultFile,
    tell: Callable[[str], None],
) -> None:
    warm: set[Setting] = set()
    with settled_heap(), said_once():
        for trial in trials:
            if trial.setting not in warm:
                tell(f"{trial.setting.model}: warm-up")
                _, temperature, batch = trial.setting
                sampling, limit = settings.sampling(temperature), settings.max_new_tokens
                warm_up(subject, settings.all_methods, sampling, batch, limit, raw=settings.raw)
                warm.add(trial.setting)
            tell(f"{trial.setting.model}: {trial.method.label}, {trial.questions[0].id}")
            results.append(_measured(subject, trial, settings))


@contextmanager
def settled_heap() -> Iterator[None]:
    """Leave what is loaded out of garbage collection, which would stop some trial for a third of a second."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _Once(logging.Filter):
    """Lets each message pass the first time."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether nobody has said it yet."""
        message = record.getMessage()
        fresh = message not in self._said
        self._said.add(message)
        return fresh


@contextmanager
def said_once() -> Iterator[None]:
    """A drafter tells once what it thinks of a request; a run has a new drafter for each."""
    once, log = _Once(), logging.getLogger("betoken")
    log.addFilter(once)
    try:
        yield
    finally:
        log.removeFilter(once)


def _measured(subject: Subject, trial: Trial, settings: BenchSettings) -> Record:
    sampling = settings.sampling(trial.setting.temperature)
    stop = StopSettings(max_new_tokens=settings.max_new_tokens)
    prompts = [subject.prompt(question, raw=settings.raw) for question in trial.questions]
    load_average = os.getloadavg()[0]
    decoder = trial.method.decoder(subject, len(trial.questions))
    record = measure(decoder, [Request(prompt, sampling, stop) for prompt in prompts])
    for row, question in zip(record["rows"], trial.questions, strict=True):
        row["question"], row["category"] = question.id, _place(question)
    return {
        **trial.setting._asdict(),
        "method": trial.method.label,
        "repeat": trial.repeat,
        "category": _category(trial.questions),
        "load_average": load_average,
        "dtype": subject.target.dtype,
        "exact": subject.target.exact and trial.method.same_tokens(trial.setting.temperature),
        "lossless": trial.method.verifying.lossless,
        "warm": decoder.drafter.shares_state,
        **record,
    }


def warm_up(
    subject: Subject,
    methods: Sequence[Method],
    sampling: SamplingSettings,
    batch: int,
    max_new_tokens: int,
    *,
    raw: bool,
) -> None:
    """Compile and page in with a text that is no question: every method, the same batch size, nothing noted."""
    question = Question("warm-up", "", "", ({"role": "user", "content": WARM_UP},), WARM_UP)
    request = Request(
        subject.prompt(question, raw=raw),
        sampling,
        StopSettings(max_new_tokens=min(WARM_UP_TOKENS, max_new_tokens), ignore_eos=True),
    )
    for method in methods:
        measure(method.decoder(subject, batch), [request] * batch)


def _category(questions: Sequence[Question]) -> str:
    names = {_place(question) for question in questions}
    return names.pop() if len(names) == 1 else "mixed"


def _place(question: Question) -> str:
    """`spec_bench/coding`, or the suite alone if it has no categories."""
    return question.suite if question.suite == question.category else f"{question.suite}/{question.category}"


def _key(record: dict[str, Any]) -> tuple[object, ...]:
    """`Trial.key` of a record."""
    ids = tuple(row["question"] for row in record["rows"])
    return (record["model"], record["temperature"], record["batch"], ids, record["repeat"], record["method"])
