"""Which instructions this machine has."""

from __future__ import annotations

import platform
from functools import cache
from typing import Literal

from llvmlite import binding

Isa = Literal["vnni", "avx2", "none"]


@cache
def isa() -> Isa:
    """The best int8 product this processor runs: `vnni` (AVX-512 VNNI), `avx2`, or `none` (no kernels, ARM say)."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return "none"
    features = binding.get_host_cpu_features()
    if features.get("avx512vnni") and features.get("avx512f") and features.get("avx512bw"):
        return "vnni"
    return "avx2" if features.get("avx2") else "none"


VNNI = isa() == "vnni"
