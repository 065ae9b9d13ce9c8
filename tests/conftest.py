"""Fixtures that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest

from betoken.models.store import pull


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of the real SmolLM2-135M-Instruct; fetched into the user's cache the first time."""
    return pull("smollm2-135m")
