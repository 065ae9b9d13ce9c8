"""The audit on a toy: equal where all is right, and every planted fault found, named and located."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from bench_toys import CountingTarget, ToyCodec, ToyLoader, write_suite
from betoken.bench.results import read_results
from betoken.bench.subject import Method, ModelSpec
from betoken.commands import audit as command
from betoken.drafters import DRAFTERS
from betoken.drafters.suffix import Suffix
from betoken.errors import InputError
from betoken.models.target import Scores
from betoken.state import State
from betoken.testing import ToyCache, ToyTarget
from betoken.tree import RowTree, TokenTree
from betoken.tuning.audit import REFERENCE, AuditSettings, PassReport, next_logits, run_audit


def make_settings(folder: Path, **changes: Any) -> AuditSettings:
    suites = (write_suite(folder, "first", {"a": 6}), write_suite(folder, "second", {"b": 6}))
    settings = AuditSettings(
        ModelSpec("toy"), (Method("suffix", "suffix"),), suites, rows=8, max_new_tokens=30, seed=3, batch=4
    )
    return replace(settings, **changes)


def audit(settings: AuditSettings, out: Path, loader: Any = None) -> dict[str, PassReport]:
    return {report.name: report for report in run_audit(settings, loader or ToyLoader(), out)}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("batch", [1, 4])
def test_all_answers_are_equal_and_drafts_were_accepted(tmp_path: Path, temperature: float, batch: int) -> None:
    methods = (Method("suffix", "suffix"), Method("prompt-lookup", "prompt-lookup"))
    settings = make_settings(tmp_path, methods=methods, temperature=temperature, batch=batch)
    reports = audit(settings, tmp_path / "out.jsonl")
    how = "alone" if batch == 1 else "batch 4"
    plain = [] if batch == 1 else ["plain, batch 4"]
    assert list(reports) == [*plain, f"suffix, {how}", f"prompt-lookup, {how}"]
    for name, report in reports.items():
        assert (report.answers, report.equal, report.differences) == (8, 8, ()) and not report.failed
        assert report.drafted == (not name.startswith("plain"))
    assert temperature or reports[f"suffix, {how}"].acceptance_length > 1.2
    if plain:
        assert reports["plain, batch 4"].acceptance_length == 1.0


def test_the_reference_is_the_model_itself(tmp_path: Path) -> None:
    """Independent oracle: the toy's own table, without decoder, cache or drafter."""
    settings = make_settings(tmp_path)
    audit(settings, tmp_path / "out.jsonl")
    subject = ToyLoader()(ModelSpec("toy"))
    questions = {question.id: question for question in settings.questions()}
    records = [one for one in read_results(tmp_path / "out.jsonl")[1] if one["pass"] == REFERENCE]
    assert len(records) == 8 == len({record["question"] for record in records})
    for record in records:
        text = subject.prompt(questions[record["question"]])
        start = len(text)
        while len(text) - start < 30 and (len(text) == start or text[-1] != 0):
            text.append(int(subject.target.next_logits(text).argmax()))
        assert record["tokens"] == text[start:]


def test_rows_sample_with_seeds_of_their_own(tmp_path: Path) -> None:
    path = write_suite(tmp_path, "same", {"a": 3})
    rows = [json.loads(line) | {"turns": ["the same words"]} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = make_settings(tmp_path, suites=(path,), rows=3, temperature=1.5)
    audit(settings, tmp_path / "out.jsonl")
    records = read_results(tmp_path / "out.jsonl")[1]
    assert len({tuple(one["tokens"]) for one in records if one["pass"] == REFERENCE}) > 1


@dataclass
class Meddler(Suffix):
    """A broken drafter: now and then the tree starts with a token that is not the pending one."""

    name = "meddler"

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        tree = super().propose(state, nodes)
        if any(row.generated == 5 for row in state.rows):
            wrong = [1 + row.pending % 8 if row.generated == 5 else row.pending for row in state.rows]
            return TokenTree.stack([RowTree.under(token) for token in wrong])
        return tree


class WidthTarget(CountingTarget):
    """A broken target: scored with others, a node's logits differ from those it has alone."""

    def forward(
        self, tree: TokenTree, cache: ToyCache, slots: Sequence[int], hidden_layers: Sequence[int] = ()
    ) -> Scores:
        scores = super().forward(tree, cache, slots, hidden_layers)
        if tree.width > 1:
            scores.host[:, :] = np.roll(scores.host, 1, axis=1)
        return scores


class NeighbourTarget(CountingTarget):
    """A broken target: the second row of a batch gets the first row's logits."""

    def forward(
        self, tree: TokenTree, cache: ToyCache, slots: Sequence[int], hidden_layers: Sequence[int] = ()
    ) -> Scores:
        scores = super().forward(tree, cache, slots, hidden_layers)
        if len(slots) > 1:
            scores.index[1, 0] = scores.index[0, 0]
        return scores


class CarelessCache(ToyCache):
    """A broken cache: keeps the first nodes of the tree, whatever the path."""

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        super().keep(slots, [range(len(path)) for path in paths])


class CarelessTarget(CountingTarget):
    def new_cache(self) -> ToyCache:
        return CarelessCache()


def test_a_meddling_drafter_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DRAFTERS, "meddler", Meddler)
    settings = make_settings(tmp_path, methods=(Method("meddler", "meddler"),), batch=1)
    report = audit(settings, tmp_path / "out.jsonl")["meddler, alone"]
    assert report.failed and report.equal < report.answers
    subject = ToyLoader()(ModelSpec("toy"))
    records = {(one["pass"], one["question"]): one["tokens"] for one in read_results(tmp_path / "out.jsonl")[1]}
    questions = {question.id: question for question in settings.questions()}
    assert len(report.differences) == report.answers - report.equal
    for found in report.differences:
        expected, own = records[(REFERENCE, found.question)], records[(report.name, found.question)]
        assert expected[: found.position] == own[: found.position] and found.position >= 5
        assert (found.plain_token, found.token) == (expected[found.position], own[found.position])
        assert found.plain_text == ToyCodec().decode([expected[found.position]])
        text = subject.prompt(questions[found.question]) + expected[: found.position]
        logits = subject.target.next_logits(text)
        assert found.logit_gap == pytest.approx(float(logits[found.plain_token] - logits[found.token]), abs=1e-5)
        assert found.logit_gap > 0


@pytest.mark.parametrize(
    ("target", "method", "caught"),
    [
        (WidthTarget, Method("d", "suffix"), {"d, batch 4"}),
        (NeighbourTarget, Method("d", "suffix"), {"plain, batch 4", "d, batch 4"}),
        (CarelessTarget, Method("d", "suffix", {"tree": True}), {"d, batch 4"}),
    ],
)
def test_a_broken_target_is_caught_in_the_right_pass(
    tmp_path: Path, target: type[ToyTarget], method: Method, caught: set[str]
) -> None:
    reports = audit(make_settings(tmp_path, methods=(method,)), tmp_path / "out.jsonl", ToyLoader(target))
    assert {name for name, report in reports.items() if report.failed} == caught


class ApproximateTarget(WidthTarget):
    exact = False


def test_what_is_not_promised_is_reported_and_no_failure(tmp_path: Path) -> None:
    reports = audit(make_settings(tmp_path), tmp_path / "out.jsonl", ToyLoader(ApproximateTarget))
    report = reports["suffix, batch 4"]
    assert report.equal < report.answers and report.differences
    assert not report.promised and not report.failed
    assert "equality is not promised" in command.told(report)


def test_a_drafter_that_never_drafts_is_told(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, methods=(Method("lazy", "suffix", nodes=1),))
    report = audit(settings, tmp_path / "out.jsonl")["lazy, batch 4"]
    assert report.equal == 8 and not report.drafted and "NOTHING WAS DRAFTED" in command.told(report)


def test_an_answer_that_ends_early_differs_at_its_end(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    out = tmp_path / "out.jsonl"
    audit(settings, out)
    lines = out.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if '"suffix, batch 4"' in line and '"length"' in line)
    record = json.loads(lines[at])
    record["tokens"], record["finish_reason"] = record["tokens"][:10], "stop"
    lines[at] = json.dumps(record)
    out.write_text("\n".join(lines) + "\n")
    (found,) = audit(settings, out)["suffix, batch 4"].differences
    assert (found.question, found.position, found.token, found.logit_gap) == (record["question"], 10, None, None)
    assert found.text == "(stop)"


def test_a_kill_at_any_line_is_resumed(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, rows=3, max_new_tokens=8, batch=2)
    whole = tmp_path / "whole.jsonl"
    expected = audit(settings, whole)
    content = whole.read_bytes()
    ends = [index + 1 for index, byte in enumerate(content) if byte == ord("\n")]
    for cut in [0, *(end + shift for end in ends for shift in (0, -7))]:
        out = tmp_path / f"cut{cut}.jsonl"
        out.write_bytes(content[:cut])
        assert audit(settings, out) == expected
        records = read_results(out)[1]
        assert len(records) == 9 == len({(one["pass"], one["question"]) for one in records})
        kept = max((end for end in ends if end <= cut), default=0)
        assert out.read_bytes()[:kept] == content[:kept]
    with pytest.raises(InputError, match="other settings"):
        audit(replace(settings, seed=9), whole)


def test_a_finished_audit_decodes_nothing_again(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, rows=3)
    audit(settings, tmp_path / "out.jsonl")
    loader = ToyLoader()
    subject = loader(ModelSpec("toy"))
    audit(settings, tmp_path / "out.jsonl", lambda spec: subject)
    assert isinstance(subject.target, CountingTarget) and subject.target.nodes == 0


def test_next_logits_are_those_of_the_text() -> None:
    target = ToyTarget(6, seed=2, context=900)
    text = np.random.default_rng(0).integers(6, size=600).tolist()
    assert np.array_equal(next_logits(target, text), target.next_logits(text))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"methods": ()}, "name at least one drafter"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"suites": ()}, "suites: name at least one"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        (
            {"temperature": 0.5, "methods": (Method("x", "suffix", verifier="greedy"),)},
            "verifier greedy decodes at temperature 0",
        ),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        make_settings(tmp_path, **changes)


def invoke(monkeypatch: pytest.MonkeyPatch, loader: ToyLoader, *arguments: object) -> Any:
    monkeypatch.setattr("betoken.bench.subject.load_subject", loader)
    app = typer.Typer()
    command.register(app)
    app.callback()(lambda: None)
    return CliRunner().invoke(app, ["audit", "exact", *map(str, arguments)])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = write_suite(tmp_path)
    arguments = ("--suite", suite, "--rows", 4, "--max-new-tokens", 12, "--drafters", "suffix", "--batch", 3)
    done = invoke(monkeypatch, ToyLoader(), *arguments)
    assert done.exit_code == 0 and "suffix, batch 3: 4 of 4 answers equal" in done.output, done.output
    told = invoke(monkeypatch, ToyLoader(), *arguments, "--json", "--temperature", "0.7", "--out", tmp_path / "a.jsonl")
    assert told.exit_code == 0
    assert [json.loads(line)["equal"] for line in told.stdout.splitlines()] == [4, 4]
    broken = invoke(monkeypatch, ToyLoader(NeighbourTarget), *arguments)
    assert broken.exit_code == 1 and "logit gap" in broken.output and "new token" in broken.output
    missing = invoke(monkeypatch, ToyLoader(), *arguments, "--rows", 99)
    assert isinstance(missing.exception, InputError) and "choose 1 to 5" in str(missing.exception)
