"""`betoken generate`: one prompt, one answer."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands import options
from betoken.commands.groups import Asking, Loading, Writing, grouped
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


@grouped
def generate(
    asking: Asking,
    loading: Loading,
    writing: Writing,
    show_exceptions: options.ShowExceptions = False,
    samples: Annotated[
        int, typer.Option("--samples", "-n", min=1, help="Answers to write; with --json one object a line.")
    ] = 1,
    logprobs: Annotated[
        int | None, typer.Option("--logprobs", help="With --json: log-probabilities, and of N alternatives each.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    asked = asking.read()
    if as_json and show_exceptions:
        raise InputError("--show-exceptions is for the terminal: --json lists the exceptions anyway")
    if logprobs is not None and not as_json:
        raise InputError("--logprobs needs --json, which has a place for them")
    settings = writing.settings(logprobs)  # refuses bad values before a model is loaded
    engine = loading.open()
    streams = [engine.stream(asked, settings=settings, sample=n, raw=asking.raw) for n in range(samples)]
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
