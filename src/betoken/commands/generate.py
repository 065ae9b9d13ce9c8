"""`betoken generate`: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands import options
from betoken.commands.prompts import read_prompt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from betoken.result import Chunk, Stats

HELP = """Answer one prompt; the text streams to standard output, one line of statistics follows on standard error.

[bold]Examples[/bold]

  betoken generate --prompt "Write a haiku about the sea."

  betoken generate --prompt-file report.txt --system "Summarise in three sentences." --max-new-tokens 120

  betoken generate --prompt "def fib(n):" --raw --drafter none --json

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
    as_json: options.AsJson = False,
) -> None:
    asked = read_prompt(source, prompt, prompt_file, messages, system=system, raw=raw)
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
    stream = engine.stream(
        asked,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=stop or (),
        raw=raw,
    )
    if as_json:
        print(json.dumps(asdict(stream.finish()), ensure_ascii=False))  # noqa: T201
        return
    write(stream)
    print(summary(stream.result.stats), file=sys.stderr)  # noqa: T201


def write(chunks: Iterable[Chunk]) -> None:
    """Chunks to standard output as they come, and a line break after the last, also of an answer cut short."""
    open_line = False
    try:
        for chunk in chunks:
            if chunk.text:
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
                open_line = True
    finally:
        if open_line:
            sys.stdout.write("\n")
            sys.stdout.flush()


def summary(stats: Stats) -> str:
    """The statistics of an answer in one line."""
    promise = "exact" if stats.exact else "lossless" if stats.lossless else "not lossless"
    return (
        f"{stats.committed} tokens, {stats.tokens_per_s:.1f}/s after {stats.prefill_s:.2f} s of prefill · "
        f"{stats.forwards} forwards, {stats.acceptance_length:.2f} tokens each · "
        f"{stats.model} {stats.dtype}, {stats.drafter} + {stats.verifier}, {promise}"
    )
