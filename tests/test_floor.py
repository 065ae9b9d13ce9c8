"""`betoken bench never-slower`: who is measured beside whom, what is repeated, what counts, what a kill costs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bench_toys import ToyLoader, write_suite
from betoken.bench import floor, floor_report
from betoken.bench.adversarial import adversarial
from betoken.bench.floor import FloorSettings, ratios, run_floor
from betoken.bench.provenance import read_provenance
from betoken.bench.results import read_results
from betoken.bench.subject import Method, ModelSpec
from betoken.bench.suites import Question
from betoken.commands import bench as command
from betoken.errors import InputError

WORDS = [chr(97 + i // 26) + chr(97 + i % 26) + chr(97 + i % 7) for i in range(80)]


def make_settings(folder: Path, **changes: Any) -> FloorSettings:
    (folder / "words.jsonl").write_text(
        json.dumps({"question_id": 1, "category": "words", "turns": [" ".join(WORDS)]}) + "\n"
    )
    settings = FloorSettings(
        model=ModelSpec("toy"),
        methods=tuple(Method(name, name, nodes=4) for name in ("suffix", "prompt-lookup", "token-recycling")),
        suites=(write_suite(folder), folder / "words.jsonl"),
        prompts=4,
        adversarial=2,
        max_new_tokens=12,
    )
    return replace(settings, **changes)


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """Speeds that measurements of a drafter report in turn, the last again and again; plain decoding: 100."""
    told: dict[str, list[float]] = {}
    real = floor.measure

    def measured(decoder: Any, requests: Any) -> dict[str, Any]:
        queue = told.get(decoder.drafter.name, [100.0])
        speed = queue.pop(0) if len(queue) > 1 else queue[0]
        return real(decoder, requests) | {"tokens_per_s": speed}

    monkeypatch.setattr(floor, "measure", measured)
    return told


def test_each_drafter_stands_beside_plain_decoding_once_a_prompt(
    tmp_path: Path, speeds: dict[str, list[float]]
) -> None:
    records = run_floor(make_settings(tmp_path), ToyLoader(), tmp_path / "out.jsonl")
    assert len(records) == 6 * 2 and all(record["round"] == 0 for record in records)
    places: Counter[tuple[str, int]] = Counter()
    for record in records:
        names = [run["method"] for run in record["runs"]]
        plain = names.index("none")
        assert 2 <= len(names) <= 3 and all(abs(place - plain) <= 1 for place in range(len(names)))
        places.update((name, place - plain) for place, name in enumerate(names) if name != "none")
        assert len({run["sha256"] for run in record["runs"]}) == 1, "the same text"
    assert len(places) == 6 and sum(places.values()) == 18, "each drafter before and behind it"
    assert all(2 <= count <= 4 for count in places.values()), places
    temperatures = Counter(record["temperature"] for record in records)
    assert temperatures == {0.0: 8, 1.5: 4}


def test_what_is_below_the_floor_is_repeated_and_the_median_counts(
    tmp_path: Path, speeds: dict[str, list[float]]
) -> None:
    slow_once = [90.0, 99.0, 98.0, 95.0, 99.0, 96.0, 100.0]  # first, five pairs, the rest
    slow_twice = [90.0, 90.0, 99.0, 96.0, 95.0, 99.0, 96.0]
    settings = make_settings(tmp_path, prompts=1, adversarial=0)
    speeds |= {"suffix": slow_once, "prompt-lookup": slow_twice}
    records = run_floor(settings, ToyLoader(), tmp_path / "out.jsonl")
    pairs = [[run["method"] for run in record["runs"]] for record in records if record["round"] > 0]
    assert len(pairs) == 10 and all(len(pair) == 2 and "none" in pair for pair in pairs)
    for name in ("suffix", "prompt-lookup"):
        firsts = [pair[0] for pair in pairs if name in pair]
        assert firsts in (["none", name] * 2 + ["none"], [name, "none"] * 2 + [name]), "alternated"
    report = floor_report.read_floor(tmp_path / "out.jsonl")
    found = {drafter.method: drafter for drafter in report.drafters}
    assert found["suffix"].prompts[0].ratio == pytest.approx(0.98)
    assert (found["suffix"].share(0.97), found["suffix"].share_at_once(0.97)) == (1.0, 0.0)
    assert found["prompt-lookup"].prompts[0].ratio == pytest.approx(0.96)
    assert [one.question for one in found["prompt-lookup"].slow(0.97)] == [records[0]["question"]]
    assert found["token-recycling"].prompts[0].again == () and found["token-recycling"].share(0.97) == 1.0
    text = floor_report.told(report)
    assert "| suffix | **100.0%** of 1 | 0.0% | 0.980x | 0.980x | 0.900x | 1 | 1 of 1 |" in text
    assert f"| prompt-lookup | {records[0]['question']} | 0 | 0.960x | 0.90 0.90 0.99 0.96 0.95 0.99 |" in text
    assert "Unfinished" not in text


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, speeds: dict[str, list[float]]) -> None:
    settings = make_settings(tmp_path, prompts=1, adversarial=1, repeats=3)
    speeds["suffix"] = [90.0]
    out = tmp_path / "out.jsonl"
    run_floor(settings, ToyLoader(), out)
    whole = out.read_bytes().splitlines(keepends=True)
    keys = [floor._key(record) for record in read_results(out)[1]]
    assert len(keys) == len(set(keys)) == 2 * (2 + 3)
    for kept in (1, 2, 4, len(whole) - 1, len(whole)):
        part = tmp_path / f"part{kept}.jsonl"
        part.write_bytes(b"".join(whole[:kept]) + (whole[kept][:30] if 0 < kept < len(whole) else b""))
        loader = ToyLoader()
        records = run_floor(settings, loader, part)
        assert [floor._key(record) for record in records] == keys
        assert part.read_bytes().splitlines(keepends=True)[:kept] == whole[:kept]
        assert loader.loads == (kept < len(whole))
    part = tmp_path / "part4.jsonl"
    assert len(read_provenance(part)["sessions"]) == 1
    part.write_bytes(b"".join(whole[:4]))
    assert "Unfinished: 1 repetitions" in floor_report.told(floor_report.read_floor(part))
    with pytest.raises(InputError, match=r"other settings \(floor, repeats\)"):
        run_floor(replace(settings, floor=0.9, repeats=4), ToyLoader(), out)


def test_ratios_are_of_the_plain_run_in_the_same_turn() -> None:
    runs = [{"method": "a", "tokens_per_s": 30.0}, {"method": "none", "tokens_per_s": 20.0}]
    assert ratios({"runs": [*runs, {"method": "b", "tokens_per_s": 10.0}]}) == {"a": 1.5, "b": 0.5}


def test_adversarial_prompts_are_seeded_and_hold_only_words_of_the_suites() -> None:
    source = [Question("s/1", "s", "s", (), " ".join(WORDS))]
    prompts = adversarial(source, 6, seed=3)
    assert prompts == adversarial(source, 6, seed=3) != adversarial(source, 6, seed=4)
    assert prompts[:2] == adversarial(source, 2, seed=3), "more of them change none"
    assert len({prompt.raw for prompt in prompts}) == 6
    for prompt in prompts:
        assert set(prompt.raw.split()) <= set(WORDS) and prompt.messages[0]["content"] == prompt.raw
    lines = prompts[1].raw.splitlines()
    assert len({tuple(line.split()[:4]) for line in lines}) == 1, "all begin the same"
    assert len({tuple(line.split()[4:]) for line in lines}) == len(lines) == 12, "and no two end the same"
    with pytest.raises(InputError, match="different words"):
        adversarial([Question("s/1", "s", "s", (), "too few words")], 1, seed=0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"methods": ()}, "name at least one drafter"),
        ({"methods": (Method.plain(),)}, "not plain decoding"),
        ({"suites": ()}, "suites"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"floor": 0.0}, "floor above 0"),
        ({"methods": (Method("x", "suffix", verifier="greedy"),)}, "use replay"),
        ({"prompts": 100}, "cannot draw 100 rows"),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        make_settings(tmp_path, **changes).cases()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("betoken.bench.subject.load_subject", ToyLoader(costs=tmp_path / "costs"))
    make_settings(tmp_path)
    app = typer.Typer()
    command.register(app)
    app.callback()(lambda: None)
    out = tmp_path / "result" / "out.jsonl"
    arguments = ["bench", "never-slower", "--model", "toy", "--drafters", "suffix", "--data", str(tmp_path)]
    arguments += ["--prompts", "2", "--adversarial", "1", "--max-new-tokens", "8", "--repeats", "2", "--out", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0 and "| suffix | **" in done.output, done.output
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert len(found["drafters"][0]["prompts"]) == 3 and found["settings"]["suites"] == ["toy", "words"]
    assert "share_at_once" in found["drafters"][0]
    monkeypatch.delenv("BETOKEN_DATA", raising=False)
    nowhere = CliRunner().invoke(app, ["bench", "never-slower"])
    assert isinstance(nowhere.exception, InputError) and "--suite FILE" in str(nowhere.exception)
