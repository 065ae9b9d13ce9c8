"""`betoken chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands import options
from betoken.commands.generate import summary, write
from betoken.errors import InputError

if TYPE_CHECKING:
    from betoken.conversation import Conversation, Settings

HELP = """Talk to a model. What was said stays in its cache, so each turn reads only what is new.

/reset starts afresh, /exit or Ctrl-D ends. Ctrl-C stops an answer; at the prompt it ends the conversation.

[bold]Examples[/bold]

  betoken chat

  betoken chat --model qwen2.5-coder-1.5b --system "You are a terse Python expert." --temperature 0.7"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(help=HELP)(chat)


def chat(
    model: options.Model = options.DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option("--system", help="A system message in front.")] = None,
    max_new_tokens: options.MaxNewTokens = 512,
    seed: options.Seed = 0,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    stop: options.Stop = None,
    draft_model: options.DraftModel = None,
    drafter: options.DrafterName = None,
    verifier: options.VerifierName = None,
    set_: options.Set = None,
    nodes: options.Nodes = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    cache_dir: options.CacheDir = None,
    trust_remote_code: options.TrustRemoteCode = False,
) -> None:
    from betoken.state import SamplingSettings, StopSettings

    SamplingSettings(temperature, top_k, top_p, min_p, seed)  # refuse bad values before a model is loaded
    StopSettings(max_new_tokens, tuple(stop or ()))
    engine = options.open_engine(
        model,
        draft_model=draft_model,
        drafter=drafter,
        verifier=verifier,
        settings=set_ or (),
        dtype=dtype,
        device=device,
        threads=threads,
        nodes=nodes,
        cache_dir=cache_dir,
        trust_remote_code=trust_remote_code,
    )
    settings: Settings = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "stop": stop or (),
    }
    start = [] if system is None else [{"role": "system", "content": system}]
    conversation = engine.chat(start)
    while (said := _ask()) is not None:
        if said == "/exit":
            break
        if said == "/reset":
            conversation.close()
            conversation = engine.chat(start)
        elif said:
            _answer(conversation, said, settings)


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


def _answer(conversation: Conversation, said: str, settings: Settings) -> None:
    try:
        write(conversation.stream(said, **settings))
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    except InputError as error:
        if not sys.stdin.isatty():
            raise
        print(f"betoken: {error} (/reset starts afresh)", file=sys.stderr)  # noqa: T201
        return
    print(summary(conversation.result.stats), file=sys.stderr)  # noqa: T201
