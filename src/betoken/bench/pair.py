"""Two loaded models that answer together, and their answers as they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from betoken.answers.method import AnswerResult
from betoken.answers.together import Together
from betoken.bench.subject import Method, ModelSpec
from betoken.bench.suites import Labelled
from betoken.engine import Engine
from betoken.models.chat_template import Prompt


class Pair(NamedTuple):
    """Who judges and who drafts."""

    target: Engine
    draft: Engine | None


PairLoader = Callable[[ModelSpec, Method], Pair]
"""Loads both models, each with the method's drafter; the verifier is the target's. Raises InputError if it cannot."""


def load_pair(spec: ModelSpec, method: Method) -> Pair:
    """The `PairLoader` for real models; without a draft model in `spec` none is loaded."""
    from betoken.loading import load

    def opened(one: ModelSpec, verifier: str, verifier_settings: Mapping[str, object]) -> Engine:
        return load(
            one.model,
            drafter=method.drafter,
            drafter_settings=method.settings,
            verifier=verifier,
            verifier_settings=verifier_settings,
            dtype=one.dtype,
            device=one.device,
            threads=one.threads,
            nodes=method.nodes if isinstance(method.nodes, int) else "auto",
        )

    draft = None if spec.draft_model is None else opened(spec.of_draft(), "replay", {})
    return Pair(opened(spec, method.verifier, method.verifier_settings), draft)


def prompt_of(one: Labelled, engine: Engine, *, raw: bool) -> tuple[Prompt, bool]:
    """How a question is put: chat messages, or plain text (`raw`, or a model without a template), and which."""
    if raw or engine.tokenizer.chat_template is None:
        return one.question.raw, True
    return [dict(message) for message in one.question.messages], False


def as_they_end(events: Together) -> Iterator[tuple[int, AnswerResult]]:
    """Results with the places of their questions, each once."""
    told: set[int] = set()
    for _ in events:
        for place in events.finished.keys() - told:
            told.add(place)
            yield place, events.finished[place]
    for place in sorted(events.finished.keys() - told):
        yield place, events.finished[place]
