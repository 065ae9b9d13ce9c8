"""Whole-answer speculation: a small model writes an answer, a large one judges how much of it to keep.

`answer` and `stream` are the way in, `answer_all` and `stream_all` for several questions; `METHODS` is the table of
names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


def stream(
    prompt: Prompt,
    *,
    method: str = "parse",
    target: Engine | RemoteModel,
    draft: Engine | RemoteModel | None = None,
    raw: bool = False,
    method_settings: Mapping[str, object] | None = None,
    settings: GenerationSettings | None = None,
    **changes: Unpack[SettingKeywords],
) -> AnswerStream:
    """Answer one prompt with two models, event by event.

    `method`: a name of METHODS, with `method_settings`, the fields of its class. `draft` may have a tokenizer of its
    own: its text is what counts. Both may be behind HTTP (`betoken.remote.RemoteModel.open`). `settings`, `changes`: as
    in `Engine.generate`, for both models. Raises InputError
    for a prompt, method or settings that cannot be used.
    """
    chosen = _chosen(method, method_settings or {}, has_draft=draft is not None)
    asked = replace(settings or GenerationSettings(), **changes)
    drafting = draft if chosen.drafts else None
    if isinstance(target, RemoteModel):
        remote.check(chosen)
        return AnswerStream(remote.write(chosen, RemoteQuestion(prompt, target, drafting, asked, raw)))
    return AnswerStream(chosen.write(Question(prompt, target, drafting, asked, raw)))


def answer(
    prompt: Prompt,
    *,
    method: str = "parse",
    target: Engine | RemoteModel,
    draft: Engine | RemoteModel | None = None,
    raw: bool = False,
    method_settings: Mapping[str, object] | None = None,
    settings: GenerationSettings | None = None,
    **changes: Unpack[SettingKeywords],
) -> AnswerResult:
    """Answer one prompt with two models; everything as in `stream`."""
    events = stream(
        prompt,
        method=method,
        target=target,
        draft=draft,
        raw=raw,
        method_settings=method_settings,
        settings=settings,
        **changes,
    )
    return events.finish()


def stream_all(
    prompts: Sequence[Prompt],
    *,
    method: str = "parse",
    target: Engine,
    draft: Engine | None = None,
    batch: int = 8,
    raw: bool = False,
    method_settings: Mapping[str, object] | None = None,
    settings: Sequence[GenerationSettings] | GenerationSettings | None = None,
    **changes: Unpack[SettingKeywords],
) -> Together:
    """Answer several prompts, `batch` at a time: what they draft, judge and write shares forward passes.

    `settings`: for all, or one for each prompt. Everything else as in `stream`.
    """
    if batch < 1:
        raise InputError(f"batch must be at least 1, not {batch}")
    chosen = _chosen(method, method_settings or {}, has_draft=draft is not None)
    own = [settings or GenerationSettings()] * len(prompts) if not isinstance(settings, Sequence) else settings
    if len(own) != len(prompts):
        raise InputError(f"{len(prompts)} prompts, but settings for {len(own)}")
    docket = Docket()
    return Together(
        [
            chosen.write(
                Question(prompt, target, draft if chosen.drafts else None, replace(asked, **changes), raw, docket)
            )
            for prompt, asked in zip(prompts, own, strict=True)
        ],
        batch,
    )


def answer_all(
    prompts: Sequence[Prompt],
    *,
    method: str = "parse",
    target: Engine,
    draft: Engine | None = None,
    batch: int = 8,
    raw: bool = False,
    method_settings: Mapping[str, object] | None = None,
    settings: Sequence[GenerationSettings] | GenerationSettings | None = None,
    **changes: Unpack[SettingKeywords],
) -> list[AnswerResult]:
    """Answer several prompts; one result each, in their order. Everything as in `stream_all`."""
    events = stream_all(
        prompts,
        method=method,
        target=target,
        draft=draft,
        batch=batch,
        raw=raw,
        method_settings=method_settings,
        settings=settings,
        **changes,
    )
    return events.finish()


def check(method: str, method_settings: Mapping[str, object], *, has_draft: bool, over_http: bool = False) -> bool:
    """Whether the method needs a draft model. Raises InputError for what `stream` would refuse, without a model.

    `over_http`: whether the target is behind HTTP.
    """
    chosen = _chosen(method, method_settings, has_draft=has_draft)
    if over_http:
        remote.check(chosen)
    return chosen.drafts


def _chosen(method: str, settings: Mapping[str, object], *, has_draft: bool) -> Method:
    chosen: Method = create("method", METHODS, method, settings, option="answer")
    if chosen.drafts and not has_draft:
        raise InputError(f"method {method} needs a draft model: --draft-model (draft)")
    return chosen
