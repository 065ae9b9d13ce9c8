"""A few deliberate faults, each of which the tests must catch; `make mutants` tries them all."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "tools" / "mutants.py"


@pytest.mark.parametrize("name", ["probe followed", "off by one in the visible cache", "bonus from the wrong node"])
def test_a_mutant_is_caught(name: str) -> None:
    run = subprocess.run([sys.executable, SCRIPT, "--only", name], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 of 1 mutants caught" in run.stdout
