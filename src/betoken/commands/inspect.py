"""`betoken inspect`: draw the trees of a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from betoken.commands import options
from betoken.commands.prompts import read_prompt

HELP = """Decode a prompt and draw the tree of every step: roles, claims (c), target probabilities (p), the kept path.

[bold]Examples[/bold]

  betoken inspect --prompt "Repeat: one two three one two three" --steps 5

  betoken inspect --drafter ptd --prompt-file code.py --raw --picture trees.svg"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(help=HELP)(inspect)


def inspect(
    source: Annotated[str | None, typer.Argument(metavar="-", help="Read the prompt from standard input.")] = None,
    model: options.Model = options.DEFAULT_MODEL,
    prompt: Annotated[str | None, typer.Option("--prompt", help="The prompt.")] = None,
    prompt_file: Annotated[Path | None, typer.Option("--prompt-file", help="A UTF-8 text file.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Most steps to draw.")] = 8,
    skip: Annotated[int, typer.Option(min=0, help="Steps to leave out at the start.")] = 0,
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw into this PNG or SVG file.")] = None,
    max_new_tokens: options.MaxNewTokens = 64,
    seed: options.Seed = 0,
    temperature: options.Temperature = 0.0,
    draft_model: options.DraftModel = None,
    drafter: options.DrafterName = None,
    verifier: options.VerifierName = None,
    set_: options.Set = None,
    nodes: options.Nodes = "16",
    dtype: options.Dtype = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    cache_dir: options.CacheDir = None,
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.AsJson = False,
) -> None:
    asked = read_prompt(source, prompt, prompt_file, None, system=None, raw=raw)
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
    from rich.console import Console

    from betoken.inspect import Recorder, draw, rich_tree

    recorder = Recorder(most=skip + steps)
    engine.decoder.observer = recorder
    engine.generate(asked, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, raw=raw)
    chosen = recorder.steps[skip : skip + steps]

    def spell(token: int) -> str:
        return engine.tokenizer.decode([token], skip_special=False)

    if picture is not None:
        title = f"{engine.target.name}, {engine.decoder.drafter.name} + {engine.decoder.verifier.name}"
        draw(chosen, picture, spell, title=title)
    if as_json:
        print(json.dumps([asdict(step) for step in chosen]))  # noqa: T201
    elif picture is None:
        for step in chosen:
            Console().print(rich_tree(step, spell))
