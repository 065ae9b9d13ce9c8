"""`betoken generate`: one prompt, one answer."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands import options
from betoken.commands.prompts import read_prompt
from betoken.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from betoken.result import Chunk, Result

HELP = """Answer one prompt; the text streams to standard output, one line of statistics follows on standard error.

[bold]Examples[/bold]

  betoken generate --prompt "Write a haiku about the sea."

  betoken generate --prompt-file report.txt --system "Summarise in three sentences." --max-new-tokens 120

  betoken generate --prompt "def fib(n):" --raw --drafter none --json --logprobs 3

  betoken generate --prompt "Name a colour." --temperature 1 --samples 4

  betoken generate --prompt "Tell me a story." --verifier asd --budget 4 --show-exceptions

  betoken generate --model qwen2.5-coder-1.5b --draft-model qwen2.5-coder-0.5b --temperature 0.8 --seed 7 -

Every drafter gives the same text under the default verifiers; what differs is the time."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(help=HELP)(generate)


def generate(
    source: Annotated[str | None, typer.Argument(metavar="-", help="Read the prompt from standard input.")] = None,
    model: options.Model = options.DEFAULT_MODEL,
    prompt: Annotated[str | None, typer.Option("--prompt", help="The prompt.")] = None,
    prompt_file: Annotated[Path | None, typer.Option("--prompt-file", help="A UTF-8 text file.")] = None,
    messages: Annotated[
        Path | None, typer.Option("--messages", help='JSON file: [{"role": "user", "content": "..."}, ...].')
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="A system message in front.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    max_new_tokens: options.MaxNewTokens = 256,
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
    samples: Annotated[
        int, typer.Option("--samples", "-n", min=1, help="Answers to write; with --json one object a line.")
    ] = 1,
    logprobs: Annotated[
        int | None, typer.Option("--logprobs", help="With --json: log-probabilities, and of N alternatives each.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    asked = read_prompt(source, prompt, prompt_file, messages, system=system, raw=raw)
    if as_json and show_exceptions:
        raise InputError("--show-exceptions is for the terminal: --json lists the exceptions anyway")
    if logprobs is not None and not as_json:
        raise InputError("--logprobs needs --json, which has a place for them")
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
        logprobs=logprobs,
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
    streams = [engine.stream(asked, settings=settings, sample=n, raw=raw) for n in range(samples)]
    for stream in streams:
        stream.admit()  # all, so that they share the prefill and decode together
    for stream in streams:
        if as_json:
            print(json.dumps(asdict(stream.finish()), ensure_ascii=False), flush=True)  # noqa: T201
            continue
        if stream is not streams[0]:
            print()  # noqa: T201
        write(stream, mark=show_exceptions)
        report(stream.result, show_exceptions=show_exceptions)


def write(chunks: Iterable[Chunk], *, mark: bool = False) -> None:
    """Chunks to standard output as they come, and a line break after the last, also of an answer cut short.

    `mark`: colour the text of exceptions, in a terminal. Text that waited for the next token is coloured with it.
    """
    coloured = mark and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    open_line = relaxed = False
    try:
        for chunk in chunks:
            relaxed = relaxed or chunk.exception is not None
            if chunk.text:
                sys.stdout.write(
                    typer.style(chunk.text, fg="magenta", bold=True) if coloured and relaxed else chunk.text
                )
                relaxed = False
                sys.stdout.flush()
                open_line = True
    finally:
        if open_line:
            sys.stdout.write("\n")
            sys.stdout.flush()


def report(result: Result, *, show_exceptions: bool = False) -> None:
    """One line of statistics on standard error, and one for each exception if they are to be shown."""
    print(summary(result), file=sys.stderr)  # noqa: T201
    for one in result.exceptions if show_exceptions else ():
        told = f"token {one.position}: {one.chosen_text!r} for {one.preferred_text!r}, regret {one.regret:.3f}"
        print(f"  {told}", file=sys.stderr)  # noqa: T201


def summary(result: Result) -> str:
    """The statistics of an answer in one line."""
    stats = result.stats
    promise = "exact" if stats.exact else "lossless" if stats.lossless else "not lossless"
    return (
        f"{stats.committed} tokens, {stats.tokens_per_s:.1f}/s after {stats.prefill_s:.2f} s of prefill · "
        f"{stats.forwards} forwards, {stats.acceptance_length:.2f} tokens each · "
        f"{stats.model} {stats.dtype}, {stats.drafter} + {stats.verifier}, {promise}{_spending(result)}"
    )


def _spending(result: Result) -> str:
    """What a relaxed verifier did; nothing of a lossless one."""
    if result.stats.lossless:
        return ""
    count = len(result.exceptions)
    told = f": {count} exception{'' if count == 1 else 's'} of regret {result.budget_spent:.3f}"
    return told if result.budget_left is None else f"{told}, {result.budget_left:.3f} left"
