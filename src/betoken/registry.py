"""Methods by name: built-in tables, third parties by entry point, settings from dataclass fields."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from importlib.metadata import entry_points
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from betoken.errors import InputError


def names(kind: str, table: Mapping[str, type]) -> dict[str, type]:
    """The built-in classes of a kind ("drafter", "verifier") and those that installed packages register.

    A package registers a class under the entry point group `betoken.drafters` or `betoken.verifiers`.
    """
    found = dict(table)
    for point in entry_points(group=f"betoken.{kind}s"):
        if point.name not in found:
            found[point.name] = point.load()
    return found


def settings_of(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """The settings of a method: its dataclass fields that the constructor takes, and that are public."""
    return {f.name: f for f in dataclasses.fields(cls) if f.init and not f.name.startswith("_")}


def create(
    kind: str, table: Mapping[str, type], name: str, settings: Mapping[str, object], *, option: str | None = None
) -> Any:
    """An instance of the named method with these settings; texts are parsed by the field's type.

    `option`: OPTION.KEY is what a user calls a setting; else KIND.KEY.
    Raises InputError for an unknown name or setting, or a value that does not fit.
    """
    classes = table if name in table else names(kind, table)  # reading the entry points takes 30 ms
    if name not in classes:
        raise InputError(f"unknown {kind} {name!r}{_meant(name, classes)}; known: {', '.join(sorted(classes))}")
    cls = classes[name]
    known = settings_of(cls)
    hints = get_type_hints(cls)
    values = {}
    for key, value in settings.items():
        key = key.replace("-", "_")
        if key not in known:
            have = ", ".join(sorted(known)) or "none"
            raise InputError(f"{kind} {name} has no setting {key!r}{_meant(key, known)}; it has: {have}")
        values[key] = _parsed(f"{option or kind}.{key}", value, hints[key])
    return cls(**values)


def _meant(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _parsed(name: str, value: object, hint: Any) -> object:
    """`value` as the field's type; texts from a command line are converted, everything else must fit already."""
    choices = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for choice in choices:
        ok, parsed = _as(value, choice)
        if ok:
            return parsed
    wanted = " or ".join(_told(choice) for choice in choices)
    raise InputError(f"{name} must be {wanted}, not {value!r}")


def _as(value: object, hint: Any) -> tuple[bool, object]:
    if get_origin(hint) is Literal:
        fitting = [one for one in get_args(hint) if value == one or value == str(one)]
        return bool(fitting), fitting[0] if fitting else value
    if hint is bool:
        texts = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
        return (True, value) if isinstance(value, bool) else (value in texts, texts.get(str(value)))
    if hint in (int, float):
        if isinstance(value, bool):
            return False, None
        try:
            number = hint(value)
        except (TypeError, ValueError, OverflowError):
            return False, None
        exact = not isinstance(value, float) or hint is float or number == value
        return (exact and math.isfinite(number)), number
    if hint is type(None):
        return (value is None or value == "none"), None
    if hint is str:
        return isinstance(value, str), value
    if get_origin(hint) is tuple:
        return _as_tuple(value, get_args(hint)[0])
    return isinstance(value, hint), value


def _as_tuple(value: object, item: Any) -> tuple[bool, object]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        return False, None
    parsed = [_as(part, item) for part in parts]
    return all(ok for ok, _ in parsed), tuple(one for _, one in parsed)


def _told(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(str(choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return f"{_told(get_args(hint)[0])}s separated by commas"
    told = {bool: "true or false", int: "a whole number", float: "a finite number", type(None): "none"}
    return told.get(hint, getattr(hint, "__name__", str(hint)))
