"""tools/tree_metrics.py: its figures on trees worked by hand, and a run that is stopped, resumed and reported."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from bench_toys import ToyCodec, write_suite
from betoken.decode import Request
from betoken.drafters.lookahead import Lookahead
from betoken.drafters.plain import Plain
from betoken.drafters.pool import chain
from betoken.drafters.ptd import PTD
from betoken.models.load import Loaded
from betoken.state import StopSettings
from betoken.testing import ToyTarget, plain_tokens
from scripts import script


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return script("tree_metrics")


def test_similarity_is_the_longest_common_run_with_another_trie(tool: ModuleType) -> None:
    assert tool.similarities([chain([1, 2, 3, 4]), chain([9, 2, 3, 8]), chain([7, 7])]) == [0.5, 0.5, 0.0]
    assert tool.similarities([chain([1, 2, 3]), chain([0, 1, 2, 3, 4])]) == [
        1.0,
        0.6,
    ]  # the shorter stands in the longer
    assert tool.similarities([chain([1, 2]), chain([1, 2])]) == [1.0, 1.0]
    assert tool.similarities([chain([1, 2]), chain([2, 1])]) == [0.5, 0.5]


def test_branches_of_one_trie_are_not_compared_and_single_tokens_are_no_branch(tool: ModuleType) -> None:
    fork = {1: {2: {3: {}, 4: {}}}}
    assert list(tool.branches(fork)) == [(1, 2, 3), (1, 2, 4)]
    assert tool.similarities([fork]) == []
    assert tool.similarities([fork, chain([2, 4]), chain([5])]) == [pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]


def test_repeated_pairs_count_each_node_once(tool: ModuleType) -> None:
    assert tool.repeated_pairs([{1: {2: {3: {}, 4: {}}}}]) == (3, 0)
    assert tool.repeated_pairs([chain([1, 2, 1, 2]), chain([2, 1]), chain([5])]) == (4, 2)


def test_plain_decoding_has_a_de_of_one(tool: ModuleType) -> None:
    target = ToyTarget(9, seed=3)
    request = Request([1, 2, 3], stop=StopSettings(max_new_tokens=12, ignore_eos=True))
    metrics, tokens = tool.measure(target, Plain(), request, 16)
    assert (metrics.de, metrics.al, metrics.hits, metrics.nodes, metrics.probes) == (1.0, 1.0, 0, 12, 0)
    assert tokens == plain_tokens(target, request)


@pytest.mark.parametrize("make", [PTD, Lookahead])
def test_what_a_measurement_sums_fits_together(tool: ModuleType, make: type[PTD | Lookahead]) -> None:
    target = ToyTarget(6, order=1, seed=5, sharpness=4.0)
    request = Request([1, 2, 3, 4, 1, 2], stop=StopSettings(max_new_tokens=60, ignore_eos=True))
    metrics, tokens = tool.measure(target, make(), request, 16)
    assert tokens == plain_tokens(target, request)
    assert metrics.tokens == 60 > metrics.forwards >= metrics.hits > 0
    assert metrics.forwards + metrics.accepted >= 60  # the last step may have committed less than it accepted
    assert metrics.nodes <= 16 * metrics.forwards and 0 < metrics.probes < metrics.nodes
    assert 0 <= metrics.repeated <= metrics.similar <= metrics.branches
    doubled = metrics + metrics
    assert (doubled.de, doubled.al, doubled.forwards) == (metrics.de, metrics.al, 2 * metrics.forwards)


def test_mt_bench_is_eight_categories_of_spec_bench_and_questions_come_in_layers(
    tool: ModuleType, tmp_path: Path
) -> None:
    write_suite(tmp_path, "spec_bench", {"writing": 4, "qa": 4, "math": 4})
    write_suite(tmp_path, "other", {"writing": 3})
    drawn = tool.questions(["mt-bench", "other"], tmp_path, 2, 1)
    assert [(one.suite, one.category) for one in drawn] == 2 * [
        ("mt-bench", "writing"),
        ("mt-bench", "math"),
        ("other", "writing"),
    ]
    assert len({one.id for one in drawn}) == 6
    assert tool.questions(["mt-bench", "other"], tmp_path, 1, 1) == drawn[:3]


class Stopped(ToyTarget):
    """Is interrupted after some forward passes."""

    left = 30

    def forward(self, *args, **settings):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().forward(*args, **settings)


def test_a_stopped_run_goes_on_and_is_reported(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_suite(tmp_path)
    file = tmp_path / "trees.jsonl"
    asked = ["run", str(file), "--model", "toy", "--data", str(tmp_path), "--suites", "toy", "--rows", "2"]
    asked += ["--max-new-tokens", "10", "--nodes", "6", "12", "--methods", "ptd", "lookahead:n=3,window=2"]

    def loaded(kind: type[ToyTarget]) -> Loaded:
        target = kind(9, order=2, seed=30, sharpness=3.0, context=2000)
        return Loaded(target, ToyCodec(), tmp_path)  # type: ignore[arg-type]

    assert tool.main(asked, load=lambda name, **settings: loaded(Stopped)) == 130
    first = file.read_text().splitlines()
    assert 2 <= len(first) < 17
    assert tool.main(asked, load=lambda name, **settings: loaded(ToyTarget)) == 0
    lines = file.read_text().splitlines()
    assert lines[: len(first)] == first
    records = [json.loads(line) for line in lines[1:]]
    assert len({(one["method"], one["nodes"], one["question"]) for one in records}) == len(records) == 16
    assert len(json.loads((tmp_path / "trees.provenance.json").read_text())["sessions"]) == 2
    assert tool.main([*asked[:-1], "none"], load=lambda name, **settings: loaded(ToyTarget)) == 0  # one more method

    capsys.readouterr()
    assert tool.main(["report", str(file), "--by", "category"]) == 0
    told = capsys.readouterr().out
    assert "same tokens: 4 of 4 questions" in told
    assert "at most 6 nodes" in told and "at most 12 nodes" in told
    plain = [line for line in told.splitlines() if line.startswith("| none ")]
    assert plain and all("| 1.00 | 1.00 | **1.000** |" in line for line in plain)

    plot = script("tree_plot")
    assert plot.main([str(file), str(tmp_path / "trees.png")]) == 0
    assert (tmp_path / "trees.png").read_bytes().startswith(b"\x89PNG")
    assert plot.main([str(file), str(tmp_path / "no" / "trees.png")]) == 2
    assert plot.main([str(tmp_path / "no.jsonl"), str(tmp_path / "trees.png")]) == 2
    told = capsys.readouterr()
    assert "cannot be written" in told.err and "no.jsonl" in told.err
    found = plot.figures(records)
    for method in ("ptd", "lookahead:n=3,window=2"):
        own = [one["sums"] for one in records if one["method"] == method]
        expected = sum(one["tokens"] for one in own) / sum(one["forwards"] for one in own)
        assert found[method]["all"] == found[method]["toy"] == expected > 1.0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (["--methods", "nothing"], "nothing"),
        (["--suites", "absent"], "absent"),
        (["--max-new-tokens", "11"], "other settings"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: list[str], told: str
) -> None:
    write_suite(tmp_path)
    file = tmp_path / "trees.jsonl"
    settings = {"model": "toy", "dtype": None, "suites": ["toy"], "rows": 10, "seed": 0, "max_new_tokens": 10}
    measured = {"method": "ptd", "question": "1"}  # a file without a measurement would be taken over
    file.write_text("".join(json.dumps(line) + "\n" for line in ({"settings": settings}, measured)))
    asked = ["run", str(file), "--model", "toy", "--data", str(tmp_path), "--suites", "toy", "--max-new-tokens", "10"]
    assert tool.main(asked + change) == 2
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1
