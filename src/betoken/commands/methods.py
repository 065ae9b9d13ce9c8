"""`betoken drafters` and `betoken verifiers`: the methods and their settings, read from their dataclass fields."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from dataclasses import MISSING
from itertools import pairwise
from typing import Any

import typer

from betoken.commands import options


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(help="List the drafters and their settings (--set drafter.KEY=VALUE).")(drafters)
    app.command(help="List the verifiers and their settings (--set verifier.KEY=VALUE).")(verifiers)


def drafters(as_json: options.AsJson = False) -> None:
    from betoken.drafters import DRAFTERS

    _show("drafter", DRAFTERS, as_json)


def verifiers(as_json: options.AsJson = False) -> None:
    from betoken.verifiers import VERIFIERS

    _show("verifier", VERIFIERS, as_json)


def describe(kind: str, table: dict[str, type]) -> list[dict[str, Any]]:
    """Each method as {name, about, settings: [{name, type, default, about}]}, those of other packages included."""
    from betoken.registry import names, settings_of

    found = []
    for name, cls in names(kind, table).items():
        documented = field_docs(cls)
        settings = [
            {"name": key, "type": _type(field.type), "default": _default(field), "about": documented.get(key, "")}
            for key, field in settings_of(cls).items()
        ]
        found.append({"name": name, "about": inspect.getdoc(cls) or "", "settings": settings})
    return found


def field_docs(cls: type) -> dict[str, str]:
    """Field name -> the text below it in the source of the class, or of those it inherits from."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            [definition] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, ValueError):  # a class without source, such as one made in a session
            continue
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for field, text in pairwise(body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(about))):
                    found[name] = inspect.cleandoc(about)
    return found


def _type(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _default(field: Any) -> Any:
    """The default as JSON can hold it."""
    value = field.default_factory() if field.default_factory is not MISSING else field.default
    if value is MISSING:
        return None
    return value if isinstance(value, str | int | float | bool | None) else list(value)


def _show(kind: str, table: dict[str, type], as_json: bool) -> None:
    found = describe(kind, table)
    if as_json:
        print(json.dumps(found))  # noqa: T201
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.padding import Padding

    console = Console(highlight=False)
    for method in found:
        console.print(f"[bold]{escape(method['name'])}[/bold]  {escape(' '.join(method['about'].split()))}")
        for setting in method["settings"]:
            about = f"  {' '.join(setting['about'].split())}" if setting["about"] else ""
            told = f"{setting['name']}={json.dumps(setting['default'])}"
            console.print(Padding(f"[cyan]{escape(told)}[/cyan]{escape(about)}", (0, 0, 0, 4)))
