"""The desk at which one answer is written: both models' parts of it, and the running account."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from betoken.answers.account import Account
from betoken.answers.drafting import Draft, drafted
from betoken.answers.method import AnswerResult, Event, Question, check_settings
from betoken.decode import Prefix, Request
from betoken.engine import Engine, Stream
from betoken.errors import InputError
from betoken.remote import RemoteModel
from betoken.state import FinishReason
from betoken.text import TextStream


@dataclass
class Desk(Account):
    """Writes parts of one answer and counts what they cost."""

    question: Question
    method: str
    prompt: list[int] = field(init=False)
    """The target's own prompt."""

    def __post_init__(self) -> None:
        """Raises InputError for a prompt or settings that two models cannot serve."""
        question = self.question
        self.prompt = question.target.encode(question.prompt, raw=question.raw)
        check_settings(question.settings)

    @property
    def target(self) -> Engine:
        return self.question.target

    def draft(self) -> Generator[Event, None, tuple[list[int], FinishReason]]:
        """The draft model's complete answer, in the target's tokens, and how it ended."""
        question = self.question
        if question.draft is None:
            raise InputError(f"method {self.method} needs a draft model: --draft-model")
        began = perf_counter()
        _check_ids(question)
        draft = yield from drafted(question.draft, question.prompt, question.settings, raw=question.raw)
        self.draft_tokens += draft.written
        self.draft_s += perf_counter() - began
        return self._within(self._own_tokens(question.draft, draft), draft.finish)

    def _own_tokens(self, model: Engine | RemoteModel, draft: Draft) -> list[int]:
        """A draft in the target's tokens: as they were written where both models have the same, else by its text."""
        own = self.target.tokenizer
        if isinstance(model, Engine) and draft.tokens is not None and own.vocabulary == model.tokenizer.vocabulary:
            written = [token for token in draft.tokens if token not in own.special_ids]
            if self.text(written) == draft.text:
                return written
        return own.encode(draft.text, add_special=False)

    def _within(self, ids: list[int], finish: FinishReason) -> tuple[list[int], FinishReason]:
        """The draft no longer than the target's own answer could be, and how it ended then."""
        most = self.question.settings.max_new_tokens
        room = self.target.target.context - len(self.prompt)
        if len(ids) > min(most, room):
            ids, finish = ids[: min(most, room)], "length" if most <= room else "context"
        self.drafted = len(ids)
        return ids, finish

    def text(self, ids: Sequence[int]) -> str:
        """The text of tokens of the answer, from its first."""
        stream = TextStream(self.target.tokenizer)
        return "".join(stream.push(token) for token in ids) + stream.finish()

    def certain(self, ids: Sequence[int]) -> str:
        """The part of it that stays whatever comes next: no half of a character, and no beginning of a stop text."""
        stream = TextStream(self.target.tokenizer, self.question.settings.ending.stop)
        return "".join(stream.push(token) for token in ids)

    def write(
        self, kept: Sequence[int], *, hint: Sequence[int] = (), slot: int | None = None
    ) -> Generator[Event, None, AnswerResult]:
        """The target goes on after `kept`, the answer so far, to its end.

        `slot`: holds keys and values of prompt and kept tokens, or of a prefix of them; it is given back. `hint`:
        tokens that the rest may repeat, for drafters that copy.
        """
        began = perf_counter()
        self.kept = len(kept)
        prefix = None
        if slot is not None:
            prefix = Prefix(slot, tuple([*self.prompt, *kept][: self.target.decoder.cache.length(slot)]))
            self.target.decoder.prefixes.append(prefix)
        try:
            return (yield from self._rest(list(kept), hint, began))
        finally:
            if prefix is not None:
                self.target.decoder.forget(prefix)

    def _rest(self, kept: list[int], hint: Sequence[int], began: float) -> Generator[Event, None, AnswerResult]:
        settings = self.question.settings
        text = TextStream(self.target.tokenizer, settings.ending.stop)
        written = [text.push(token) for token in kept]
        if len(kept) >= settings.max_new_tokens or len(self.prompt) + len(kept) >= self.target.target.context:
            written.append(text.finish())
            if written[-1]:
                yield Event("text", written[-1])
            reason: FinishReason = "length" if len(kept) >= settings.max_new_tokens else "context"
            return self.result(kept, "".join(written), reason)
        tokens = list(kept)
        stream = Stream(self.target, self._request(kept, hint))
        try:
            stream.admit()
            yield Event("text", "")
            for chunk in stream:
                tokens.append(chunk.token)
                ended = chunk.finish_reason == "stop"  # by an end token: stop strings are ours to find
                piece = "" if ended else text.push(chunk.token)
                if chunk.finish_reason is not None and not text.stopped:
                    piece += text.finish()
                written.append(piece)
                if piece:
                    yield Event("text", piece)
                if text.stopped:
                    break
        finally:
            stream.close()
        self.target_s += perf_counter() - began
        self.target_tokens += len(tokens) - len(kept)
        self.target_forwards += stream.result.stats.forwards
        return self.result(tokens, "".join(written), "stop" if text.stopped else stream.result.finish_reason)

    def _request(self, kept: Sequence[int], hint: Sequence[int]) -> Request:
        """What is left of the question; a stop text may begin in what is kept, so the decoder does not look for it."""
        settings = self.question.settings
        ending = replace(
            settings.ending,
            max_new_tokens=settings.max_new_tokens - len(kept),
            min_new_tokens=max(0, settings.min_new_tokens - len(kept)),
            stop=(),
        )
        return Request([*self.prompt, *kept], settings.sampling, ending, budget=settings.budget, hint=hint)

    def result(self, tokens: list[int], text: str, finish: FinishReason | None) -> AnswerResult:
        """The answer, and the account closed."""
        question = self.question
        stats = self.stats(self.method, question.target, question.draft, len(tokens))
        return AnswerResult(text, tokens, len(self.prompt), finish, stats)


def _check_ids(question: Question) -> None:
    """Token ids among the settings mean the target's; a draft model of another vocabulary cannot follow them."""
    settings, draft = question.settings, question.draft
    if draft is None or not (settings.logit_bias or settings.stop_ids):
        return
    if isinstance(draft, RemoteModel) or draft.tokenizer.vocabulary != question.target.tokenizer.vocabulary:
        raise InputError("logit_bias and stop_ids are token ids, and the two models have different tokens")
