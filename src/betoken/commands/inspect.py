"""`betoken inspect`: draw the trees of a run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from betoken.commands import options
from betoken.commands.groups import Asking, Loading, Writing, grouped

HELP = """Decode a prompt and draw the tree of every step: roles, claims (c), target probabilities (p), the kept path.

Roles: the pending token; candidates, of which the accepted path is kept; seeds and the probes grown under them, scored
only to be read (ptd, lookahead); the bonus token, which the target adds itself.

[bold]Examples[/bold]

  betoken inspect --prompt "Repeat: one two three one two three" --steps 5

  betoken inspect --drafter ptd --prompt-file code.py --raw --picture trees.svg"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(help=HELP)(inspect)


@dataclass(frozen=True, kw_only=True)
class Shown(Loading):
    """Which model, and how it decodes: trees that fit on a screen."""

    nodes: options.Nodes = "16"


@dataclass(frozen=True, kw_only=True)
class Short(Writing):
    """How the answer is written: a few steps are enough."""

    max_new_tokens: options.MaxNewTokens = 64


@grouped
def inspect(
    asking: Asking,
    loading: Shown,
    writing: Short,
    steps: Annotated[int, typer.Option(min=1, help="Most steps to draw.")] = 8,
    skip: Annotated[int, typer.Option(min=0, help="Steps to leave out at the start.")] = 0,
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw into this PNG or SVG file.")] = None,
    as_json: options.AsJson = False,
) -> None:
    asked, settings = asking.read(), writing.settings()
    engine = loading.open()
    from rich.console import Console

    from betoken.inspect import Recorder, draw, rich_tree

    recorder = Recorder(most=skip + steps)
    engine.decoder.observer = recorder
    engine.generate(asked, settings=settings, raw=asking.raw)
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
