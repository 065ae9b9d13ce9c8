"""`betoken pull` and `betoken models`: models on this disk."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from betoken.commands import options

PULL_HELP = """Fetch a model and convert it, so that it can be used offline.

  betoken pull smollm2-135m"""

MODELS_HELP = """Models that betoken knows by name, and those on this disk.

  betoken models

  betoken models rm smollm2-135m"""

Name = Annotated[str, typer.Argument(help="A name that betoken models lists.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(help=PULL_HELP)(pull)
    models = typer.Typer(help=MODELS_HELP, invoke_without_command=True)
    models.callback()(show)
    models.command("list", help="List them.")(list_)
    models.command("rm", help="Remove a model from the cache.")(remove)
    app.add_typer(models, name="models")


def pull(name: Name, cache_dir: options.CacheDir = None, as_json: options.AsJson = False) -> None:
    from betoken.models.files import BarProgress
    from betoken.models.store import pull as pull_model

    folder = pull_model(name, cache_dir, progress=BarProgress())
    print(json.dumps({"name": name, "path": str(folder)}) if as_json else folder)  # noqa: T201


def show(context: typer.Context, cache_dir: options.CacheDir = None, as_json: options.AsJson = False) -> None:
    if context.invoked_subcommand is None:
        list_(cache_dir, as_json)


def list_(cache_dir: options.CacheDir = None, as_json: options.AsJson = False) -> None:
    from betoken.models.store import list_models

    found = list_models(cache_dir)
    if as_json:
        rows = [
            {"name": m.name, "description": m.description, "path": m.path and str(m.path), "bytes": m.bytes}
            for m in found
        ]
        print(json.dumps(rows))  # noqa: T201
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "what it is", "on this disk", box=None)
    for model in found:
        table.add_row(model.name, model.description, f"{model.bytes / 1e6:.0f} MB" if model.path else "-")
    Console().print(table)


def remove(name: Name, cache_dir: options.CacheDir = None, as_json: options.AsJson = False) -> None:
    from betoken.models.store import remove as remove_model

    freed = remove_model(name, cache_dir)
    told = json.dumps({"name": name, "freed_bytes": freed}) if as_json else f"{name}: {freed / 1e6:.0f} MB freed"
    print(told)  # noqa: T201
