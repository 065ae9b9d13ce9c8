"""`betoken chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands import options
from betoken.commands.generate import report, write
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


def chat(
    model: options.Model = options.DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option("--system", help="A system message in front.")] = None,
    max_new_tokens: options.MaxNewTokens = 512,
    seed: options.Seed = 0,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    logit_bias: options.LogitBias = None,
    stop: options.Stop = None,
    stop_id: options.StopId = None,
    ignore_eos: options.IgnoreEos = False,
    min_new_tokens: options.MinNewTokens = 0,
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
    budget: options.Budget = None,
    show_exceptions: options.ShowExceptions = False,
) -> None:
    from betoken.settings import GenerationSettings

    settings = GenerationSettings(  # refuses bad values before a model is loaded
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=options.parse_logit_bias(logit_bias or ()),
        stop=stop or (),
        stop_ids=stop_id or (),
        ignore_eos=ignore_eos,
        min_new_tokens=min_new_tokens,
        budget=budget,
    )
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
