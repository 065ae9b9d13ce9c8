"""Calibration of asd against barriers counted from the toy's own table."""

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
from betoken.bench.held_out import fingerprint
from betoken.bench.subject import Method, ModelSpec
from betoken.bench.suites import read_suite
from betoken.commands import calibrate as command
from betoken.decode import Decoder, Request
from betoken.errors import InputError
from betoken.state import StopSettings
from betoken.testing import RandomTreeDrafter, ToyTarget
from betoken.tree import Role
from betoken.tuning.barriers import Barrier, CalibrationSettings, Trace, calibrate, propose
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.asd import Asd
from scored_toys import load_digits, write_sums


def make_settings(folder: Path, **changes: Any) -> CalibrationSettings:
    method = Method("prompt-lookup", "prompt-lookup", verifier="asd")
    settings = CalibrationSettings(
        ModelSpec("toy"), method, (write_sums(folder, "sums", 12),), rows=8, max_new_tokens=40, batch=3
    )
    return replace(settings, **changes)


def test_steepness_is_the_papers() -> None:
    one = Barrier(regret=3.0, position=2, length=5)
    assert one.steepness(1) == 1.0 and one.steepness(2) == pytest.approx(5.0)
    assert Barrier(2.0, 0, 7).steepness(2) == 2.0


def test_the_proposal_is_the_linear_lower_quartile() -> None:
    regrets = [0.0, 1.0, 2.0, 4.0, 8.0]
    trace = Trace(9, [(Barrier(regret, 0, 4),) for regret in regrets])
    assert propose(trace, 2).__dict__ == {"budget": 1.75, "gate": 1.75, "cap": 1, "barriers": 4}
    first = propose(trace, 1)
    assert (first.gate, first.budget, first.cap) == (1.75 / 4, 1.75, 1)
    with pytest.raises(InputError, match="3 drafts, and none"):
        propose(Trace(3), 2)


@pytest.mark.parametrize("seed", range(6))
def test_the_trace_is_what_the_table_says(seed: int) -> None:
    """Random trees on a toy that feels its whole text; every barrier is found again from the text alone."""
    target = ToyTarget(6, seed=seed, far=True, context=400)
    drafter = RandomTreeDrafter(seed)
    drafter.start(target, None)
    decoder = Decoder(target, drafter, Asd(budget=0.0), FixedNodes(8))
    found = Trace()
    expected: list[list[tuple[float, int, int]]] = []
    proposals = 0

    def look(tree: Any, scores: Any, verdict: Any, state: Any) -> None:
        nonlocal proposals
        found(tree, scores, verdict, state)
        [row], [kept] = state.rows, verdict.rows
        candidates = [node for node in range(tree.width) if tree.roles[0, node] == Role.CANDIDATE]
        proposals += bool(candidates)
        committed = verdict.tokens(tree, 0)
        before = row.tokens if row.finish_reason is None else None
        text = texts[-1]
        stop = text + committed[:-1]
        if committed[:-1].count(0) == 0:
            logits = target.next_logits(stop)
            best = int(np.argmax(logits))
            here = []
            for node in tree.children(0, kept.path[-1]):
                token = int(tree.tokens[0, node])
                below = [len(tree.path(0, leaf)) - 1 for leaf in candidates if node in tree.path(0, leaf)]
                if token != 0 and best != 0:
                    here.append((float(logits[best] - logits[token]), len(kept.path) - 1, max(below)))
            if here:
                expected.append(here)
        texts.append(text + committed)
        assert before is None or before == texts[-1]

    decoder.observer = look
    for prompt in ([1, 2, start] for start in (1, 2, 3, 4, 5)):
        texts = [prompt]
        row = decoder.admit(Request(prompt, stop=StopSettings(max_new_tokens=60), budget=0.0))
        while row.finish_reason is None:
            decoder.step()
        decoder.release(row)
    assert found.proposals == proposals and len(expected) > 3
    got = [[(one.regret, one.position, one.length) for one in rejected] for rejected in found.barriers]
    assert [len(one) for one in got] == [len(one) for one in expected]
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_it_freezes_what_the_verifier_reads(tmp_path: Path) -> None:
    settings, out = make_settings(tmp_path), tmp_path / "asd.json"
    told = calibrate(settings, load_digits, out)
    assert json.loads(out.read_text()) == told
    asd = Asd(config=str(out))
    assert (asd.budget, asd.gate, asd.cap, asd.variant) == (told["budget"], told["gate"], 1, 2) and asd.budget > 0
    drawn = {question.id: fingerprint(question) for question in settings.questions()}
    assert told["rows"] == drawn and len(drawn) == 8 < len(read_suite(settings.suites[0]))
    assert 0 < told["barriers"] <= told["proposals"]
    first = calibrate(replace(settings, variant=1), load_digits, out)
    assert Asd(config=str(out)).variant == 1 and first["gate"] < told["gate"]


def test_a_batch_gives_what_rows_alone_give(tmp_path: Path) -> None:
    one = calibrate(make_settings(tmp_path, batch=1), load_digits, tmp_path / "one.json")
    many = calibrate(make_settings(tmp_path, batch=5), load_digits, tmp_path / "many.json")
    assert {key: one[key] for key in ("gate", "barriers", "proposals")} == {
        key: many[key] for key in ("gate", "barriers", "proposals")
    }


def test_without_drafts_there_is_nothing_to_calibrate(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="0 drafts"):
        calibrate(make_settings(tmp_path, method=Method.plain()), load_digits, tmp_path / "asd.json")
    assert not (tmp_path / "asd.json").exists()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "load_subject", load_digits)
    app = typer.Typer()
    command.register(app)
    app.callback()(lambda: None)
    out = tmp_path / "asd.json"
    asked = ["calibrate", "asd", "--suite", str(write_sums(tmp_path)), "--drafter", "prompt-lookup", "--rows", "6"]
    found = CliRunner().invoke(app, [*asked, "--out", str(out)])
    assert found.exit_code == 0, found.output
    assert found.stdout.startswith("variant 2: budget") and f"verifier.config={out}" in found.stdout
    assert isinstance(CliRunner().invoke(app, [*asked, "--variant", "3"]).exception, InputError)
