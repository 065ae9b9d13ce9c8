"""The Python face: a loaded model that can `generate`, `stream` and `chat`; `betoken.load` makes one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Unpack, cast

from betoken.answer import Answer
from betoken.decode import Decoder, Prefix, Request
from betoken.drafters import Drafter
from betoken.errors import BetokenError, InputError
from betoken.models.chat_template import Message, Prompt, messages_of
from betoken.models.target import Target
from betoken.models.tokenizer import Tokenizer
from betoken.result import Chunk, Result
from betoken.settings import GenerationSettings, SettingKeywords
from betoken.tuning.auto import AutoNodes
from betoken.tuning.cost import CostModel
from betoken.tuning.nodes import NodePolicy
from betoken.verifiers import Verifier

if TYPE_CHECKING:
    from betoken.answers import AnswerKeywords, AnswerResult, AnswerStream
    from betoken.conversation import Conversation


class Engine:
    """A loaded model with its drafter and verifier. Not for several threads at once."""

    def __init__(
        self,
        target: Target,
        tokenizer: Tokenizer,
        drafter: Drafter,
        verifier: Verifier,
        policy: NodePolicy,
        *,
        threads: int = 1,
        measure: Callable[[], CostModel] | None = None,
    ) -> None:
        """The drafter must have been started with the target. `load` is the usual way here.

        `measure`: finds out what forward passes cost, where `policy` has not.
        """
        self.target, self.tokenizer, self.threads = target, tokenizer, threads
        self._measure = measure
        self.decoder = Decoder(target, drafter, verifier, policy)
        self._answers: dict[int, Answer] = {}

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        samples: int = 1,
        raw: bool = False,
        settings: GenerationSettings | None = None,
        **changes: Unpack[SettingKeywords],
    ) -> list[Result]:
        """Answer prompts, decoded together; `samples` results each, in the order of the prompts.

        `prompts`: one text or conversation, or a list of them. Texts go through the model's chat template unless
        `raw`. The samples of a prompt share its prefill and differ in their random numbers; the first is what
        `samples=1` gives. `changes`: any field of `GenerationSettings` (temperature=0.7, ...), on top of `settings`.
        Raises InputError for prompts and settings that cannot be used, TypeError for a setting that does not exist.
        """
        if samples < 1:
            raise InputError(f"samples must be at least 1, not {samples}")
        asked = replace(settings or GenerationSettings(), **changes)
        encoded = [self.encode(prompt, raw=raw) for prompt in _several(prompts)]
        streams = [Stream(self, _request(tokens, asked, n)) for tokens in encoded for n in range(samples)]
        try:
            for stream in streams:
                stream.admit()
            return [stream.finish() for stream in streams]
        finally:
            for stream in streams:
                stream.close()

    def stream(
        self,
        prompt: Prompt,
        *,
        sample: int = 0,
        raw: bool = False,
        settings: GenerationSettings | None = None,
        **changes: Unpack[SettingKeywords],
    ) -> Stream:
        """Answer one prompt chunk by chunk; settings and errors as in `generate`.

        `sample`: which of the prompt's samples, from 0. Streams that are read in turns decode together, each with
        settings of its own.
        """
        if sample < 0:
            raise InputError(f"sample must be at least 0, not {sample}")
        asked = replace(settings or GenerationSettings(), **changes)
        return Stream(self, _request(self.encode(prompt, raw=raw), asked, sample))

    def chat(self, messages: Sequence[Message] = ()) -> Conversation:
        """A conversation that starts with `messages` (a system message, say) and keeps its keys and values."""
        from betoken.conversation import Conversation

        return Conversation(self, messages)

    def answer(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        batch: int = 8,
        settings: GenerationSettings | None = None,
        **how: Unpack[AnswerKeywords],
    ) -> list[AnswerResult]:
        """Answer prompts with two models: `draft` writes whole answers, this one judges them and writes the rest.

        One result for each prompt, in their order; `batch` of them are under way at a time and share forward passes.
        `how`: see `betoken.answers.AnswerKeywords`. Prompts, settings and errors as in `generate`.
        """
        from betoken.answers import answer_all

        return answer_all(_several(prompts), target=self, batch=batch, settings=settings, **how)

    def stream_answer(
        self, prompt: Prompt, *, settings: GenerationSettings | None = None, **how: Unpack[AnswerKeywords]
    ) -> AnswerStream:
        """Answer one prompt event by event: what is drafted, what is kept, what this model writes; as in `answer`."""
        from betoken.answers import stream

        return stream(prompt, target=self, settings=settings, **how)

    @cached_property
    def costs(self) -> CostModel | None:
        """What forward passes cost, measured at the first use if it was not before; None where nobody can tell."""
        if isinstance(self.decoder.policy, AutoNodes):
            return self.decoder.policy.cost
        return self._measure() if self._measure is not None else None

    def encode(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """Token ids of a prompt: through the model's chat template, or as it is (`raw`).

        Raises InputError for an empty prompt, malformed messages, and a model without a template.
        """
        if raw:
            if not isinstance(prompt, str):
                raise InputError("a raw prompt is a text, not chat messages")
            if not prompt:
                raise InputError("the prompt is empty: write something to continue")
            return self.tokenizer.encode(prompt)
        if isinstance(prompt, str) and not prompt.strip():
            raise InputError("the prompt is empty: write something to answer")
        return self.tokenizer.encode(self.tokenizer.template.apply(messages_of(prompt)), add_special=False)

    def _admit(self, request: Request, *, retain: bool) -> Answer:
        row = self.decoder.admit(request)
        answer = Answer(row, self.tokenizer, retain)
        self._answers[row.id] = answer
        return answer

    def _step(self) -> None:
        """One step of everything that is being decoded; what is finished leaves the decoder at once."""
        for advance in self.decoder.step():
            answer = self._answers[advance.row.id]
            answer.take(advance, self.decoder)
            if answer.row.finish_reason is not None:
                self._release(answer)

    def _release(self, answer: Answer) -> None:
        """Take the row out of the decoder, finished or not."""
        if answer.result is None:
            del self._answers[answer.row.id]
            answer.settle(self.decoder, self.threads)


class Stream(Iterator[Chunk]):
    """The chunks of one answer, one a token. Closing it, or dropping it, ends the answer early."""

    def __init__(self, engine: Engine, request: Request) -> None:
        """`Engine.stream` is the way here."""
        self._engine, self._request = engine, request
        self._answer: Answer | None = None
        self.retain = False
        """Set before the first chunk: keep the keys and values of the text when it is over (see `prefix`)."""

    @property
    def result(self) -> Result:
        """The whole answer, or as much as there was when it was closed. Raises BetokenError before that."""
        if self._answer is None or self._answer.result is None:
            raise BetokenError("the answer is not finished: read the stream to its end, or close it, first")
        return self._answer.result

    @property
    def prefix(self) -> Prefix | None:
        """What `retain` kept."""
        return self._answer.prefix if self._answer else None

    def admit(self) -> Answer:
        """Join the batch now; otherwise the first chunk that is asked for does it."""
        if self._answer is None:
            self._answer = self._engine._admit(self._request, retain=self.retain)
        return self._answer

    def __next__(self) -> Chunk:
        """The next chunk; decodes until there is one."""
        answer = self.admit()
        while not answer.ready:
            if answer.result is not None:
                raise StopIteration
            try:
                self._engine._step()
            except BaseException:
                answer.retain = False  # broken off in the middle of a step: its keys and values may be half written
                self.close()
                raise
        return answer.ready.popleft()

    def finish(self) -> Result:
        """Decode to the end without reading chunks."""
        for _ in self:
            pass
        return self.result

    def close(self) -> None:
        """Leave the batch, and give no more chunks; `result` is what there is so far."""
        if self._answer is not None:
            self._engine._release(self._answer)
            self._answer.ready.clear()

    def __del__(self) -> None:
        """A dropped stream must not keep its row in the batch."""
        self.close()


def _several(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list. A list of messages is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    if not prompts:
        raise InputError("no prompt was given")
    if all(isinstance(item, Mapping) for item in prompts):
        return [cast("Sequence[Message]", prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def _request(tokens: Sequence[int], asked: GenerationSettings, sample: int) -> Request:
    return Request(tokens, asked.sampling, asked.ending, sample, asked.budget, asked.logprobs)
