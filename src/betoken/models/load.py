"""From a model's name to a target that is ready to score, on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from betoken.errors import InputError
from betoken.models.config import FAMILIES, DecoderConfig, architecture_of, read_json
from betoken.models.decoder import DTYPES, TorchDecoder
from betoken.models.graphs import capture_for
from betoken.models.memory import check_fits
from betoken.models.store import resolve
from betoken.models.student import NOT_ON_KERNELS
from betoken.models.target import Target
from betoken.models.tokenizer import Tokenizer
from betoken.models.weights import Weights

Backend = Literal["auto", "native", "torch"]

_CONTEXT = 4096
"""Positions whose keys and values the memory check counts, where the model's context is not smaller."""

_SERVED = (
    "int8 and int4 run on x86-64 CPUs with AVX2, in the native backend; use dtype float32 and backend torch or auto"
)

INTEGERS = ("int8", "int4")
"""Dtypes that our own CPU kernels alone compute in."""

log = logging.getLogger("betoken")


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to use."""

    target: Target
    tokenizer: Tokenizer
    folder: Path


def load_target(
    name_or_path: str,
    *,
    dtype: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    cache_dir: Path | None = None,
    trust_remote_code: bool = False,
    backend: Backend = "auto",
    cuda_graphs: bool = True,
) -> Loaded:
    """Load a store name, a folder, a GGUF file or a Hub id.

    `dtype`: int8 or int4 (CPU), float32, float64, bfloat16 or float16; None is int8 on a CPU that has the kernels,
    bfloat16 on CUDA, float32 elsewhere. `backend`: `native` is our own CPU kernels (int8, int4, float32), `torch`
    everything else; `auto` prefers the first. `threads`: cores to use, None for all. `cuda_graphs`: record passes on
    CUDA (docs/design/0010-static-shapes.md). Raises InputError, in one line, for whatever cannot be loaded here.
    """
    check_place(dtype, device)
    _check_request(threads, backend)
    folder = resolve(name_or_path, cache_dir)
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise InputError(f"{folder}: no config.json, so this is not a model folder")
    tokenizer = Tokenizer.from_folder(folder)
    if threads is not None:
        torch.set_num_threads(threads)
    if architecture_of(read_json(config_file)) in FAMILIES:
        target = _own(folder, name_or_path, dtype, device, threads, cache_dir, backend, cuda_graphs)
    else:
        target = _foreign(folder, name_or_path, dtype, device, backend, trust_remote_code, cuda_graphs)
    return Loaded(target, tokenizer, folder)


def _own(
    folder: Path,
    name: str,
    dtype: str | None,
    device: str,
    threads: int | None,
    cache_dir: Path | None,
    backend: Backend,
    cuda_graphs: bool,
) -> Target:
    """A model of the Llama family: by our kernels where they serve, else in torch."""
    config = DecoderConfig.from_folder(folder)
    native = _native() if device == "cpu" and backend != "torch" and dtype in (None, *INTEGERS, "float32") else None
    if native is None and (backend == "native" or dtype in INTEGERS):
        raise InputError(
            f"{name}: {dtype or 'this dtype'} with backend {backend} on {device} has no kernels; {_SERVED}"
        )
    chosen = dtype or _default_dtype(name, device, native is not None)
    check_fits(config, chosen, min(config.context, _CONTEXT), available=_free_on(device))
    if native is not None:
        return native(folder, config, chosen, threads, cache_dir)
    capture = capture_for(device, cuda_graphs)
    return TorchDecoder(config, Weights(folder, config), name=name, dtype=chosen, device=device, capture=capture)


def _foreign(
    folder: Path,
    name: str,
    dtype: str | None,
    device: str,
    backend: Backend,
    trust_remote_code: bool,
    cuda_graphs: bool,
) -> Target:
    """A model of another family, through transformers."""
    if dtype in INTEGERS or backend == "native":
        raise InputError(f"{name}: our own kernels compute {', '.join(FAMILIES)} only; use dtype float32")
    from betoken.models.hf import load_hf  # transformers takes seconds to import

    chosen = dtype or _default_dtype(name, device, False)
    return load_hf(
        folder, name=name, dtype=chosen, device=device, trust_remote_code=trust_remote_code, cuda_graphs=cuda_graphs
    )


def _native() -> Callable[[Path, DecoderConfig, str, int | None, Path | None], Target] | None:
    """The loader of our own CPU kernels, None where this processor runs none."""
    from betoken.models.native.isa import isa

    if isa() == "none":
        return None
    from betoken.models.native.target import load_native  # compiles with numba: slow to import

    return load_native


def _default_dtype(name: str, device: str, native: bool) -> str:
    if native:
        return "int8"
    if device != "cpu":
        return "bfloat16"
    log.warning("%s: no int8 kernels for this model on this machine, so it runs in float32", name)
    return "float32"


def backend_for(dtype: str | None, device: str, *, in_torch: bool) -> Backend:
    """The backend of a model that a student of all weights is attached to (`in_torch`), or of any other.

    Raises InputError for a dtype that only our own CPU kernels compute in, which do not take such a student.
    """
    if in_torch and (dtype in INTEGERS or (dtype is None and device == "cpu" and _native() is not None)):
        raise InputError(f"drafter ptp: {NOT_ON_KERNELS}")
    return "torch" if in_torch else "auto"


def check_place(dtype: str | None, device: str) -> None:
    """Raises InputError for a dtype that is none, a device that is not here, or one that does not compute in it."""
    if dtype is not None and dtype not in INTEGERS and dtype not in DTYPES:
        raise InputError(f"unknown dtype {dtype!r}; choose one of {', '.join([*INTEGERS, *DTYPES])}")
    check_device(device)
    if device.startswith("cuda") and dtype in INTEGERS:
        raise InputError(f"dtype {dtype} runs on the CPU only; use bfloat16 on CUDA")


def _check_request(threads: int | None, backend: str) -> None:
    if backend not in ("auto", "native", "torch"):
        raise InputError(f"unknown backend {backend!r}; choose one of auto, native, torch")
    if threads is not None and threads < 1:
        raise InputError(f"threads must be at least 1, not {threads}")


def check_device(device: str) -> None:
    """Raises InputError for a device that torch cannot name, or that is not here."""
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
        raise InputError(f"unknown device {device!r}; choose cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {device}: torch finds no CUDA device here; use cpu")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise InputError(f"device {device}: there are only {torch.cuda.device_count()} CUDA devices")


def _free_on(device: str) -> int | None:
    """Free bytes of a CUDA device; None for the CPU, whose memory `check_fits` asks for itself."""
    return torch.cuda.mem_get_info(device)[0] if device != "cpu" else None
