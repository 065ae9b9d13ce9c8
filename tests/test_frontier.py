"""The frontier and the table of relaxed verifiers on a toy that answers in digits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bench_toys import write_suite
from betoken.bench import subject as subjects
from betoken.bench.evaluate import EvalSettings, run_eval
from betoken.bench.metrics import paired
from betoken.bench.results import read_results
from betoken.bench.subject import Method, ModelSpec
from betoken.commands import audit
from betoken.errors import InputError
from betoken.tuning.frontier import STRICT, FrontierSettings, Setting, points, run_frontier
from scored_toys import LIMIT, load_digits, write_sums


def make_settings(folder: Path, **changes: Any) -> FrontierSettings:
    method = Method("prompt-lookup", "prompt-lookup", verifier="asd", verifier_settings={"cap": 3})
    judged = EvalSettings(
        ModelSpec("toy"), method, (write_sums(folder, rows=8, wrong=(1,)),), max_new_tokens=LIMIT, batch=3
    )
    return replace(FrontierSettings(judged, budgets=(4.0, 40.0), gates=(0.5, 40.0)), **changes)


def test_every_point_is_what_an_evaluation_of_its_settings_says(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    found = run_frontier(settings, load_digits, tmp_path / "out.jsonl")
    assert [(one.budget, one.gate) for one in found] == settings.grid
    for number, one in enumerate(found):
        own = {"cap": 3, "budget": one.budget, "gate": one.gate or 1.0}
        judged = replace(settings.judged, method=replace(settings.judged.method, verifier_settings=own))
        [report] = run_eval(judged, load_digits, tmp_path / f"eval-{number}.jsonl")
        assert (one.answers, one.correct, one.interval) == (report.answers, report.correct, report.interval)
        assert one.tokens_per_forward == report.tokens_per_forward
        assert (one.exceptions, one.regret) == (report.exceptions, report.regret)
    strict, most = found[0], found[-1]
    assert strict.correct == 7 and strict.differing == 0 and strict.difference == 0.0
    assert most.differing > 0 and most.tokens_per_forward > strict.tokens_per_forward


def record(setting: Setting, question: int, *, correct: bool, forwards: int) -> dict[str, Any]:
    told = {**setting._asdict(), "question": question, "correct": correct, "tokens": 12, "forwards": forwards}
    return told | {"sha256": f"{setting}{correct}", "exceptions": 0, "regret": 0.0}


def test_the_best_points_and_their_differences_by_hand() -> None:
    """(right of 2, forwards): strict (2, 6), one fast and worse, one slow and worse, one as fast and as good."""
    grid = [STRICT, Setting(1.0, 0.5), Setting(2.0, 0.5), Setting(3.0, 0.5)]
    told = {grid[0]: (2, 6), grid[1]: (1, 4), grid[2]: (1, 5), grid[3]: (2, 6)}
    records = [
        record(setting, question, correct=question < right, forwards=forwards)
        for setting, (right, forwards) in told.items()
        for question in (0, 1)
    ]
    found = points(records, grid)
    assert [one.best for one in found] == [True, True, False, True]
    assert [one.difference for one in found] == [0.0, -0.5, -0.5, 0.0]
    assert found[1].difference_interval == paired(1, 0, 2)
    assert [one.tokens_per_forward for one in found] == [2.0, 3.0, 2.4, 2.0]


def test_it_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    whole = run_frontier(make_settings(tmp_path), load_digits, tmp_path / "whole.jsonl")
    out = tmp_path / "out.jsonl"
    for stop in (3, 21):

        def interrupt(done: int, total: int, what: str, stop: int = stop) -> None:
            assert total == 40
            if done == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_frontier(make_settings(tmp_path), load_digits, out, interrupt)
    assert run_frontier(make_settings(tmp_path), load_digits, out) == whole
    assert len(read_results(out)[1]) == 40


def test_what_cannot_be_swept_is_refused(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    two = (*settings.judged.suites, write_sums(tmp_path, "other"))
    method = settings.judged.method
    for told, changes in (
        ("above 0", {"budgets": (0.0, 1.0)}),
        ("twice", {"gates": (1.0, 1.0)}),
        ("leave it out", {"judged": replace(settings.judged, method=replace(method, verifier_settings={"gate": 1.0}))}),
        ("strict", {"judged": replace(settings.judged, method=replace(method, verifier_settings={"cap": 0}))}),
        ("asd, not replay", {"judged": replace(settings.judged, method=Method("suffix", "suffix"))}),
        ("one suite", {"judged": replace(settings.judged, suites=two)}),
    ):
        with pytest.raises(InputError, match=told):
            make_settings(tmp_path, **changes)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    monkeypatch.setattr(subjects, "load_subject", load_digits)
    app = typer.Typer()
    audit.register(app)
    return app


def test_the_frontier_command(app: typer.Typer, tmp_path: Path) -> None:
    suite = str(write_sums(tmp_path, rows=6))
    picture = tmp_path / "frontier.png"
    asked = ["audit", "frontier", "--suite", suite, "--drafter", "prompt-lookup", "--max-new-tokens", str(LIMIT)]
    asked += ["--budgets", "4,40", "--gates", "40", "--out", str(tmp_path / "out.jsonl"), "--plot", str(picture)]
    told = CliRunner().invoke(app, [*asked, "--json"])
    assert told.exit_code == 0, told.output
    found = [json.loads(line) for line in told.stdout.splitlines()]
    assert [(one["budget"], one["gate"]) for one in found] == [(0.0, None), (4.0, 40.0), (40.0, 40.0)]
    assert picture.read_bytes().startswith(b"\x89PNG")
    again = CliRunner().invoke(app, asked)
    assert again.stdout.startswith("* strict: ") and "budget 40, gate 40" in again.stdout


def test_the_table_command(app: typer.Typer, tmp_path: Path) -> None:
    """A suite without a scorer is compared, not judged, and every pair has its own result file."""
    suites = ["--suite", str(write_sums(tmp_path, rows=6)), "--suite", str(write_suite(tmp_path, "mt"))]
    asked = ["audit", "quality-table", *suites, "--drafters", "prompt-lookup,suffix", "--max-new-tokens", str(LIMIT)]
    asked += ["--set", "verifier.budget=40", "--set", "verifier.gate=40", "--speed-rows", "2", "--fixed-tokens", "8"]
    folder = tmp_path / "table"
    asked += ["--out", str(folder)]
    told = CliRunner().invoke(app, [*asked, "--json"])
    assert told.exit_code == 0, told.output
    cells = [json.loads(line) for line in told.stdout.splitlines()]
    pairs = [("sums", "prompt-lookup"), ("mt", "prompt-lookup"), ("sums", "suffix"), ("mt", "suffix")]
    assert [(one["suite"], one["drafter"]) for one in cells] == pairs
    assert all((folder / f"{suite}-{drafter}.jsonl").is_file() for suite, drafter in pairs)
    judged, compared = cells[0]["accuracy"][0], cells[1]["accuracy"][0]
    assert judged["judged"] and judged["strict_correct"] == 6 and judged["differing"] > 0
    assert not compared["judged"] and compared["verdict"] == "not judged" and compared["answers"] == 5
    lines = CliRunner().invoke(app, asked).stdout.splitlines()
    assert len(lines) == 2 + 4 and len({line.count("|") for line in lines}) == 1
    assert "| mt | suffix | 5 |" in lines[-1] and "not judged" in lines[-1]
