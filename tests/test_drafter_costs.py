"""tools/drafter_costs.py, and what it guards: PTD drafts the trees that were recorded, at a cost that does not grow."""

from __future__ import annotations

import gc
import random
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from betoken.decode import Request
from betoken.drafters.text_pool import Reader, TextPool
from betoken.state import SamplingSettings, StopSettings
from betoken.testing import ToyTarget
from scripts import script

RECORDINGS = Path(__file__).parent / "recordings"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return script("drafter_costs")


@pytest.mark.parametrize(("name", "steps"), [("ptd-8", 200), ("ptd-turns", 240)])
def test_ptd_drafts_what_it_drafted(tool: ModuleType, name: str, steps: int) -> None:
    """Answers of SmolLM2 (int8), greedy with 8 nodes and at temperature 0.8 with 1 to 48, as PTD first drafted them.

    A change that is only to make it faster must pass. One of what it drafts records them anew.
    """
    recording = tool.Recording.read(RECORDINGS / f"{name}.json.gz")
    assert len(tool.replay(recording)) == steps
    wrong = replace(recording.steps[50], tokens=[*recording.steps[50].tokens[:-1], 0])
    with pytest.raises(ValueError, match="step 50: tokens"):
        tool.replay(replace(recording, steps=[*recording.steps[:50], wrong]))


def test_what_is_recorded_is_read_back_and_replayed(tool: ModuleType, tmp_path: Path) -> None:
    request = Request([1, 2, 3, 4, 1, 2], SamplingSettings(temperature=0.7, seed=2), StopSettings(40, ignore_eos=True))
    for drafter, settings in (("ptd", {"preset": "paper"}), ("lookahead", {}), ("self-draft", {"branches": 3})):
        recording = tool.record(ToyTarget(12, seed=4), request, drafter, settings, [12, 1, 6], 20)
        assert {len(step.tokens) == 1 for step in recording.steps[1::3]} == {True}
        recording.write(tmp_path / "told.json.gz")
        assert tool.Recording.read(tmp_path / "told.json.gz") == recording
        assert len(tool.replay(recording)) == len(recording.steps) <= 20


def test_text_that_does_not_repeat_takes_few_objects() -> None:
    """Python's collector looks at every object again and again: one a token, not the hundred of whole tries."""
    reader = Reader(TextPool(60, 8), 4)
    tokens = list(range(3000))
    random.Random(1).shuffle(tokens)
    gc.collect()
    before = len(gc.get_objects())
    reader.read(tokens, frozenset())
    gc.collect()
    assert len(gc.get_objects()) - before < 1.1 * len(tokens)
