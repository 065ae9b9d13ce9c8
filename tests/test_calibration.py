"""The file that calibrate asd freezes, and what the verifier makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from betoken.errors import InputError
from betoken.registry import create
from betoken.verifiers import VERIFIERS
from betoken.verifiers.asd import Asd


def freeze(path: Path, **changes: Any) -> Path:
    told = {"kind": "asd calibration", "budget": 2.5, "gate": 1.5, "cap": 1, "variant": 2, "rows": {"a/1": "0f"}}
    path.write_text(json.dumps(told | changes))
    return path


def test_the_verifier_takes_its_settings_from_the_file(tmp_path: Path) -> None:
    path = freeze(tmp_path / "asd.json")
    asd = create("verifier", VERIFIERS, "asd", {"config": str(path)})
    assert (asd.budget, asd.gate, asd.cap, asd.variant) == (2.5, 1.5, 1, 2) and not asd.lossless
    assert replace(asd) == asd
    assert Asd(config=str(freeze(path, budget=0))).lossless


@pytest.mark.parametrize("name", ["budget", "gate", "cap", "variant"])
def test_settings_beside_the_file_are_refused(name: str, tmp_path: Path) -> None:
    settings = {"config": str(freeze(tmp_path / "asd.json", variant=1)), name: "2" if name == "variant" else "7"}
    with pytest.raises(InputError, match=f"asd: {name} .* beside config"):
        create("verifier", VERIFIERS, "asd", settings)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "no JSON"),
        ("[]", "not a file of betoken calibrate asd"),
        ('{"kind": "other"}', "not a file of betoken calibrate asd"),
        ('{"kind": "asd calibration", "budget": 1}', "damaged"),
        ('{"kind": "asd calibration", "budget": 1, "gate": 1, "cap": 1.5, "variant": 2, "rows": {}}', "damaged"),
        ('{"kind": "asd calibration", "budget": -1, "gate": 1, "cap": 1, "variant": 2, "rows": {}}', "at least 0"),
    ],
)
def test_other_files_are_refused(content: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "asd.json"
    path.write_text(content)
    with pytest.raises(InputError, match=told):
        Asd(config=str(path))
    with pytest.raises(InputError, match="cannot be read"):
        Asd(config=str(tmp_path / "none.json"))
