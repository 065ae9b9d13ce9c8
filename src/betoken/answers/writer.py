"""One of two models that write an answer in turns: its tokens of the answer so far, and their keys and values."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from types import TracebackType
from typing import Literal, NamedTuple, Self

from betoken.answers.method import Event, Question
from betoken.decode import Prefix, Request
from betoken.engine import Engine, Stream
from betoken.state import common_prefix
from betoken.text import TextStream


class Part(NamedTuple):
    """What a model wrote in its turn."""

    tokens: list[int]
    """Its own tokens, the one that ended the answer left out."""
    text: str
    ended: bool
    """Whether the model ended the answer here."""


@dataclass
class Writer:
    """Use it in a `with` block, which gives its slot of the cache back."""

    engine: Engine
    question: Question
    kind: Literal["draft", "text"]
    """Of its events."""
    prompt: list[int] = field(init=False)
    tokens: list[int] = field(default_factory=list, init=False)
    """The answer so far."""
    slot: int = field(init=False)
    cached: list[int] = field(default_factory=list, init=False)
    """Whose keys and values the slot holds; they may leave the answer, where a turn did not stand."""
    hint: tuple[int, ...] = field(default=(), init=False)
    """Tokens that the next turns may repeat, for drafters that copy."""
    turns: int = field(default=0, init=False)
    written: int = field(default=0, init=False)
    forwards: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Raises InputError for a prompt that the model cannot take."""
        self.prompt = self.engine.encode(self.question.prompt, raw=self.question.raw)
        self.slot = self.engine.decoder.cache.open()

    @property
    def room(self) -> int:
        """Most tokens that the answer may still get from this model."""
        limit = min(self.question.settings.max_new_tokens, self.engine.target.context - len(self.prompt))
        return max(0, limit - len(self.tokens))

    def write(self, most: int, enough: Callable[[str], bool], *, show: bool = True) -> Generator[Event, None, Part]:
        """Go on until the turn's text is `enough`, after `most` tokens at the latest; `tokens` stays as it is."""
        began = perf_counter()
        most = min(most, self.room)
        if most == 0:
            return Part([], "", False)
        part: list[int] = []
        said = ""
        ended = False
        text = self.primed()
        stream = Stream(self.engine, self._request(most))
        stream.retain = True
        prefix = Prefix(self.slot, tuple(self.cached))
        self.engine.decoder.prefixes.append(prefix)
        try:
            for chunk in stream:
                ended = chunk.finish_reason == "stop"
                piece = "" if ended else text.push(chunk.token)
                said += piece
                if not ended:
                    part.append(chunk.token)
                if piece and show:
                    yield Event(self.kind, piece)
                if enough(said):
                    break
        finally:
            stream.close()
            self._take_over(prefix, stream.prefix)
        self.turns += 1
        self.written += len(part)
        self.forwards += stream.result.stats.forwards
        self.seconds += perf_counter() - began
        return Part(part, said, ended)

    def take(self, tokens: Sequence[int]) -> None:
        """These tokens stand: they continue the answer."""
        self.tokens += tokens

    def sync(self) -> int:
        """The slot, with the keys and values of prompt and answer as far as they were computed, and of nothing else."""
        same = common_prefix(self.cached, [*self.prompt, *self.tokens])
        self.cached = self.cached[:same]
        self.engine.decoder.cache.truncate(self.slot, same)
        return self.slot

    def text(self) -> str:
        """The answer so far."""
        stream = TextStream(self.engine.tokenizer)
        return "".join(stream.push(token) for token in self.tokens) + stream.finish()

    def primed(self) -> TextStream:
        """Of what is written next, behind the answer so far."""
        text = TextStream(self.engine.tokenizer)
        for token in self.tokens:
            text.push(token)
        return text

    def _request(self, most: int) -> Request:
        """Every turn draws from random numbers of its own."""
        settings = self.question.settings
        ending = replace(settings.ending, max_new_tokens=most, min_new_tokens=0, stop=())
        return Request([*self.prompt, *self.tokens], settings.sampling, ending, sample=self.turns, hint=self.hint)

    def _take_over(self, old: Prefix, new: Prefix | None) -> None:
        """The keys and values that the turn left behind take the place of those that it began with."""
        decoder = self.engine.decoder
        if new is None:
            decoder.detach(old)
            return
        decoder.forget(old)
        self.slot, self.cached = decoder.detach(new), list(new.tokens)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.decoder.cache.close(self.slot)
