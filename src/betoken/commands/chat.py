"""`betoken chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from betoken.commands import options
from betoken.commands.generate import report, write
from betoken.commands.groups import Loading, Writing, grouped
from betoken.errors import InputError

if TYPE_CHECKING:
    from betoken.conversation import Conversation
    from betoken.settings import GenerationSettings

HELP = """Talk to a model. What was said stays in its cache, so each turn reads only what is new.

/reset starts afresh, /exit or Ctrl-D ends. Ctrl-C stops an answer; at the prompt it ends the conversation.

[bold]Examples[/bold]

  betoken chat

  betoken chat --model qwen2.5-coder-1.5b --system "You are a terse Python expert." --temperature 0.7"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(help=HELP)(chat)


@dataclass(frozen=True, kw_only=True)
class Turns(Writing):
    """How each answer is written."""

    max_new_tokens: options.MaxNewTokens = 512


@grouped
def chat(
    loading: Loading, writing: Turns, system: options.System = None, show_exceptions: options.ShowExceptions = False
) -> None:
    settings = writing.settings()  # refuses bad values before a model is loaded
    engine = loading.open()
    start = [] if system is None else [{"role": "system", "content": system}]
    conversation = engine.chat(start)
    while (said := _ask()) is not None:
        if said == "/exit":
            break
        if said == "/reset":
            conversation.close()
            conversation = engine.chat(start)
        elif said:
            _answer(conversation, said, settings, show_exceptions=show_exceptions)


def _ask() -> str | None:
    """What the user says; None at the end of the input."""
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    try:
        line = sys.stdin.readline()
    except UnicodeDecodeError:
        raise InputError("standard input: not UTF-8 text") from None
    return line.strip() if line else None


def _answer(conversation: Conversation, said: str, settings: GenerationSettings, *, show_exceptions: bool) -> None:
    try:
        write(conversation.stream(said, settings=settings), mark=show_exceptions)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    except InputError as error:
        if not sys.stdin.isatty():
            raise
        print(f"betoken: {error} (/reset starts afresh)", file=sys.stderr)  # noqa: T201
        return
    report(conversation.result, show_exceptions=show_exceptions)
