"""Whole-answer speculation: a small model writes an answer, a large one judges how much of it to keep.

`answer` and `stream` are the way in, `answer_all` and `stream_all` for several questions; `METHODS` is the table of
names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Unpack

from betoken.answers import remote
from betoken.answers.alone import DraftAlone, TargetAlone
from betoken.answers.method import AnswerResult, AnswerStats, Event, Method, Question, Writing
from betoken.answers.packed import Docket
from betoken.answers.parse import Cascade, Parse
from betoken.answers.remote import RemoteQuestion
from betoken.answers.specreason import SpecReason
from betoken.answers.thinking import SpeculativeThinking
from betoken.answers.together import Together
from betoken.engine import Engine
from betoken.errors import BetokenError, InputError
from betoken.models.chat_template import Prompt
from betoken.registry import create
from betoken.remote import RemoteModel
from betoken.settings import GenerationSettings, SettingKeywords

METHODS: dict[str, type] = {
    "cascade": Cascade,
    "draft": DraftAlone,
    "parse": Parse,
    "specreason": SpecReason,
    "speculative-thinking": SpeculativeThinking,
    "target": TargetAlone,
}

__all__ = [
    "METHODS",
    "AnswerKeywords",
    "AnswerResult",
    "AnswerStats",
    "AnswerStream",
    "Event",
    "Method",
    "Together",
    "answer",
    "answer_all",
    "check",
    "stream",
    "stream_all",
]


class AnswerStream(Iterator[Event]):
    """The events of one answer. Closing it, or dropping it, ends the answer early."""

    def __init__(self, writing: Writing) -> None:
        """`stream` is the way here."""
        self._writing = writing
        self._result: AnswerResult | None = None

    @property
    def result(self) -> AnswerResult:
        """The whole answer. Raises BetokenError before the events are read to their end."""
        if self._result is None:
            raise BetokenError("the answer is not finished: read its events to their end first")
        return self._result

    def __next__(self) -> Event:
        """The next event; decodes until there is one."""
        try:
            return next(self._writing)
        except StopIteration as end:
            if end.value is not None:
                self._result = end.value
            raise StopIteration from None

    def finish(self) -> AnswerResult:
        """Write to the end without reading events."""
        for _ in self:
            pass
        return self.result

    def close(self) -> None:
        """End the answer here; it has no result."""
        self._writing.close()


class AnswerKeywords(SettingKeywords, total=False):
    """How questions are answered, as keywords of a call: these, and those of `GenerationSettings`, for both models."""

    method: str
    """A name of METHODS; parse if not given."""
    method_settings: Mapping[str, object]
    """Fields of its class."""
    draft: Engine | RemoteModel | None
    """Writes the drafts; it may have a tokenizer of its own: its text is what counts."""
    raw: bool
    """Continue the prompt as it is, without chat templates."""


def stream(
    prompt: Prompt,
    *,
    target: Engine | RemoteModel,
    settings: GenerationSettings | None = None,
    **how: Unpack[AnswerKeywords],
) -> AnswerStream:
    """Answer one prompt with two models, event by event.

    Both may be behind HTTP (`betoken.remote.RemoteModel.open`). Keywords that are settings count on top of `settings`.
    Raises InputError for a prompt, method or settings that cannot be used, TypeError for a keyword that does not exist.
    """
    return AnswerStream(_way(target, **how)(prompt, settings, Docket()))


def answer(
    prompt: Prompt,
    *,
    target: Engine | RemoteModel,
    settings: GenerationSettings | None = None,
    **how: Unpack[AnswerKeywords],
) -> AnswerResult:
    """Answer one prompt with two models; everything as in `stream`."""
    return stream(prompt, target=target, settings=settings, **how).finish()


def stream_all(
    prompts: Sequence[Prompt],
    *,
    target: Engine | RemoteModel,
    batch: int = 8,
    settings: Sequence[GenerationSettings] | GenerationSettings | None = None,
    **how: Unpack[AnswerKeywords],
) -> Together:
    """Answer several prompts, `batch` at a time: what models here draft, judge and write shares forward passes.

    `settings`: for all, or one for each prompt. Everything else as in `stream`.
    """
    if batch < 1:
        raise InputError(f"batch must be at least 1, not {batch}")
    own = settings if isinstance(settings, Sequence) else [settings] * len(prompts)
    if len(own) != len(prompts):
        raise InputError(f"{len(prompts)} prompts, but settings for {len(own)}")
    write, docket = _way(target, **how), Docket()
    return Together([write(prompt, asked, docket) for prompt, asked in zip(prompts, own, strict=True)], batch)


def answer_all(
    prompts: Sequence[Prompt],
    *,
    target: Engine | RemoteModel,
    batch: int = 8,
    settings: Sequence[GenerationSettings] | GenerationSettings | None = None,
    **how: Unpack[AnswerKeywords],
) -> list[AnswerResult]:
    """Answer several prompts; one result each, in their order. Everything as in `stream_all`."""
    return stream_all(prompts, target=target, batch=batch, settings=settings, **how).finish()


def check(method: str, method_settings: Mapping[str, object], *, has_draft: bool, over_http: bool = False) -> bool:
    """Whether the method needs a draft model. Raises InputError for what `stream` would refuse, without a model.

    `over_http`: whether the target is behind HTTP.
    """
    chosen = _chosen(method, method_settings, has_draft=has_draft)
    if over_http:
        remote.check(chosen)
    return chosen.drafts


def _way(
    target: Engine | RemoteModel,
    *,
    method: str = "parse",
    method_settings: Mapping[str, object] | None = None,
    draft: Engine | RemoteModel | None = None,
    raw: bool = False,
    **changes: Unpack[SettingKeywords],
) -> Callable[[Prompt, GenerationSettings | None, Docket], Writing]:
    """What answers a prompt as it was asked for."""
    chosen = _chosen(method, method_settings or {}, has_draft=draft is not None)
    drafting = draft if chosen.drafts else None
    if isinstance(target, RemoteModel):
        remote.check(chosen)

    def write(prompt: Prompt, settings: GenerationSettings | None, docket: Docket) -> Writing:
        asked = replace(settings or GenerationSettings(), **changes)
        if isinstance(target, RemoteModel):
            return remote.write(chosen, RemoteQuestion(prompt, target, drafting, asked, raw))
        return chosen.write(Question(prompt, target, drafting, asked, raw, docket))

    return write


def _chosen(method: str, settings: Mapping[str, object], *, has_draft: bool) -> Method:
    chosen: Method = create("method", METHODS, method, settings, option="answer")
    if chosen.drafts and not has_draft:
        raise InputError(f"method {method} needs a draft model: --draft-model (draft)")
    return chosen
