"""Methods from the words of a command line or a TOML file: drafters, each under one or several verifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from betoken.bench.subject import Method, check_methods
from betoken.drafters import DRAFTERS
from betoken.errors import InputError
from betoken.registry import names, settings_of

_BY_LAW = ("rejection", "block", "traversal", "lenience")
"""Verifiers that weigh a draft by the law it was drawn from: drafters that can must draw, and record the law."""


def parse_drafters(drafters: str, assignments: Sequence[str], verifiers: str, nodes: str) -> tuple[Method, ...]:
    """Methods from a command line: `a,b,c`, settings `a.KEY=VALUE` or `verifier.KEY=VALUE`, nodes auto or a number.

    `verifiers`: names as in `combine`, separated by commas. Raises InputError for unknown or repeated names, and
    settings that no drafter of the list has.
    """
    labels = listed(drafters)
    settings: dict[str, dict[str, object]] = {label: {} for label in [*labels, "verifier"]}
    for text in assignments:
        key, equals, value = text.partition("=")
        owner, dot, name = key.strip().partition(".")
        if not equals or not dot or not name:
            raise InputError(f"--set {text}: write DRAFTER.KEY=VALUE or verifier.KEY=VALUE")
        if owner not in settings:
            raise InputError(f"--set {text}: {owner} is not among the drafters ({', '.join(labels) or 'none'})")
        settings[owner][name] = value
    common = settings.pop("verifier")
    chosen = listed(verifiers)
    if common and len(chosen) > 1:
        raise InputError("--set verifier.KEY: of several verifiers, write NAME:KEY=VALUE among them instead")
    methods = combine(labels, chosen, settings, common, int(nodes) if nodes.isdigit() else nodes)
    check_methods(methods)
    return methods


def combine(
    drafters: Sequence[str],
    verifiers: Sequence[str],
    settings: Mapping[str, Mapping[str, object]],
    common: Mapping[str, object],
    nodes: int | str,
) -> tuple[Method, ...]:
    """Every drafter under every verifier. A verifier is `NAME` or `NAME:KEY=VALUE:KEY=VALUE`.

    `settings`: of the drafters, by name; `common`: of the verifiers. With one verifier a method is called like its
    drafter, with several `DRAFTER/VERIFIER`. A drafter gets the settings that `fitting` names besides its own.
    """
    if not verifiers:
        raise InputError("name at least one verifier (betoken verifiers lists them)")
    methods = []
    for drafter in drafters:
        for text in verifiers:
            verifier, own = _verifier(text)
            label = drafter if len(verifiers) == 1 else f"{drafter}/{text}"
            rules = {**common, **own}
            given = {**fitting(drafter, verifier, rules), **settings.get(drafter, {})}
            methods.append(Method(label, drafter, given, verifier, rules, nodes))
    return tuple(methods)


def fitting(drafter: str, verifier: str, settings: Mapping[str, object]) -> dict[str, object]:
    """The drafter's settings without which this verifier keeps less of a draft than it could; {} for most.

    Speculative sampling needs draws and their law (`sample`); replay needs guesses by its own rule (`rule`).
    """
    classes = names("drafter", DRAFTERS)
    known = settings_of(classes[drafter]) if drafter in classes else {}
    found: dict[str, object] = {}
    if verifier in _BY_LAW and "sample" in known:
        found["sample"] = True
    if verifier == "replay" and "rule" in settings and "rule" in known:
        found["rule"] = settings["rule"]
    return found


def listed(text: str) -> list[str]:
    """The names in a text, separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _verifier(text: str) -> tuple[str, dict[str, object]]:
    name, *assignments = text.split(":")
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise InputError(f"verifier {text}: write NAME or NAME:KEY=VALUE")
        settings[key] = value
    return name, settings
