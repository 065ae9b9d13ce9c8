"""A few deliberate faults, each of which the tests must catch; `make mutants` tries them all."""

import re
import subprocess
import sys
from collections import Counter
from types import ModuleType

import pytest

from scripts import TOOLS, script

PACKAGE = TOOLS.parent / "src" / "betoken"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return script("mutants")


def test_every_mutant_has_its_text_and_its_tests(tool: ModuleType) -> None:
    """Those of other processors too."""
    wrong = []
    for mutant in {*tool.MUTANTS, *tool.NATIVE, *tool.NATIVE_VNNI}:
        found = (PACKAGE / mutant.file).read_text(encoding="utf-8").count(mutant.before)
        if found != 1 or mutant.after == mutant.before:
            wrong.append(f"{mutant.name}: its text occurs {found} times in {mutant.file}")
        wrong += [f"{mutant.name}: there is no {test}" for test in mutant.tests if not exists(test)]
    assert not wrong, "\n".join(wrong)
    names = Counter(mutant.name for mutant in {*tool.MUTANTS, *tool.NATIVE, *tool.NATIVE_VNNI})
    assert max(names.values()) == 1, names.most_common(3)


def exists(test: str) -> bool:
    """Whether a file holds the test function that is named, as far as one is."""
    file, _, function = test.partition("::")
    path = TOOLS.parent / file
    name = function.partition("[")[0]
    return path.is_file() and (not name or re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE) is not None)


@pytest.mark.parametrize("name", ["probe followed", "off by one in the visible cache", "bonus from the wrong node"])
def test_a_mutant_is_caught(name: str) -> None:
    command = [sys.executable, TOOLS / "mutants.py", "--only", name]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 of 1 mutants caught" in run.stdout
