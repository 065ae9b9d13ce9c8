"""The audit of quality: its arithmetic by hand, its passes on a toy."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from betoken.bench import subject as subjects
from betoken.bench.held_out import fingerprint
from betoken.bench.metrics import Interval, paired
from betoken.bench.results import read_results
from betoken.bench.subject import Method, ModelSpec
from betoken.bench.suites import read_suite
from betoken.commands import quality as command
from betoken.errors import InputError
from betoken.tuning.quality import QualitySettings, run_quality
from betoken.tuning.quality_report import judge, summarise
from scored_toys import LIMIT, load_digits, plain_answer, write_sums

GENEROUS = {"budget": 40.0, "gate": 40.0, "cap": 3}


def make_settings(folder: Path, **changes: Any) -> QualitySettings:
    settings = QualitySettings(
        ModelSpec("toy"),
        Method("prompt-lookup", "prompt-lookup", verifier="asd", verifier_settings=GENEROUS),
        (write_sums(folder, "first", 8, wrong=(1,)), write_sums(folder, "second", 6)),
        max_new_tokens=LIMIT,
        batch=3,
        speed_rows=5,
        speed_batch=2,
        fixed_tokens=20,
    )
    return replace(settings, **changes)


@pytest.mark.parametrize("trials", [20, 60])
@pytest.mark.parametrize(("loss", "gain"), [(0.0, 0.0), (0.02, 0.02), (0.1, 0.05), (0.3, 0.1)])
def test_the_paired_interval_covers_the_truth(trials: int, loss: float, gain: float) -> None:
    """By enumerating every outcome of a small experiment."""
    covered = 0.0
    for lost in range(trials + 1):
        for gained in range(trials + 1 - lost):
            same = trials - lost - gained
            ways = math.comb(trials, lost) * math.comb(trials - lost, gained)
            chance = ways * loss**lost * gain**gained * (1 - loss - gain) ** same
            low, high = paired(lost, gained, trials)
            covered += chance * (low <= gain - loss <= high)
    assert covered > 0.93


def test_the_paired_interval_at_its_ends() -> None:
    assert paired(0, 0, 0) == (-1.0, 1.0)
    low, high = paired(0, 0, 100)
    assert low == -high and 0 < high < 0.03
    low, high = paired(50, 0, 50)
    assert low == -1.0 and high < -0.8


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((-0.009, 0.02), "kept"),
        ((-0.02, 0.02), "cannot tell"),
        ((-0.05, -0.011), "lost"),
        ((-0.05, -0.005), "cannot tell"),
    ],
)
def test_the_verdict(interval: tuple[float, float], verdict: str) -> None:
    assert judge(Interval(*interval), 0.01) == verdict


def speed(name: str, group: int, seconds: float, forwards: int, sha: str) -> dict[str, Any]:
    row = {"tokens": 20, "forwards": forwards, "sha256": sha}
    return {"phase": "speed", "pass": name, "group": group, "decode_s": seconds, "tokens": 20, "rows": [row]}


def answer(side: str, question: int, *, correct: bool, tokens: int, sha: str) -> dict[str, Any]:
    told = {"phase": "accuracy", "pass": side, "suite": "s", "question": f"s/{question}", "correct": correct}
    return told | {"tokens": tokens, "forwards": 10, "sha256": sha, "exceptions": 1, "regret": 0.5}


def test_the_report_by_hand() -> None:
    records = [speed("strict 1", g, 2.0, 10, "a") for g in (0, 1)] + [speed("relaxed", g, 1.0, 8, "b") for g in (0, 1)]
    records += [speed("strict 2", g, 2.5, 10, "a") for g in (1, 0)]
    rights = [(True, True), (True, False), (False, True), (False, False), (True, True)]
    for question, (strict, relaxed) in enumerate(rights):
        records.append(answer("strict", question, correct=strict, tokens=20, sha="x"))
        records.append(answer("relaxed", question, correct=relaxed, tokens=22, sha="x" if question == 0 else "y"))
    found = summarise(records, 0.01)
    assert found.speed.strict_tokens_per_s == (10.0, 8.0) and found.speed.relaxed_tokens_per_s == 20.0
    assert found.speed.ratio == pytest.approx(20 / (80 / 9)) and found.speed.drift == pytest.approx(-0.2)
    assert not found.speed.steady and found.speed.strict_equal
    assert (found.speed.strict_tokens_per_forward, found.speed.relaxed_tokens_per_forward) == (2.0, 2.5)
    [one] = found.suites
    assert (one.strict_correct, one.relaxed_correct, one.lost, one.gained, one.differing) == (3, 3, 1, 1, 4)
    assert one.difference == 0.0 and one.length_change == pytest.approx(0.1) and one.verdict == "cannot tell"
    assert (one.exceptions, one.regret) == (5, 2.5) and one.interval == paired(1, 1, 5)
    text = command.told(found)
    assert "drift -20.0 %" in text and "not steady" in text and "cannot tell at this sample size" in text
    assert "80.0 % of answers differ" in text


def test_both_sides_on_a_toy(tmp_path: Path) -> None:
    settings, out = make_settings(tmp_path), tmp_path / "out.jsonl"
    found = run_quality(settings, load_digits, out)
    records = read_results(out)[1]
    timed = [one for one in records if one["phase"] == "speed"]
    assert [(one["pass"], one["group"]) for one in timed] == [
        (name, group) for name in ("strict 1", "relaxed", "strict 2") for group in range(3)
    ]
    assert all(row["tokens"] == 20 for one in timed for row in one["rows"]) and found.speed.strict_equal
    subject = load_digits(ModelSpec("toy"))
    first, second, overall = found.suites
    assert (first.answers, second.answers, overall.answers) == (8, 6, 14)
    assert (first.strict_correct, second.strict_correct) == (7, 6)
    strict = {one["question"]: one for one in records if one.get("pass") == "strict"}
    for path in settings.suites:
        for question in read_suite(path):
            tokens = plain_answer(subject.prompt(question))
            assert strict[question.id]["text"] == "".join(map(str, tokens)).removesuffix("0")
            assert strict[question.id]["exceptions"] == 0
    assert overall.exceptions > 0 and 0 < overall.differing <= 14 and overall.lost > 0
    assert found.speed.relaxed_tokens_per_forward > found.speed.strict_tokens_per_forward


def test_it_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    whole = run_quality(make_settings(tmp_path), load_digits, tmp_path / "whole.jsonl")
    out = tmp_path / "out.jsonl"
    for stop in (4, 12):

        def interrupt(done: int, total: int, what: str, stop: int = stop) -> None:
            assert total == 9 + 28
            if done == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_quality(make_settings(tmp_path), load_digits, out, interrupt)
    assert run_quality(make_settings(tmp_path), load_digits, out).suites == whole.suites
    assert len(read_results(out)[1]) == 37
    with pytest.raises(InputError, match="other settings"):
        run_quality(make_settings(tmp_path, fixed_tokens=21), load_digits, out)


def test_what_cannot_be_audited_is_refused(tmp_path: Path) -> None:
    for verifier, own in (("replay", {}), ("asd", {"budget": 0.0})):
        method = Method("suffix", "suffix", verifier=verifier, verifier_settings=own)
        with pytest.raises(InputError, match="nothing to audit"):
            make_settings(tmp_path, method=method)
    settings = make_settings(tmp_path)
    used = {question.id: fingerprint(question) for question in read_suite(settings.suites[1])[:2]}
    config = tmp_path / "asd.json"
    told = {"kind": "asd calibration", "budget": 9.0, "gate": 9.0, "cap": 1, "variant": 2, "rows": used}
    config.write_text(json.dumps(told))
    method = replace(settings.method, verifier_settings={"config": str(config)})
    with pytest.raises(InputError, match=r"2 of these rows .* were used to calibrate"):
        run_quality(make_settings(tmp_path, method=method), load_digits, tmp_path / "out.jsonl")
    found = run_quality(make_settings(tmp_path, method=method, without=(config,)), load_digits, tmp_path / "out.jsonl")
    assert found.overall.answers == 12


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "load_subject", load_digits)
    app = typer.Typer()
    app.command()(command.quality)
    asked = ["--suite", str(write_sums(tmp_path)), "--drafter", "prompt-lookup", "--fixed-tokens", "8"]
    asked += ["--max-new-tokens", str(LIMIT), "--speed-rows", "2"]
    generous = [f"--set=verifier.{key}={value}" for key, value in GENEROUS.items()]
    lost = CliRunner().invoke(app, [*asked, *generous, "--json"])
    report = json.loads(lost.stdout)
    assert (lost.exit_code, report["verdict"], report["margin"]) == (1, "lost", 0.01), lost.output
    assert report["accuracy"][0]["answers"] == 12 and report["accuracy"][0]["lost"] > 6
    kept = CliRunner().invoke(app, [*asked, "--set=verifier.budget=1e-6", "--margin", "20"])
    assert kept.exit_code == 0 and "sums: kept (margin 20 points)" in kept.stdout, kept.output
    assert "0.0 % of answers differ" in kept.stdout
