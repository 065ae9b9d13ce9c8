"""Benchmarks from a TOML file: each [[run]] is a model with its methods and settings, and has a result file of its own.

Like this:

    suites = ["spec_bench", "humaneval:20"]     # what stands above the runs holds for all of them
    temperatures = [0, 0.7]

    [[run]]
    model = "smollm2-135m"
    drafters = ["suffix", "ptd"]
    batches = [1, 4, 16]

    [[run]]
    model = "qwen2.5-coder-1.5b"
    draft_model = "qwen2.5-coder-0.5b"
    drafters = ["draft-model"]
    verifiers = ["replay", "rejection", "traversal"]
    temperatures = [0.7, 1.0]                   # instead of those above
    [[run.drafter]]                             # a method with settings of its own
    label = "short suffix"
    drafter = "suffix"
    settings = { max_draft = 2 }
    nodes = 4
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from betoken.bench.methods import combine
from betoken.bench.plan import BenchSettings, SuiteSpec
from betoken.bench.subject import Method, ModelSpec
from betoken.errors import InputError


class Run(NamedTuple):
    """One [[run]] of a file."""

    name: str
    settings: BenchSettings


@dataclass(frozen=True)
class _Run:
    """The keys of a [[run]], and of what stands above the runs. Paths are relative to the file's folder."""

    model: str
    suites: list[str]
    name: str | None = None
    """None: the model's."""
    draft_model: str | None = None
    dtype: str | None = None
    draft_dtype: str | None = None
    device: str = "cpu"
    threads: int | None = None
    drafters: list[str] = field(default_factory=list)
    verifiers: list[str] = field(default_factory=lambda: ["replay"])
    drafter: list[dict[str, Any]] = field(default_factory=list)
    """Tables whose keys are `Method`'s fields."""
    nodes: int | str = "auto"
    data: str | None = None
    per_category: int = 10
    temperatures: list[float] = field(default_factory=lambda: [0.0])
    top_k: int = 0
    top_p: float = 1.0
    batches: list[int] = field(default_factory=lambda: [1])
    max_new_tokens: int = 128
    seed: int = 0
    repeats: int = 1
    raw: bool = False


def read_toml(path: Path) -> list[Run]:
    """The runs of a file. Raises InputError for one that is unreadable or has none, and for unknown or missing keys."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: no valid TOML ({error})") from None
    tables = found.pop("run", None)
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{path}: write at least one [[run]]")
    _check_keys(_Run, found, str(path))
    runs = [_run(found | table, path) for table in tables]
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{path}: two runs are called {name}: give each a name of its own (name = ...)")
    return runs


def result_path(out: Path, name: str) -> Path:
    """`bench.jsonl`, `smollm2-135m` -> `bench-smollm2-135m.jsonl`."""
    return out.with_name(f"{out.stem}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}{out.suffix}")


def _run(table: Mapping[str, Any], path: Path) -> Run:
    keys: _Run = _built(_Run, table, f"{path}: [[run]]")
    spec = ModelSpec(keys.model, keys.draft_model, keys.dtype, keys.device, keys.threads, draft_dtype=keys.draft_dtype)
    data = path.parent / keys.data if keys.data is not None else None
    settings = BenchSettings(
        models=(spec,),
        methods=(*combine(keys.drafters, keys.verifiers, {}, {}, keys.nodes), *_methods(keys, path)),
        suites=tuple(SuiteSpec.parse(name, keys.per_category, data) for name in keys.suites),
        temperatures=tuple(map(float, keys.temperatures)),
        top_k=keys.top_k,
        top_p=float(keys.top_p),
        batches=tuple(keys.batches),
        max_new_tokens=keys.max_new_tokens,
        seed=keys.seed,
        repeats=keys.repeats,
        raw=keys.raw,
    )
    return Run(keys.name or spec.label, settings)


def _methods(keys: _Run, path: Path) -> list[Method]:
    """The methods that have tables of their own."""
    methods = []
    for table in keys.drafter:
        if not isinstance(table.get("drafter"), str):
            raise InputError(f"{path}: [[run.drafter]] must name a drafter")
        whole = {"label": table["drafter"], "nodes": keys.nodes} | table
        methods.append(_built(Method, whole, f"{path}: [[run.drafter]]"))
    return methods


def _built(cls: type[Any], table: Mapping[str, Any], where: str) -> Any:
    """A dataclass from a table whose keys are its fields."""
    _check_keys(cls, table, where)
    try:
        return cls(**table)
    except TypeError as error:
        raise InputError(f"{where}: {str(error).partition('() ')[2]}") from None


def _check_keys(cls: type[Any], table: Mapping[str, Any], where: str) -> None:
    known = {item.name: item for item in fields(cls)}
    for key, value in table.items():
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}; known: {', '.join(known)}")
        if not _fits(value, str(known[key].type)):
            raise InputError(f"{where}: {key} must be {known[key].type}, not {value!r}")


def _fits(value: object, annotation: str) -> bool:
    """Whether a TOML value has the type that a field's annotation says."""
    kinds: dict[str, tuple[type, ...]] = {
        "str": (str,),
        "int": (int,),
        "float": (int, float),
        "bool": (bool,),
        "list[str]": (str,),
        "list[int]": (int,),
        "list[float]": (int, float),
        "list[dict[str, Any]]": (dict,),
        "Mapping[str, object]": (dict,),
    }
    for choice in annotation.split(" | "):
        if choice == "None":
            continue
        values = value if choice.startswith("list[") and isinstance(value, list) else [value]
        if choice.startswith("list[") and not isinstance(value, list):
            continue
        if all(isinstance(one, kinds[choice]) and (choice == "bool" or not isinstance(one, bool)) for one in values):
            return True
    return False
