"""The reproductions on grid trips, at a size that says nothing about the claims."""

from __future__ import annotations

import json
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest

from betoken.cli import main
from betoken.errors import InputError
from betoken.training.fit import Tell
from betoken.training.reproduce.embeddings import reproduce_embeddings
from betoken.training.reproduce.trips import (
    TAUGHT,
    GridSettings,
    TripFindings,
    TripSettings,
    publish_trips,
    reproduce_trips,
)

GRID = GridSettings(
    trips=48,
    validation=8,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    batch=8,
    lm_steps=6,
    student_steps=3,
    window=8,
    cuts=2,
)
TINY = TripSettings(**asdict(GRID), scratch_steps=2, scratch_window=10, decoded=1, nodes=(8,))


def quiet(resume: str | None) -> AbstractContextManager[Tell]:
    return nullcontext(lambda done, total, what: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TripFindings]:
    """A finished run of seed 3, and its folder."""
    out = tmp_path_factory.mktemp("trips")
    return out, reproduce_trips(TINY, 3, out, quiet)


def test_everything_is_measured_and_a_second_call_finds_it_done(made: tuple[Path, TripFindings]) -> None:
    out, found = made
    # An untrained model is near uniform over 27 tokens; the generator's own perplexity bounds every model from below.
    assert found.entropy < found.autoregressive < 30
    assert found.scratch is not None and found.entropy < found.scratch < 30
    assert found.scratch_text is not None and found.entropy < found.scratch_text < 30
    # Both are measured on the same tokens, whose mean loss is that of the nodes.
    assert len(found.by_node) == TINY.scratch_window
    for place, whole in ((0, found.same_tokens), (1, found.scratch)):
        logs = [math.log(pair[place]) for pair in found.by_node]
        assert whole is not None and min(logs) < math.log(whole) < max(logs)
    assert set(found.right_in_a_row) == {"o-ptp", "independent"}
    assert all(0.0 <= run <= 8.0 for run in found.right_in_a_row.values())
    assert json.loads((out / "seed-3" / "findings.json").read_text())["seed"] == 3
    kept = [out / "seed-3" / "lm" / "model.safetensors", out / "seed-3" / "decoding.jsonl"]
    before = [path.read_bytes() for path in kept]
    assert reproduce_trips(TINY, 3, out, quiet) == found
    assert [path.read_bytes() for path in kept] == before


def test_every_way_of_decoding_gives_plain_samplings_trips(made: tuple[Path, TripFindings]) -> None:
    _, found = made
    ways = {(one.drafter, one.mode, one.nodes) for one in found.decoded}
    modes = ("partial quadratic", "full quadratic", "sequential")
    assert ways == {(name, mode, n) for name in ("O-PTP", "independent") for mode in modes for n in (8,)}
    for one in found.decoded:
        assert (one.answers, one.equal) == (1, 1)
        assert one.tokens <= 99 and one.forwards <= one.tokens <= one.forwards + one.accepted
        assert one.scored <= one.nodes * one.forwards


def test_the_tables_have_a_row_a_seed_and_a_row_a_way(made: tuple[Path, TripFindings]) -> None:
    out, found = made
    publish_trips(TINY, [found, found], out)
    assert (out / "trips.provenance.json").is_file()
    trained, nodes, decoded, verdict = (out / "trips.md").read_text().split("\n\n")
    for table, rows in ((trained.splitlines(), 2), (nodes.splitlines(), 10), (decoded.splitlines(), 6)):
        assert len(table) == 2 + rows
        assert all(line.count("|") == table[0].count("|") for line in table)
    assert trained.splitlines()[2].startswith("| 3 | 2.070 |")
    assert all(line.endswith("| 2 of 2 |") for line in decoded.splitlines()[2:])
    assert verdict.startswith("All 12 answers are plain sampling's")


def test_a_claim_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = (
        "--trips=8 --layers=1 --hidden=8 --batch=4 --window=4 --cuts=1 --lm-steps=1 --student-steps=1 "
        "--scratch-steps=1 --scratch-window=4 --decoded=1 --nodes=4 --threads=1"
    )
    blind, learnt = {"scratch"}, [7, 8, 9]
    for number, (claim, trained, dashes) in enumerate(
        (
            (["perplexity"], blind, learnt),
            (["perplexity", "--scratch-objective", "c-ptp"], blind, learnt),
            (["runs"], set(TAUGHT), [3, 4, 5, 6]),
        )
    ):
        out = tmp_path / str(number)
        with pytest.raises(SystemExit) as ended:
            main(["reproduce", "trips", "--claims", *claim, "--out", str(out), *sizes.split()])
        assert ended.value.code == 0
        cells = capsys.readouterr().out.splitlines()[2].strip("| ").split(" | ")
        assert [place for place, cell in enumerate(cells) if cell == "-"] == dashes
        assert {path.name for path in (out / "seed-1").iterdir() if path.is_dir()} == {"lm"} | trained


def test_embeddings_share_a_teacher_and_differ_in_nothing_else(tmp_path: Path) -> None:
    found = reproduce_embeddings(GRID, 2, tmp_path, quiet)
    assert set(found.loss) == set(found.right_in_a_row) == {"bits", "digits", "interpolated"}
    assert all(0.0 < loss < 5.0 for loss in found.loss.values())
    facts = {kind: json.loads((tmp_path / f"seed-2/o-ptp-{kind}/training.json").read_text()) for kind in found.loss}
    for kind, told in facts.items():
        assert told.pop("embedding") == kind
        assert told["validation"]["loss"] == found.loss[kind]
        for measured in ("validation", "last"):
            told.pop(measured)
    assert facts["bits"] == facts["digits"] == facts["interpolated"]
    assert reproduce_embeddings(GRID, 2, tmp_path, quiet) == found


def test_embeddings_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--trips=8 --layers=1 --hidden=8 --batch=4 --window=4 --cuts=1 --lm-steps=1 --student-steps=1 --threads=1"
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "embeddings", "--out", str(tmp_path), "--seeds", "5", *sizes.split()])
    assert ended.value.code == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1:3] for line in table[2:]] == [
        [" 5 ", " bits of the float32 "],
        [" 5 ", " binary digits "],
        [" 5 ", " between three vectors "],
    ]
    assert (tmp_path / "embeddings.md").read_text().splitlines() == table
    assert (tmp_path / "embeddings.provenance.json").is_file()


def test_a_window_longer_than_a_trip_is_refused() -> None:
    with pytest.raises(InputError, match="scratch_window must be from 2 to 101"):
        TripSettings(scratch_window=102)


@pytest.mark.parametrize("command", ["trips", "embeddings", "python"])
def test_bad_seeds_are_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", command, "--seeds", "1,two", "--out", str(tmp_path / "trips")])
    assert ended.value.code == 2
    assert "numbers from 0 up" in capsys.readouterr().err
    assert not (tmp_path / "trips").exists()


@pytest.mark.parametrize(
    ("command", "wrong", "told"),
    [
        ("trips", "--hidden=12", "multiple of twice the 4"),
        ("trips", "--window=102", "window must be from 2 to 101"),
        ("trips", "--nodes=16,x", "write whole numbers"),
        ("trips", "--nodes=0", "nodes must be at least 1"),
        ("trips", "--claims=speed", "claims must be some of perplexity, runs, not speed"),
        ("trips", "--scratch-objective=o-ptp", "scratch_objective must be scratch or c-ptp, not o-ptp"),
        ("embeddings", "--window=1", "window must be from 2 to 101"),
        ("embeddings", "--lr=0", "lr and clip must be above 0"),
        ("python", "--lr=nan", "lr and clip must be above 0"),
        ("python", "--drafter-hidden=12", "multiple of twice the 4"),
        ("python", "--window=256", "window must be from 2 to 255"),
        ("python", "--nodes=1", "nodes at least 2"),
        ("python", "--prompt-tokens=200", "need a context of 280, not 256"),
        ("python", "--validation-share=1", "between 0 and 1"),
    ],
)
def test_sizes_are_settings_of_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, wrong: str, told: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", command, wrong, "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert told in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()
