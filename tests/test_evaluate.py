"""Evaluation on a toy that answers in digits: counts against an independent decoder, resumption, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from betoken.bench import subject as subjects
from betoken.bench.evaluate import EvalSettings, SuiteReport, run_eval
from betoken.bench.held_out import fingerprint
from betoken.bench.provenance import provenance_path
from betoken.bench.results import read_results
from betoken.bench.subject import Method, ModelSpec
from betoken.bench.suites import read_suite
from betoken.commands import evaluate as command
from betoken.errors import InputError
from scored_toys import LIMIT, load_digits, plain_answer, write_sums


def make_settings(folder: Path, **changes: Any) -> EvalSettings:
    settings = EvalSettings(
        ModelSpec("toy"),
        Method("suffix", "suffix"),
        (write_sums(folder, "first", 9, wrong=(1, 4)), write_sums(folder, "second", 5, wrong=(0,))),
        max_new_tokens=LIMIT,
        batch=4,
    )
    return replace(settings, **changes)


def by_suite(reports: list[SuiteReport]) -> dict[str, SuiteReport]:
    return {report.suite: report for report in reports}


@pytest.mark.parametrize("batch", [1, 4])
def test_counts_are_those_of_plain_decoding(tmp_path: Path, batch: int) -> None:
    settings = make_settings(tmp_path, batch=batch)
    reports = by_suite(run_eval(settings, load_digits, tmp_path / "out.jsonl"))
    subject = load_digits(ModelSpec("toy"))
    for path, wrong in zip(settings.suites, ((1, 4), (0,)), strict=True):
        report = reports[path.stem]
        own = [plain_answer(subject.prompt(question)) for question in read_suite(path)]
        empty = sum(tokens == [0] for tokens in own)
        right = sum(tokens != [0] and index not in wrong for index, tokens in enumerate(own))
        assert (report.answers, report.correct) == (len(own), right) and right > 0
        assert report.mean_tokens == pytest.approx(np.mean([len(tokens) for tokens in own]))
        assert report.cut == sum(tokens[-1] != 0 for tokens in own)
        assert report.unextracted == empty and report.exceptions == 0
        assert report.interval.low < report.accuracy < report.interval.high
    assert reports["first"].tokens_per_forward >= 1.0


def test_plain_decoding_has_one_token_a_forward(tmp_path: Path) -> None:
    [report] = run_eval(
        make_settings(tmp_path, method=Method.plain(), suites=(write_sums(tmp_path),), rows=6),
        load_digits,
        tmp_path / "out.jsonl",
    )
    assert report.answers == 6 and report.tokens_per_forward == 1.0


def test_it_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    whole = run_eval(make_settings(tmp_path), load_digits, tmp_path / "whole.jsonl")
    out = tmp_path / "out.jsonl"

    def stop(done: int, total: int, what: str) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_eval(make_settings(tmp_path), load_digits, out, stop)
    assert len(read_results(out)[1]) == 5
    with out.open("ab") as file:
        file.write(b'{"question": "cut in the mid')
    steps: list[int] = []
    assert run_eval(make_settings(tmp_path), load_digits, out, lambda done, total, what: steps.append(done)) == whole
    assert steps[0] == 5 and steps[-1] == 14
    assert len(json.loads(provenance_path(out).read_text())["sessions"]) == 2

    def never(spec: ModelSpec) -> Any:
        raise AssertionError("nothing is left to decode")

    assert run_eval(make_settings(tmp_path), never, out) == whole
    with pytest.raises(InputError, match=r"other settings \(max_new_tokens\)"):
        run_eval(make_settings(tmp_path, max_new_tokens=13), load_digits, out)


def test_a_changed_reference_is_another_evaluation(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    run_eval(settings, load_digits, tmp_path / "out.jsonl")
    write_sums(tmp_path, "first", 9, wrong=(2,))
    with pytest.raises(InputError, match="questions_sha256"):
        run_eval(settings, load_digits, tmp_path / "out.jsonl")


def freeze(path: Path, rows: dict[str, str], **changes: Any) -> Path:
    told = {"kind": "asd calibration", "budget": 2.0, "gate": 2.0, "cap": 1, "variant": 2, "rows": rows}
    path.write_text(json.dumps(told | changes))
    return path


def test_rows_that_chose_the_settings_are_refused(tmp_path: Path) -> None:
    suite = write_sums(tmp_path, "sums", 8)
    used = {question.id: fingerprint(question) for question in read_suite(suite)[:3]}
    config = freeze(tmp_path / "asd.json", used)
    method = Method("suffix", "suffix", verifier="asd", verifier_settings={"config": str(config)})
    renamed = write_sums(tmp_path, "sums", 8).rename(tmp_path / "other.jsonl")
    for path in (renamed, write_sums(tmp_path, "sums", 8)):
        settings = make_settings(tmp_path, method=method, suites=(path,))
        with pytest.raises(InputError, match=r"3 of these rows .* were used to calibrate .*--without"):
            run_eval(settings, load_digits, tmp_path / "out.jsonl")
        assert not (tmp_path / "out.jsonl").exists()
    [report] = run_eval(replace(settings, without=(config,)), load_digits, tmp_path / "out.jsonl")
    assert report.answers == 5
    with pytest.raises(InputError, match="every row was used"):
        freeze(config, {one.id: fingerprint(one) for one in read_suite(suite)})
        run_eval(replace(settings, without=(config,)), load_digits, tmp_path / "none.jsonl")


def test_letters_by_logits(tmp_path: Path) -> None:
    """The toy's tokenizer writes A to D as tokens of its own; the highest logit wins."""
    path = tmp_path / "quiz.jsonl"
    rows = [
        {"subject": "s", "question": f"Which {n}?", "choices": list("wxyz"), "answer": "ABCD"[n % 4]} for n in range(8)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = make_settings(tmp_path, suites=(path,), letters="logits")
    [report] = run_eval(settings, load_digits, tmp_path / "out.jsonl")
    subject = load_digits(ModelSpec("toy"))
    right = 0
    for record, row, question in zip(read_results(tmp_path / "out.jsonl")[1], rows, read_suite(path), strict=True):
        asked = f"{question.raw.removesuffix('Answer:')}\nAnswer with the letter alone."
        prompt = subject.codec.encode(subject.codec.template.apply([{"role": "user", "content": asked}]))
        logits = subject.target.next_logits(prompt)  # type: ignore[attr-defined]
        best = max("ABCD", key=lambda letter: logits[subject.codec.encode(letter)[0]])
        assert record["extracted"] == best and record["correct"] == (best == row["answer"])
        right += best == row["answer"]
    assert report.correct == right


def test_what_cannot_be_scored_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"question_id": 1, "category": "a", "turns": ["Hello"]}) + "\n")
    with pytest.raises(InputError, match="spec_bench has no scorer"):
        run_eval(make_settings(tmp_path, suites=(path,)), load_digits, tmp_path / "out.jsonl")
    with pytest.raises(InputError, match="cannot draw 99 rows"):
        run_eval(make_settings(tmp_path, rows=99), load_digits, tmp_path / "out.jsonl")
    for change in ({"batch": 0}, {"letters": "maybe"}, {"suites": ()}):
        with pytest.raises(InputError):
            make_settings(tmp_path, **change)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "load_subject", load_digits)
    app = typer.Typer()
    command.register(app)
    app.callback()(lambda: None)
    suite, out = write_sums(tmp_path, "sums", 6, wrong=(0,)), tmp_path / "out.jsonl"
    asked = ["eval", "--suite", str(suite), "--max-new-tokens", str(LIMIT), "--out", str(out)]
    found = CliRunner().invoke(app, [*asked, "--json"])
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    assert report["answers"] == 6 and report["accuracy"] == report["correct"] / 6
    line = CliRunner().invoke(app, asked).stdout
    assert (
        line.startswith(f"sums: {100 * report['accuracy']:.1f} % right ({report['correct']} of 6") and "forward" in line
    )
    wrong = CliRunner().invoke(app, [*asked, "--letters", "runes"])
    assert isinstance(wrong.exception, InputError)
