"""Benchmark runs on a toy: alternation, cold state, resuming after a kill at any byte, reports and plots."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bench_toys import CountingTarget, ToyLoader, write_suite
from betoken.bench import readme, runner
from betoken.bench.config import read_toml, result_path
from betoken.bench.methods import parse_drafters
from betoken.bench.plan import BenchSettings, SuiteSpec, plan
from betoken.bench.plots import plot_speedups
from betoken.bench.provenance import provenance_path, read_provenance
from betoken.bench.report import OVERALL, Line, read_report
from betoken.bench.results import ResultFile, read_results
from betoken.bench.subject import Method, ModelSpec, Subject
from betoken.bench.tables import markdown
from betoken.bench.trial import digest, measure
from betoken.commands import bench as command
from betoken.decode import Request
from betoken.errors import InputError
from betoken.state import SamplingSettings, StopSettings


def make_settings(folder: Path, **changes: Any) -> BenchSettings:
    settings = BenchSettings(
        models=(ModelSpec("toy"),),
        methods=(Method("suffix", "suffix"), Method("wide", "prompt-lookup", nodes=5)),
        suites=(SuiteSpec(write_suite(folder), 2),),
        max_new_tokens=40,
        seed=1,
    )
    return replace(settings, **changes)


def keys(records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [runner._key(record) for record in records]


def test_every_method_is_measured_on_every_question_once_and_who_is_first_goes_round(tmp_path: Path) -> None:
    records = runner.run_bench(make_settings(tmp_path), ToyLoader(), tmp_path / "out.jsonl")
    assert len(records) == 4 * 3 and len(set(keys(records))) == 12
    rounds = [records[index : index + 3] for index in range(0, 12, 3)]
    for one in rounds:
        assert {record["method"] for record in one} == {"none", "suffix", "wide"}
        assert len({record["rows"][0]["question"] for record in one}) == 1, "methods alternate on one question"
    assert Counter(one[0]["method"] for one in rounds).most_common()[-1][1] >= 1
    assert {one[0]["method"] for one in rounds} == {"none", "suffix", "wide"}
    assert Counter(record["category"] for record in records) == {"toy/writing": 6, "toy/coding": 6}


def test_a_record_adds_up(tmp_path: Path) -> None:
    records = runner.run_bench(make_settings(tmp_path), ToyLoader(), tmp_path / "out.jsonl")
    subject = ToyLoader()(ModelSpec("toy"))
    by_id = {question.id: question for question in make_settings(tmp_path).questions()}
    for record in records:
        (row,) = record["rows"]
        text = subject.prompt(by_id[row["question"]])
        assert row["prompt_tokens"] == len(text)
        new: list[int] = []
        while len(new) < 40 and 0 not in new:
            new.append(int(subject.target.next_logits(text + new).argmax()))
        assert (row["tokens"], row["sha256"]) == (len(new), digest(new))
        assert row["acceptance_length"] == pytest.approx(len(new) / row["forwards"])
        assert record["decode_s"] + record["prefill_s"] == pytest.approx(record["total_s"])
        spent = record["draft_s"] + record["target_s"] + record["verify_s"]
        assert 0 < spent <= record["decode_s"]
        assert record["outside_s"] == pytest.approx(record["decode_s"] - record["target_s"])
        assert 0 < record["token_p50_s"] <= record["token_p95_s"] <= record["decode_s"]
        assert record["prefill_s"] < record["first_token_s"] <= record["total_s"]
        assert record["tokens_per_s"] > record["tokens_per_s_with_prefill"] > 0
        assert record["peak_bytes"] > 10_000_000
        if record["method"] == "none":
            assert row["acceptance_length"] == row["nodes_per_forward"] == 1.0
    assert max(record["rows"][0]["acceptance_length"] for record in records) > 1.5, "something was drafted"


class Wired(CountingTarget):
    """Keeps what each trial scored: how many nodes since the last new cache."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.trials: list[int] = []

    def new_cache(self) -> Any:
        self.trials.append(0)
        return super().new_cache()

    def forward(self, tree: Any, cache: Any, slots: Any, hidden_layers: Any = ()) -> Any:
        self.trials[-1] += int(tree.counts.sum())
        return super().forward(tree, cache, slots, hidden_layers)


@pytest.mark.parametrize("method", ["none", "suffix", "prompt-lookup"])
def test_a_repeated_prompt_costs_the_same_work_again(method: str) -> None:
    """State is cold: neither the cache nor the drafter remembers the same request of the trial before."""
    subject = ToyLoader(Wired)(ModelSpec("toy"))
    assert isinstance(subject.target, Wired)
    prompt = subject.codec.encode("the same words again and again and the same words " * 3)
    request = Request(prompt, stop=StopSettings(max_new_tokens=50, ignore_eos=True))
    records = [measure(Method(method, method).decoder(subject), [request]) for _ in range(3)]
    assert len({record["rows"][0]["forwards"] for record in records}) == 1
    assert len(set(subject.target.trials)) == 1
    assert subject.target.trials[0] >= len(prompt) + 49


def test_repeats_in_a_run_are_cold_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scored: dict[tuple[str, tuple[int, ...]], list[int]] = {}

    def spy(decoder: Any, requests: Any) -> Any:
        before = decoder.target.nodes
        record = measure(decoder, requests)
        key = (decoder.drafter.name, tuple(requests[0].prompt))
        scored.setdefault(key, []).append(decoder.target.nodes - before)
        return record

    monkeypatch.setattr(runner, "measure", spy)
    runner.run_bench(make_settings(tmp_path, repeats=3), ToyLoader(), tmp_path / "out.jsonl")
    repeated = [nodes for nodes in scored.values() if len(nodes) == 3]
    assert len(repeated) == 12 and len(scored) == 12 + 3, "three warm-ups, and four questions three ways"
    assert all(len(set(nodes)) == 1 for nodes in repeated)


def test_the_warm_up_is_not_recorded_and_is_no_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def spy(decoder: Any, requests: Any) -> Any:
        asked.append(tuple(requests[0].prompt))
        return measure(decoder, requests)

    monkeypatch.setattr(runner, "measure", spy)
    records = runner.run_bench(make_settings(tmp_path), ToyLoader(), tmp_path / "out.jsonl")
    assert len(asked) == len(records) + 3
    assert len(set(asked[:3])) == 1 and asked[0] not in asked[3:]


def test_batches_and_temperatures_make_a_grid(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, batches=(1, 3), temperatures=(0.0, 0.8))
    records = runner.run_bench(settings, ToyLoader(), tmp_path / "out.jsonl")
    assert Counter((record["temperature"], record["batch"]) for record in records) == {
        (0.0, 1): 12,
        (0.8, 1): 12,
        (0.0, 3): 6,
        (0.8, 3): 6,
    }
    said: dict[Any, set[str]] = {}
    for record in records:
        for row in record["rows"]:
            said.setdefault((record["temperature"], row["question"]), set()).add(row["sha256"])
    assert all(len(texts) == 1 for texts in said.values()), "batch and drafter change no text"
    assert {record["category"] for record in records if record["batch"] == 3} == {"mixed", "toy/coding"}


def test_top_k_and_top_p_limit_what_is_sampled(tmp_path: Path) -> None:
    """One token, or the tokens that reach almost nothing together: the most probable one, as greedy."""
    said = []
    for n, settings in enumerate(({"temperatures": (0.0,)}, {"top_k": 1}, {"top_p": 1e-9}, {"top_k": 4, "top_p": 0.9})):
        out = tmp_path / f"{n}.jsonl"
        records = runner.run_bench(make_settings(tmp_path, **{"temperatures": (0.8,), **settings}), ToyLoader(), out)
        said.append({(row["question"], row["sha256"]) for record in records for row in record["rows"]})
        told = markdown(read_report(out), wide=False)
        assert ("Sampled with" in told) is (n > 0)
    assert "Sampled with top-k 4 and top-p 0.9." in told
    runner.run_bench(make_settings(tmp_path, temperatures=(0.0,), top_k=4), ToyLoader(), tmp_path / "greedy.jsonl")
    assert "Sampled" not in markdown(read_report(tmp_path / "greedy.jsonl"), wide=False)
    assert said[0] == said[1] == said[2] != said[3]


def test_a_file_without_measurements_is_taken_by_other_settings(tmp_path: Path) -> None:
    """A run that was refused after it had begun its file: the same command with what was advised must run."""
    out = tmp_path / "out.jsonl"
    with ResultFile(out, {"a": 1}):
        pass
    with ResultFile(out, {"a": 2}) as results:
        results.append({"n": 1})
    assert read_results(out) == ({"a": 2}, [{"n": 1}])
    with pytest.raises(InputError, match=r"other settings \(a\)"):
        ResultFile(out, {"a": 1})


def test_what_a_drafter_says_is_said_once_a_run(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("betoken")
    with runner.said_once():
        for told in ("first", "first", "second"):
            log.warning("%s", told)
    log.warning("first")
    assert [record.getMessage() for record in caplog.records] == ["first", "second", "first"]


def test_a_kill_at_any_byte_loses_one_measurement_at_most(tmp_path: Path) -> None:
    settings = make_settings(
        tmp_path,
        methods=(Method("suffix", "suffix"),),
        suites=(SuiteSpec(write_suite(tmp_path), 1),),
        max_new_tokens=12,
    )
    whole = tmp_path / "whole.jsonl"
    expected = {key: record["rows"] for key, record in _by_key(runner.run_bench(settings, ToyLoader(), whole))}
    content = whole.read_bytes()
    ends = [index + 1 for index, byte in enumerate(content) if byte == ord("\n")]
    cuts = {0, 1, len(content)} | {end + shift for end in ends for shift in (-1, 0, 40)}
    for cut in sorted(cut for cut in cuts if cut <= len(content)):
        out = tmp_path / f"cut{cut}.jsonl"
        out.write_bytes(content[:cut])
        loader = ToyLoader()
        found = dict(_by_key(runner.run_bench(settings, loader, out)))
        kept = max((end for end in ends if end <= cut), default=0)
        assert found.keys() == expected.keys() and len(_by_key(read_results(out)[1])) == len(expected)
        assert out.read_bytes()[:kept] == content[:kept], "what was measured stays as it was"
        assert all(_untimed(found[key]) == _untimed(rows) for key, rows in expected.items())
        assert loader.loads == (cut < len(content)), "a finished run loads nothing"


def _by_key(records: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    return [(runner._key(record), record) for record in records]


def _untimed(record: Any) -> Any:
    rows = record["rows"] if isinstance(record, dict) else record
    return [{name: value for name, value in row.items() if name != "first_token_s"} for row in rows]


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def interrupted(decoder: Any, requests: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise KeyboardInterrupt
        return measure(decoder, requests)

    out = tmp_path / "out.jsonl"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(runner, "measure", interrupted)
        runner.run_bench(make_settings(tmp_path), ToyLoader(), out)
    assert len(read_results(out)[1]) == 9 - 1 - 3
    reached: list[tuple[int, int]] = []
    runner.run_bench(make_settings(tmp_path), ToyLoader(), out, lambda done, total, what: reached.append((done, total)))
    assert reached[0] == (5, 12) and reached[-1] == (12, 12)
    assert len(read_provenance(out)["sessions"]) == 2


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"max_new_tokens": 41}, "max_new_tokens"),
        ({"seed": 2}, "(questions_sha256, )?seed"),
        ({"methods": (Method("suffix", "suffix", {"max_draft": 3}),)}, "methods"),
        ({"models": (ModelSpec("toy", dtype="float32"),)}, "models"),
    ],
)
def test_other_settings_do_not_continue_a_file(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    out = tmp_path / "out.jsonl"
    settings = make_settings(tmp_path, max_new_tokens=4)
    runner.run_bench(settings, ToyLoader(), out)
    before = out.read_bytes()
    with pytest.raises(InputError, match=rf"made with other settings \({told}\)"):
        runner.run_bench(replace(settings, **changes), ToyLoader(), out)
    assert out.read_bytes() == before


def test_changed_questions_do_not_continue_a_file(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, max_new_tokens=4)
    runner.run_bench(settings, ToyLoader(), tmp_path / "out.jsonl")
    path = settings.suites[0].path
    path.write_text(path.read_text().replace("Say", "Tell"))
    with pytest.raises(InputError, match="questions_sha256"):
        runner.run_bench(settings, ToyLoader(), tmp_path / "out.jsonl")


def test_result_files_refuse_what_is_none(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    for content in ("hello", '{"a": 1}\n', "[1]\n", '{"settings": {}}\nnonsense\n{}\n'):
        out.write_text(content)
        with pytest.raises(InputError, match="not a"):
            ResultFile(out, {})
        assert out.read_text() == content
    with pytest.raises(InputError, match="cannot be written"):
        ResultFile(tmp_path / "out.jsonl" / "below.jsonl", {})
    with pytest.raises(InputError, match="cannot be read"):
        read_results(tmp_path / "none.jsonl")


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    with (
        ResultFile(tmp_path / "out.jsonl", {"a": 1}),
        pytest.raises(InputError, match="another run is writing this file"),
    ):
        ResultFile(tmp_path / "out.jsonl", {"a": 1})
    with ResultFile(tmp_path / "out.jsonl", {"a": 1}) as again:
        assert again.records == []


def test_a_full_disk_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ResultFile(tmp_path / "out.jsonl", {}) as results:
        results.append({"n": 1})
        write, calls = os.write, []

        def full(file: int, data: bytes) -> int:
            calls.append(data)
            if len(calls) > 1:
                raise OSError(28, "No space left on device")
            return write(file, data[:3])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(InputError, match="No space left on device"):
                results.append({"n": 2})
        results.append({"n": 3})
    assert read_results(tmp_path / "out.jsonl") == ({}, [{"n": 1}, {"n": 3}])


def make_record(question: str, method: str, seconds: float, **changes: Any) -> dict[str, Any]:
    row = {
        "question": question,
        "category": "s/" + question[0],
        "tokens": 100,
        "sha256": "x",
        "forwards": 100 if method == "none" else 50,
        "nodes_per_forward": 1.0 if method == "none" else 4.0,
    }
    record = {
        "model": "toy",
        "temperature": 0.0,
        "batch": 1,
        "method": method,
        "repeat": 0,
        "category": row["category"],
        "lossless": True,
        "exact": True,
        "warm": False,
        "tokens": 100,
        "total_s": seconds + 1.0,
        "prefill_s": 1.0,
        "decode_s": seconds,
        "outside_s": 0.1 * seconds,
        "tokens_per_s": 100 / seconds,
        "tokens_per_s_with_prefill": 100 / (seconds + 1.0),
        "first_token_s": 1.1,
        "token_p50_s": 0.01,
        "token_p95_s": 0.02,
        "peak_bytes": 5,
        "rows": [row | {name: changes[name] for name in changes if name in row}],
    }
    return record | {name: value for name, value in changes.items() if name in record}


def write_result(path: Path, records: list[dict[str, Any]]) -> Path:
    settings = {"methods": [], "suites": {"s": 3}, "questions": 3, "max_new_tokens": 100, "seed": 0}
    with ResultFile(path, settings) as results:
        for record in records:
            results.append(record)
    return path


def overall(path: Path) -> Line:
    (line,) = [line for line in read_report(path).lines if line.category == OVERALL]
    return line


def test_a_report_says_what_was_measured(tmp_path: Path) -> None:
    plain = [make_record("a1", "none", 4.0), make_record("a2", "none", 4.0), make_record("b1", "none", 9.0)]
    own = [make_record("a1", "d", 1.0), make_record("a2", "d", 2.0, sha256="y"), make_record("b1", "d", 9.0)]
    path = write_result(tmp_path / "r.jsonl", own[:1] + plain + own[1:])
    line = overall(path)
    assert line.speedup == pytest.approx(2.0)  # of 4, 2, 1
    assert (line.low, line.high) == pytest.approx((1.0, 4.0))
    assert line.geometric_mean == pytest.approx(2.0)
    assert line.total_ratio == pytest.approx(17 / 12)
    assert line.speedup_with_prefill == pytest.approx(5 / 3)
    assert line.slowest == pytest.approx(1.0)
    assert (line.tokens_per_s, line.plain_tokens_per_s) == pytest.approx((300 / 12, 300 / 17))
    assert (line.acceptance_length, line.nodes_per_forward) == pytest.approx((2.0, 4.0))
    assert line.outside_share == pytest.approx(0.1)
    assert (line.equal, line.answers, line.count) == (2, 3, 3)
    categories = {one.category: one.speedup for one in read_report(path).lines}
    assert categories == pytest.approx({OVERALL: 2.0, "s/a": 3.0, "s/b": 1.0})


def test_repeats_count_as_one_prompt_by_their_median(tmp_path: Path) -> None:
    records = [make_record("a1", "none", seconds, repeat=n) for n, seconds in enumerate((4.0, 8.0, 100.0))]
    records += [make_record("a1", "d", seconds, repeat=n) for n, seconds in enumerate((1.0, 4.0, 2.0))]
    line = overall(write_result(tmp_path / "r.jsonl", records))
    assert (line.count, line.speedup, line.total_ratio) == (1, pytest.approx(4.0), pytest.approx(4.0))


def test_unfinished_results_are_reported_as_such(tmp_path: Path) -> None:
    records = [make_record("a1", "none", 4.0), make_record("a1", "d", 2.0), make_record("a2", "d", 2.0)]
    report = read_report(write_result(tmp_path / "r.jsonl", records))
    assert report.missing == 1 and "Unfinished: 1 measurements" in markdown(report)
    with pytest.raises(InputError, match="no drafter has been measured"):
        read_report(write_result(tmp_path / "q.jsonl", records[:1]))
    with ResultFile(tmp_path / "other.jsonl", {"a": 1}):
        pass
    with pytest.raises(InputError, match="not a result of betoken bench"):
        read_report(tmp_path / "other.jsonl")


def test_tables_name_lossy_and_warm_drafters(tmp_path: Path) -> None:
    records = [make_record("a1", "none", 4.0), make_record("b1", "none", 4.0)]
    records += [make_record(question, "d", 2.0, lossless=False, warm=True) for question in ("a1", "b1")]
    text = markdown(read_report(write_result(tmp_path / "r.jsonl", records)))
    assert "| d (lossy, warm) | **2.00x** [2.00, 2.00] | 2.00x | 0 of 2 | 50.0 (25.0) | 2.00 | 2 of 2 |" in text
    assert "| s/b | 1 | 2.00x [2.00, 2.00] |" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith(("| d", "| drafter"))}
    assert len(widths) == 1


def test_wide_tables_tell_times_overhead_and_memory(tmp_path: Path) -> None:
    records = [make_record("a1", "none", 4.0, first_token_s=1.5, token_p50_s=0.04, token_p95_s=0.05)]
    records += [make_record("a1", "d", 2.0, peak_bytes=2_500_000_000)]
    report = read_report(write_result(tmp_path / "r.jsonl", records))
    row = "| d | 1.67x | 2.00x | 2.00x | 1100.0 (1500.0) | 10.0 (40.0) | 20.0 (50.0) | 4.0 | 10.0% | 2.50 |"
    assert row in markdown(report, wide=True)
    assert row not in markdown(report)


def test_prompts_that_are_slower_than_plain_are_named_the_slowest_first(tmp_path: Path) -> None:
    records = [make_record(f"a{n}", "none", 4.0) for n in range(9)]
    records += [make_record(f"a{n}", "d", 4.0 * (0.9 + 0.05 * n)) for n in range(9)]
    records += [make_record(f"a{n}", "never", 4.0) for n in range(9)]
    report = read_report(write_result(tmp_path / "r.jsonl", records))
    assert [one.questions for one in report.below] == [("a8",), ("a7",), ("a6",), ("a5",), ("a4",), ("a3",)]
    assert [line.below for line in report.lines if line.category == OVERALL] == [6, 0]
    told = "Below 0.97x of plain decoding (measured once): d: a8 0.77x, a7 0.80x, a6 0.83x, a5 0.87x, a4 0.91x"
    assert f"{told} and 1 more." in markdown(report)
    assert f"{told}, a3 0.95x." in markdown(report, wide=True)


def test_text_is_compared_only_where_the_verifier_promises_it(tmp_path: Path) -> None:
    methods = parse_drafters("suffix", [], "replay,replay:rule=gumbel,rejection", "4")
    settings = make_settings(tmp_path, methods=methods, temperatures=(0.0, 1.0))
    runner.run_bench(settings, ToyLoader(), tmp_path / "out.jsonl")
    lines = [line for line in read_report(tmp_path / "out.jsonl").lines if line.category == OVERALL]
    promised = {(line.temperature, line.method): line.exact for line in lines}
    assert promised == {
        (0.0, "suffix/replay"): True,
        (0.0, "suffix/replay:rule=gumbel"): True,
        (0.0, "suffix/rejection"): False,
        (1.0, "suffix/replay"): True,
        (1.0, "suffix/replay:rule=gumbel"): False,
        (1.0, "suffix/rejection"): False,
    }
    assert all(line.equal == line.answers for line in lines if line.exact)
    assert any(line.equal < line.answers for line in lines if not line.exact), "other draws, other text"


def test_the_readme_block_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(f"# Title\n{readme.START}\nold\n{readme.END}\nrest\n")
    readme.update_readme(path, "new table\n\n")
    assert path.read_text() == f"# Title\n{readme.START}\nnew table\n{readme.END}\nrest\n"
    for content in ("nothing", f"{readme.END}{readme.START}", f"{readme.START}{readme.START}{readme.END}"):
        path.write_text(content)
        with pytest.raises(InputError, match="once each"):
            readme.update_readme(path, "x")
        assert path.read_text() == content


def test_a_plot_for_each_setting(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    records = [make_record("a1", "none", 4.0), make_record("a1", "d", 2.0)]
    records += [make_record("a1", name, 4.0, batch=8) for name in ("none", "d")]
    files = plot_speedups(read_report(write_result(tmp_path / "r.jsonl", records)), tmp_path / "plots")
    assert [file.name for file in files] == ["speedup-toy-T0-batch1.png", "speedup-toy-T0-batch8.png"]
    for file in files:
        image = matplotlib.image.imread(file) if hasattr(matplotlib, "image") else None
        assert file.read_bytes().startswith(b"\x89PNG") and (image is None or image.std() > 0.01)


def test_provenance_says_where_a_number_comes_from(tmp_path: Path) -> None:
    runner.run_bench(make_settings(tmp_path), ToyLoader(), tmp_path / "out.jsonl")
    found = json.loads(provenance_path(tmp_path / "out.jsonl").read_text())
    assert found["settings"]["seed"] == 1
    (session,) = found["sessions"]
    assert session["machine"]["cores"] == os.cpu_count() and session["machine"]["memory_bytes"] > 1e8
    assert session["versions"]["torch"] and session["command"] and session["date"].endswith("+00:00")
    assert len(session["load_average"]) == 3


TOML = """
suites = ["toy", "{other}:1"]
data = "."
per_category = 2
batches = [1, 2]
max_new_tokens = 8
drafters = ["suffix"]
[[run]]
model = "toy"
[[run]]
model = "toy"
dtype = "float32"
verifiers = ["replay", "rejection"]
temperatures = [0.7, 1]
top_k = 40
top_p = 1
batches = [3]
nodes = 4
[[run.drafter]]
label = "short suffix"
drafter = "suffix"
verifier = "block"
nodes = 3
settings = {{ max_draft = 2 }}
"""


def write_toml(folder: Path, old: str = "", new: str = "") -> Path:
    write_suite(folder)
    path = folder / "b.toml"
    path.write_text(TOML.format(other=write_suite(folder, "other")).replace(old, new))
    return path


def test_each_run_of_a_toml_file_has_a_model_and_settings_of_its_own(tmp_path: Path) -> None:
    first, second = read_toml(write_toml(tmp_path))
    assert (first.name, second.name) == ("toy", "toy float32")
    assert first.settings.methods == (Method("suffix", "suffix", nodes="auto"),)
    assert second.settings.methods == (
        Method("suffix/replay", "suffix", {}, "replay", {}, 4),
        Method("suffix/rejection", "suffix", {}, "rejection", {}, 4),
        Method("short suffix", "suffix", {"max_draft": 2}, "block", {}, 3),
    )
    assert (first.settings.temperatures, first.settings.batches) == ((0.0,), (1, 2))
    assert (second.settings.temperatures, second.settings.batches) == ((0.7, 1.0), (3,))
    assert (first.settings.top_k, second.settings.top_k, second.settings.top_p) == (0, 40, 1.0)
    assert [suite.per_category for suite in second.settings.suites] == [2, 1]
    assert result_path(Path("a/b.jsonl"), second.name) == Path("a/b-toy-float32.jsonl")
    records = runner.run_bench(second.settings, ToyLoader(), tmp_path / "out.jsonl")
    assert len(records) == 2 * 4 * (6 // 3), "temperatures, methods, batches of six questions"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("per_category", "per_categorie", "unknown key 'per_categorie'"),
        ("nodes = 3", "node = 3", r"\[\[run.drafter\]\]: unknown key 'node'"),
        ("nodes = 3", "nodes = 0", "nodes must be auto or a whole number, at least 1"),
        ("max_draft", "max_drafts", "suffix has no setting 'max_drafts' .did you mean 'max_draft'"),
        ('dtype = "float32"', "dtype = 3", r"\[\[run\]\]: dtype must be str | None, not 3"),
        ('dtype = "float32"', "", "two runs are called toy: give each a name"),
        ("batches = [1, 2]", "batches = [1, true]", "batches must be"),
        ('label = "short suffix"', 'label = "suffix/replay"', "two methods are called suffix/replay"),
        ("[[run]]", "[[runn]]", "write at least one"),
        ("[[run]]", "[run", "no valid TOML"),
        ('drafter = "suffix"', "", "must name a drafter"),
        ('"replay", "rejection"', "", "name at least one verifier"),
        ('"rejection"', '"reject"', "unknown verifier 'reject'"),
        ("suites =", "# suites =", "missing 1 required positional argument: 'suites'"),
    ],
)
def test_a_bad_toml_file_is_told(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = write_toml(tmp_path, old, new)
    with pytest.raises(InputError, match=told):
        read_toml(path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"methods": ()}, "name at least one drafter"),
        ({"methods": (Method("x", "nothing"),)}, "unknown drafter 'nothing'"),
        ({"methods": (Method("x", "suffix", verifier="maybe"),)}, "unknown verifier 'maybe'"),
        ({"methods": (Method("x", "suffix", nodes="many"),)}, "nodes must be auto or"),
        ({"methods": (Method("none", "suffix"),)}, "plain decoding"),
        ({"batches": (0,)}, "at least 1"),
        ({"repeats": 0}, "at least 1"),
        ({"temperatures": (-1.0,)}, "temperature must be at least 0"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"temperatures": (float("nan"),)}, "temperature must be a finite number"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"suites": ()}, "suites: name at least one"),
        (
            {"temperatures": (0.5,), "methods": (Method("x", "suffix", verifier="greedy"),)},
            "verifier greedy decodes at temperature 0",
        ),
    ],
)
def test_bad_settings_are_refused_before_anything_is_loaded(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        make_settings(tmp_path, **changes)


def test_nodes_auto_needs_a_place_for_what_it_measures(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, methods=(Method("suffix", "suffix", nodes="auto"),))
    with pytest.raises(InputError, match="name a node count"):
        runner.run_bench(settings, ToyLoader(), tmp_path / "none.jsonl")
    records = runner.run_bench(settings, ToyLoader(costs=tmp_path / "costs"), tmp_path / "out.jsonl")
    assert len(records) == 8 and len(list((tmp_path / "costs").iterdir())) == 1


def test_drafters_and_their_settings_from_a_command_line() -> None:
    found = parse_drafters("suffix, prompt-lookup", ["suffix.max_draft=3", "verifier.rule=gumbel"], "replay", "5")
    assert found[0] == Method("suffix", "suffix", {"max_draft": "3"}, "replay", {"rule": "gumbel"}, 5)
    for bad, told in [("suffix=3", "write DRAFTER.KEY"), ("ptd.x=3", "ptd is not among"), ("suffix.x=1", "no setting")]:
        with pytest.raises(InputError, match=told):
            parse_drafters("suffix", [bad], "replay", "5")
    with pytest.raises(InputError, match="two methods"):
        parse_drafters("suffix,suffix", [], "replay", "5")


def test_each_verifier_gets_the_drafts_that_it_needs() -> None:
    verifiers = "replay, replay:rule=gumbel, rejection, block, traversal"
    found = {method.label: method for method in parse_drafters("draft-model,suffix", [], verifiers, "6")}
    assert len(found) == 10
    assert found["draft-model/replay"].settings == {} == found["suffix/traversal"].settings
    gumbel = found["draft-model/replay:rule=gumbel"]
    assert (gumbel.verifier, gumbel.settings) == ("replay", {"rule": "gumbel"})
    assert gumbel.verifier_settings == {"rule": "gumbel"}
    for name in ("rejection", "block", "traversal"):
        assert found[f"draft-model/{name}"].settings == {"sample": True}
    (own,) = parse_drafters("draft-model", ["draft-model.sample=false"], "rejection", "6")
    assert (own.label, own.settings) == ("draft-model", {"sample": "false"})
    for bad, told in [("replay:gumbel", "NAME:KEY=VALUE"), ("replay:rul=gumbel", "no setting 'rul'"), ("", "verifier")]:
        with pytest.raises(InputError, match=told):
            parse_drafters("draft-model", [], bad, "6")
    with pytest.raises(InputError, match="of several verifiers"):
        parse_drafters("draft-model", ["verifier.rule=gumbel"], "replay,block", "6")


def test_sampled_rows_differ_with_the_seed_only(tmp_path: Path) -> None:
    subject: Subject = ToyLoader()(ModelSpec("toy"))
    prompt = subject.codec.encode("some words")

    def sha(seed: int, method: str) -> str:
        request = Request(prompt, SamplingSettings(temperature=1.5, seed=seed), StopSettings(max_new_tokens=30))
        return str(measure(Method(method, method).decoder(subject), [request])["rows"][0]["sha256"])

    assert sha(1, "none") == sha(1, "suffix") != sha(2, "none")


def test_the_plan_does_not_depend_on_what_is_done(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    questions = settings.questions()
    trials = [list(plan(settings, settings.models[0], questions)) for _ in range(2)]
    assert [trial.key for trial in trials[0]] == [trial.key for trial in trials[1]]


def invoke(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Any:
    monkeypatch.setattr("betoken.bench.subject.load_subject", ToyLoader(costs=folder))
    app = typer.Typer()
    command.register(app)
    app.callback()(lambda: None)
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, suite = tmp_path / "out.jsonl", write_suite(tmp_path)
    arguments = ("--model", "toy", "--suite", f"{suite}:1", "--max-new-tokens", 9, "--drafters", "suffix", "--out", out)
    done = invoke(
        tmp_path, monkeypatch, *arguments, "--set", "suffix.max_draft=3", "--batch", "1,2", "--temperature", "0,0.7"
    )
    assert done.exit_code == 0 and "| suffix | **" in done.output, done.output
    refused = invoke(tmp_path, monkeypatch, *arguments)
    assert isinstance(refused.exception, InputError) and "other settings" in str(refused.exception)

    (tmp_path / "README.md").write_text(f"{readme.START}\n{readme.END}\n")
    monkeypatch.chdir(tmp_path)
    reported = invoke(tmp_path, monkeypatch, "report", out, "--readme")
    assert reported.exit_code == 0 and "| suffix |" in (tmp_path / "README.md").read_text()
    found = json.loads(invoke(tmp_path, monkeypatch, "report", out, "--json").stdout)
    assert len(found["lines"]) == 2 * (3 + 2), "all and two categories for batch 1, all and mixed for batch 2"


def test_help_tells_what_a_config_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "[[run]]" in invoke(tmp_path, monkeypatch, "--help").output


def test_a_config_file_excludes_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = write_toml(tmp_path), tmp_path / "out.jsonl"
    refused = invoke(tmp_path, monkeypatch, "--config", path, "--seed", 3, "--out", out)
    assert "--seed and --config exclude each other" in str(refused.exception)
    done = invoke(tmp_path, monkeypatch, "--config", path, "--out", out)
    assert done.exit_code == 0 and "short suffix" in done.output, done.output
    assert not out.exists() and (tmp_path / "out-toy.jsonl").is_file()
    wide = invoke(tmp_path, monkeypatch, "report", tmp_path / "out-toy-float32.jsonl", "--wide")
    assert "| suffix/rejection |" in wide.output and "peak memory" in wide.output, wide.output
