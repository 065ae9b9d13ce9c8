"""A draft model's complete answer, whether the model is here or behind HTTP."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

from betoken.answers.method import Event
from betoken.engine import Engine
from betoken.models.chat_template import Prompt
from betoken.remote import RemoteModel
from betoken.settings import GenerationSettings
from betoken.state import FinishReason
from betoken.text import StopFilter


@dataclass(frozen=True)
class Draft:
    """An answer that nobody has judged yet."""

    pieces: list[str]
    """Its text as it came, about a token each, none empty."""
    tokens: list[int] | None
    """Its tokens; None where the model is behind HTTP, which does not tell."""
    written: int
    """Tokens, of the draft model's own."""
    finish: FinishReason

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def drafted(
    model: Engine | RemoteModel, prompt: Prompt, settings: GenerationSettings, *, raw: bool
) -> Generator[Event, None, Draft]:
    """The draft, piece by piece. A budget is the target's and does not count here."""
    settings = replace(settings, budget=None)
    if isinstance(model, RemoteModel):
        return (yield from _from_server(model, prompt, settings, raw))
    pieces = []
    stream = model.stream(prompt, raw=raw, settings=settings)
    try:
        stream.admit()
        yield Event("draft", "")  # others that are answered together can join before the first step
        for chunk in stream:
            if chunk.text:
                pieces.append(chunk.text)
                yield Event("draft", chunk.text)
    finally:
        stream.close()
    result = stream.result
    return Draft(pieces, result.tokens, result.stats.committed, result.finish_reason or "stop")


def _from_server(
    model: RemoteModel, prompt: Prompt, settings: GenerationSettings, raw: bool
) -> Generator[Event, None, Draft]:
    pieces = []
    text = StopFilter(settings.ending.stop)
    reply = model.write(model.ask(prompt, raw=raw), settings, settings.max_new_tokens)
    try:
        for said in reply:
            piece = text.push(said)
            if piece:
                pieces.append(piece)
                yield Event("draft", piece)
            if text.stopped:
                break
    finally:
        reply.close()
    rest = text.finish()
    if rest:
        pieces.append(rest)
        yield Event("draft", rest)
    return Draft(pieces, None, reply.written, "stop" if text.stopped else reply.finish or "stop")
