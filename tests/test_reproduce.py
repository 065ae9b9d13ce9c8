"""The reproduction of PTP's claims on grid trips, at a size that says nothing about the claims."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from betoken.cli import main
from betoken.errors import InputError
from betoken.training.fit import Tell
from betoken.training.reproduce import TripSettings, publish, reproduce_trips

TINY = TripSettings(
    trips=48,
    validation=8,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    batch=8,
    lm_steps=6,
    scratch_steps=2,
    student_steps=3,
    window=8,
    cuts=2,
    scratch_window=10,
)


def quiet(resume: str | None) -> AbstractContextManager[Tell]:
    return nullcontext(lambda done, total, what: None)


def test_everything_is_measured_and_a_second_call_finds_it_done(tmp_path: Path) -> None:
    found = reproduce_trips(TINY, 3, tmp_path, quiet)
    # An untrained model is near uniform over 27 tokens; the generator's own perplexity bounds every model from below.
    assert found.entropy < found.autoregressive < 30
    assert found.entropy < found.scratch < 30
    assert found.entropy < found.scratch_text < 30
    assert set(found.right_in_a_row) == {"o-ptp", "independent"}
    assert all(0.0 <= run <= 8.0 for run in found.right_in_a_row.values())
    assert (tmp_path / "seed-3" / "findings.json").is_file()
    weights = tmp_path / "seed-3" / "lm" / "model.safetensors"
    before = weights.read_bytes()
    assert reproduce_trips(TINY, 3, tmp_path, quiet) == found
    assert weights.read_bytes() == before


def test_the_table_has_a_row_a_seed(tmp_path: Path) -> None:
    found = reproduce_trips(TINY, 1, tmp_path, quiet)
    publish(TINY, [found, found], tmp_path)
    assert (tmp_path / "trips.provenance.json").is_file()
    table = (tmp_path / "trips.md").read_text().splitlines()
    assert len(table) == 4
    assert table[2].startswith("| 1 | 2.070 |")
    assert all(line.count("|") == table[0].count("|") for line in table)


def test_a_window_longer_than_a_trip_is_refused() -> None:
    with pytest.raises(InputError, match="scratch_window must be from 2 to 101"):
        TripSettings(scratch_window=102)


def test_bad_seeds_are_refused_before_anything_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "trips", "--seeds", "1,two", "--out", str(tmp_path / "trips")])
    assert ended.value.code == 2
    assert "numbers from 0 up" in capsys.readouterr().err
    assert not (tmp_path / "trips").exists()


def test_sizes_are_settings_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "trips")
    for wrong, told in (("--hidden=6", "multiple of the 4"), ("--window=102", "window must be from 2 to 101")):
        with pytest.raises(SystemExit) as ended:
            main(["reproduce", "trips", wrong, "--out", out])
        assert ended.value.code == 2
        assert told in capsys.readouterr().err
    assert not (tmp_path / "trips").exists()
