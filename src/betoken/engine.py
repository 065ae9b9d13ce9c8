"""The Python face: `load` a model once, then `generate`, `stream` and `chat`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack, cast

import torch

from betoken.answer import Answer
from betoken.decode import Decoder, Prefix, Request
from betoken.drafters import DRAFTERS, Drafter
from betoken.drafters.draft_model import check_draft_dtype, check_vocabularies
from betoken.drafters.ptp import PTP
from betoken.errors import BetokenError, InputError
from betoken.models.chat_template import Message, Prompt, messages_of
from betoken.models.files import Progress, SilentProgress
from betoken.models.load import Backend, Loaded, load_target
from betoken.models.store import cache_root, resolve
from betoken.models.target import Target
from betoken.models.tokenizer import Tokenizer
from betoken.registry import create
from betoken.result import Chunk, Result
from betoken.settings import GenerationSettings, SettingKeywords
from betoken.tuning.auto import AutoNodes
from betoken.tuning.cost import CostModel
from betoken.tuning.cost import load as load_cost
from betoken.tuning.nodes import FixedNodes, NodePolicy
from betoken.verifiers import VERIFIERS, Verifier
from betoken.verifiers.replay import Replay

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


def load(
    model: str,
    *,
    draft_model: str | None = None,
    drafter: str | None = None,
    verifier: str | None = None,
    drafter_settings: Mapping[str, object] | None = None,
    verifier_settings: Mapping[str, object] | None = None,
    dtype: str | None = None,
    draft_dtype: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    nodes: int | Literal["auto"] = "auto",
    cache_dir: str | Path | None = None,
    trust_remote_code: bool = False,
    cuda_graphs: bool = True,
    progress: Progress | None = None,
) -> Engine:
    """Load a model, ready to generate.

    `model`, `draft_model`: a store name, a folder, a GGUF file or a Hub id (owner/name). `drafter`: a name of
    `betoken drafters`; suffix, or draft-model where one is given, if None. `verifier`: a name of `betoken
    verifiers`; greedy at temperature 0 and replay above it if None. `draft_dtype`: of the draft model; `dtype` if None.
    `nodes`: most tokens that a step scores, or auto, which measures what pays. `cuda_graphs`: on CUDA, record passes
    and replay them. `progress`: told how far a download is. Raises InputError for names, settings and files that
    cannot be used.
    """
    chosen = drafter or ("suffix" if draft_model is None else "draft-model")
    drafting: Drafter = create("drafter", DRAFTERS, chosen, drafter_settings or {})
    verifying: Verifier = create("verifier", VERIFIERS, verifier or "replay", verifier_settings or {})
    _check_choices(chosen, draft_model, nodes)
    check_draft_dtype(draft_dtype, has_draft=draft_model is not None)
    check_coupling(drafting, verifying)
    place = Path(cache_dir) if cache_dir is not None else None

    def fetch(name: str, dtype: str | None, backend: Backend = "auto") -> Loaded:
        resolve(name, place, progress or SilentProgress())
        return load_target(
            name,
            dtype=dtype,
            device=device,
            threads=threads,
            cache_dir=place,
            trust_remote_code=trust_remote_code,
            backend=backend,
            cuda_graphs=cuda_graphs,
        )

    # Students run in the torch decoder only; without a dtype, int8 is what the user has to be told about.
    takes_student = isinstance(drafting, PTP) and dtype not in (None, "int8", "int4")
    loaded = fetch(model, dtype, "torch" if takes_student else "auto")
    draft = fetch(draft_model, draft_dtype or dtype) if draft_model is not None else None
    if draft is not None:
        check_vocabularies(loaded.tokenizer, draft.tokenizer)
    drafting.start(loaded.target, draft.target if draft is not None else None)
    cores = threads or torch.get_num_threads()
    measure = partial(load_cost, loaded.target, cache_root(cache_dir) / "cost", threads=cores)
    most = 1 if chosen == "none" else nodes
    policy: NodePolicy = AutoNodes(measure()) if most == "auto" else FixedNodes(most)
    return Engine(loaded.target, loaded.tokenizer, drafting, verifying, policy, threads=cores, measure=measure)


def check_coupling(drafter: Drafter, verifier: Verifier) -> None:
    """Raises InputError for a verifier whose random numbers the drafter's student was not trained to read."""
    if isinstance(drafter, PTP) and isinstance(verifier, Replay) and verifier.rule == "gumbel":
        raise InputError("drafter ptp reads the numbers of the inverse CDF: leave verifier.rule=gumbel out")


def _check_choices(drafter: str, draft_model: str | None, nodes: object) -> None:
    if (drafter == "draft-model") != (draft_model is not None):
        told = "needs a draft model" if draft_model is None else "does not use a draft model"
        raise InputError(f"drafter {drafter} {told}: --draft-model (draft_model) goes with drafter draft-model")
    if nodes != "auto" and (isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1):
        raise InputError(f"nodes must be auto or a whole number, at least 1, not {nodes!r}")


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
