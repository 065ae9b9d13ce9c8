"""A conversation whose keys and values stay in the cache from one turn to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Unpack

from betoken.decode import Prefix
from betoken.engine import Engine, Stream
from betoken.errors import BetokenError
from betoken.models.chat_template import Message
from betoken.result import Chunk, Result
from betoken.settings import GenerationSettings, SettingKeywords


class Conversation:
    """Messages so far, and the engine that answers them. Each turn prefills only what is new."""

    def __init__(self, engine: Engine, messages: Sequence[Message] = ()) -> None:
        """`messages`: how it starts, with a system message for instance."""
        self.engine = engine
        self.messages: list[Message] = list(messages)
        self._prefix: Prefix | None = None
        self._last: Result | None = None

    @property
    def result(self) -> Result:
        """The last answer. Raises BetokenError before there is one."""
        if self._last is None:
            raise BetokenError("nothing was answered yet")
        return self._last

    def send(
        self, text: str, *, settings: GenerationSettings | None = None, **changes: Unpack[SettingKeywords]
    ) -> Result:
        """Say something and get the whole answer; settings and errors as in `Engine.generate`."""
        for _ in self.stream(text, settings=settings, **changes):
            pass
        return self.result

    def stream(
        self, text: str, *, settings: GenerationSettings | None = None, **changes: Unpack[SettingKeywords]
    ) -> Iterator[Chunk]:
        """Say something and read the answer chunk by chunk.

        An answer that is broken off stays in the conversation as far as it came.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        stream = self.engine.stream(asked, settings=settings, **changes)
        stream.retain = True
        return self._answered(asked, stream)

    def close(self) -> None:
        """Give the memory of the kept keys and values back."""
        if self._prefix is not None:
            self.engine.decoder.forget(self._prefix)
            self._prefix = None

    def _answered(self, asked: list[Message], stream: Stream) -> Iterator[Chunk]:
        stream.admit()
        try:
            yield from stream
        finally:
            stream.close()
            self.close()
            self._prefix, self._last = stream.prefix, stream.result
            self.messages = [*asked, {"role": "assistant", "content": stream.result.text}]
