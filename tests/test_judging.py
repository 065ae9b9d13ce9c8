"""`betoken calibrate parse` and `betoken eval --method` on tiny models, and what a judge's records allow."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import betoken
from answer_worlds import tiny_folder
from betoken.answers import answer
from betoken.answers.calibration import read_judge_calibration
from betoken.answers.judge import Judge
from betoken.answers.parse import Cascade, Parse
from betoken.bench import pair as pairs
from betoken.bench.answering import AnswerEvalSettings, run_answers
from betoken.bench.pair import Pair
from betoken.bench.results import read_results
from betoken.bench.subject import Method, ModelSpec
from betoken.commands import calibrate as calibrate_command
from betoken.commands import evaluate as evaluate_command
from betoken.engine import Engine
from betoken.errors import InputError
from betoken.models.native.isa import isa
from betoken.tuning.choosing import judge_of
from betoken.tuning.judging import JudgingSettings, calibrate

pytestmark = pytest.mark.skipif(isa() == "none", reason="this processor has no native kernels")
WORDS = ("def add(a, b): the fox Correct Incorrect", "Reply with one word")
LENGTH = 16


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("models")
    one, two = (
        betoken.load(
            tiny_folder(folder / name, seed, *WORDS),
            drafter="none",
            dtype="int8",
            threads=1,
            cache_dir=folder,
        )
        for name, seed in (("target", 1), ("draft", 2))
    )
    return Pair(one, two)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "sums.jsonl"
    rows = [{"question": f"add {n} and the fox", "answer": f"#### {n}"} for n in range(10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make(suite: Path, **changes: Any) -> JudgingSettings:
    settings = JudgingSettings(
        ModelSpec("target", "draft"),
        Method("none", "none", nodes=1),
        ((suite, 6),),
        Judge(),
        boundaries="tokens",
        every=4,
        max_new_tokens=LENGTH,
        batch=3,
    )
    return replace(settings, **changes)


def record(place: int, correct: bool, odds: list[float], target: int | None = None) -> dict[str, Any]:
    return {
        "question": f"sums/{place}",
        "suite": "sums",
        "correct": correct,
        "prompt": 20,
        "before": 20,
        "suffix": 5,
        "draft_tokens": 40,
        "draft_own_tokens": 40,
        "ends": [10, 20, 30],
        "odds": odds,
        "means": [0.0] * len(odds),
        "target": None if target is None else {"tokens": target, "correct": True},
    }


def telling(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Records of a judge that mostly knows."""
    chance = np.random.default_rng(seed)
    found = []
    for place in range(count):
        correct = bool(chance.random() < 0.6)
        odds = (chance.normal(3.0 if correct else -3.0, 1.5, 4)).tolist()
        found.append(record(place, correct, odds))
    return found


def test_a_judge_that_knows(suite: Path, pair: Pair) -> None:
    from betoken.answers.plan import Rates
    from betoken.tuning.ceiling import Costs

    costs = Costs(Rates(lambda nodes: 0.1 + 1e-4 * nodes), Rates(lambda nodes: 0.01 + 1e-5 * nodes))
    found = judge_of(telling(200), make(suite), costs)
    assert found.fallback is None and found.threshold is not None and found.expected is not None
    assert found.auc.value > 0.95 and found.threshold.risk <= 0.05
    assert found.expected > 1.0 and found.ceiling > 1.5
    chosen = [row for row in found.table if row.threshold == found.threshold.value]
    assert {row.most for row in chosen} == {0, 1, 2, 4, 8, 16, 32}
    assert max(row.speed_up for row in chosen) == pytest.approx(found.expected)
    for row in found.table:
        wrong = [case for case in found.cases if not case.right]
        assert row.false_accept == sum(case.whole > row.threshold for case in wrong) / len(wrong)
    everything = [row for row in found.table if row.threshold == 0.0]
    assert all(row.accepted > 0.9 and row.false_reject == 0.0 for row in everything)
    # Judging that costs more than writing cannot pay, however well it is done.
    dear = Costs(Rates(lambda nodes: 0.1 + 1e-4 * nodes), Rates(lambda nodes: 0.2))
    poor = judge_of(telling(200), make(suite), dear)
    assert poor.fallback is not None and "does not pay" in poor.fallback and poor.ceiling < 1.0


def test_a_judge_that_does_not_know(suite: Path) -> None:
    chance = np.random.default_rng(3)
    guessing = [record(n, bool(chance.random() < 0.5), chance.normal(size=4).tolist()) for n in range(60)]
    found = judge_of(guessing, make(suite), None)
    assert found.fallback is not None and "too weak: AUC" in found.fallback
    few = judge_of(telling(30), make(suite), None)
    assert few.threshold is None and few.fallback is not None and "45 questions are needed" in few.fallback
    with pytest.raises(InputError, match="no draft could be judged"):
        judge_of([record(0, True, [])], make(suite), None)


def test_two_features_are_fitted_on_other_drafts_than_the_threshold(suite: Path) -> None:
    records = telling(120)
    for one in records:
        one["means"] = [-1.0 + one["correct"]] * 4
    found = judge_of(records, make(suite, judge=Judge(likelihood=1.0)), None)
    assert found.fitted is not None and found.fitted.likelihood > 0.5
    assert len(found.cases) == 60 and found.auc.right + found.auc.wrong == 60
    assert set(found.signals) == {"verdict", "mean log-probability"}
    assert found.signals["mean log-probability"].value == 1.0 and found.signals["verdict"].value > 0.9
    assert set(judge_of(records, make(suite), None).signals) == {"verdict"}


def test_a_judge_that_says_the_opposite_is_not_listened_to(suite: Path) -> None:
    """If the mean log-probability knows better."""
    records = telling(120)
    for one in records:
        one["odds"] = [-odds for odds in one["odds"]]
        one["means"] = [-1.0 + one["correct"]] * 4
    found = judge_of(records, make(suite, judge=Judge(likelihood=1.0)), None)
    assert found.fitted is not None and found.fitted.temperature == pytest.approx(1000.0)
    assert found.auc.value == 1.0 and found.signals["verdict"].value < 0.1
    for one in records:
        one["means"] = [float(-one["correct"])] * 4
    assert judge_of(records, make(suite, judge=Judge(likelihood=1.0)), None).fitted is None


def test_records_say_what_was_asked(suite: Path) -> None:
    """Those made with another general question cannot be continued."""
    general, own = Judge(correct="yes", incorrect="no {0}"), Judge(instruction="Is {} right?")
    [asked, mine] = [make(suite, judge=one).describe([])["judge"]["instruction"] for one in (general, own)]
    assert "yes or no {0}" in asked
    assert mine == "Is {} right?"


def test_interrupted_frozen_and_obeyed(suite: Path, pair: Pair, tmp_path: Path) -> None:
    """Random models judge nothing, so the target answers alone, and says why."""
    settings, out, kept = make(suite), tmp_path / "parse.json", tmp_path / "parse.jsonl"

    def stop(done: int, total: int, what: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(settings, lambda spec, method: pair, out, kept, stop)
    assert len(read_results(kept)[1]) == 2 and not out.exists()
    steps: list[int] = []
    told, _ = calibrate(settings, lambda spec, method: pair, out, kept, lambda done, total, what: steps.append(done))
    assert steps[0] == 2 and steps[-1] == 6 and json.loads(out.read_text()) == told
    assert len(told["rows"]) == 6 and told["fallback"] is not None
    for one in read_results(kept)[1]:
        assert len(one["odds"]) == len(one["ends"]) + 1 and one["draft_tokens"] == LENGTH
    judged = read_results(kept)[1][0]
    question = json.loads(suite.read_text().splitlines()[int(judged["question"].split("/")[1]) - 1])["question"]
    asked = [
        {"role": "user", "content": f"{question}\n\nThink step by step. End with the final number alone after ####."}
    ]
    own = {"boundaries": "tokens", "every": 4, "threshold": 1.0, "most": 99}
    found = answer(asked, target=pair.target, draft=pair.draft, method_settings=own, max_new_tokens=LENGTH).stats
    assert [end for end, _ in found.prefix_confidences] == judged["ends"]
    judge = Judge()
    confidences = [one for _, one in found.prefix_confidences]
    assert [*confidences, found.confidence] == [judge.confidence(odds) for odds in judged["odds"]]
    assert pair.draft is not None
    for method in ("parse", "cascade"):
        alone = answer(
            asked, method=method, target=pair.target, method_settings={"config": str(out)}, max_new_tokens=LENGTH
        )
        assert alone.tokens == pair.target.generate(asked, max_new_tokens=LENGTH)[0].tokens
        assert alone.stats.fallback == told["fallback"] and alone.stats.draft_tokens == 0
    with pytest.raises(InputError, match="other settings"):
        calibrate(make(suite, seed=5), lambda spec, method: pair, out, kept)
    together, beside = make(suite, with_target=True, batch=4), tmp_path / "together.jsonl"
    calibrate(together, lambda spec, method: pair, tmp_path / "together.json", beside)
    [same] = [one for one in read_results(beside)[1] if one["question"] == judged["question"]]
    mine = pair.target.generate(asked, max_new_tokens=LENGTH)[0]
    assert same | {"target": None} == judged and same["target"] == {"tokens": len(mine.tokens), "correct": False}
    again, _ = calibrate(make(suite, bound=0.5), lambda spec, method: pair, out, kept)
    assert again["bound"] == 0.5


def frozen(path: Path, target: Engine, draft: Engine, **changes: Any) -> Path:
    told = {
        "kind": "parse calibration",
        "fallback": None,
        "settings": {
            "threshold": 0.7,
            "temperature": 2.0,
            "bias": 0.5,
            "boundaries": "line",
            "most": 4,
            "accepts": 0.4,
        },
        "target": target.target.name,
        "draft": draft.target.name,
        "rows": {},
    }
    path.write_text(json.dumps(told | changes))
    return path


def test_a_file_gives_the_settings(pair: Pair, tmp_path: Path) -> None:
    assert pair.draft is not None
    path = str(frozen(tmp_path / "parse.json", pair.target, pair.draft))
    method = Parse(config=path)
    assert (method.threshold, method.temperature, method.bias, method.most) == (0.7, 2.0, 0.5, 4)
    assert method.drafts and (Cascade(config=path).threshold, Cascade(config=path).accepts) == (0.7, 0.4)
    with pytest.raises(InputError, match=r"threshold 0.9 beside config, which says 0.7"):
        Parse(config=path, threshold=0.9)
    found = answer("the fox", target=pair.target, draft=pair.draft, method_settings={"config": path}, max_new_tokens=8)
    assert found.stats.fallback is None and found.stats.confidence is not None
    for fallback, settings in ((None, {"instruction": "", "threshold": 0.5}), ("too weak", {"instruction": ""})):
        frozen(tmp_path / "old.json", pair.target, pair.draft, fallback=fallback, settings=settings)
        with nullcontext() if fallback else pytest.raises(InputError, match="does not hold the judge's question"):
            assert not Cascade(config=str(tmp_path / "old.json")).drafts
    frozen(tmp_path / "parse.json", pair.draft, pair.target)
    with pytest.raises(InputError, match="run betoken calibrate parse on these two"):
        answer("the fox", target=pair.target, draft=pair.draft, method_settings={"config": path}, max_new_tokens=8)
    for text, told in (("{", "no JSON"), ("{}", "not a file of"), ('{"kind": "parse calibration"}', "damaged")):
        (tmp_path / "parse.json").write_text(text)
        with pytest.raises(InputError, match=told):
            read_judge_calibration(tmp_path / "parse.json")


def test_evaluation_of_methods(suite: Path, pair: Pair, tmp_path: Path) -> None:
    reports = {}
    for name in ("parse", "cascade", "draft", "target", "specreason"):
        own: dict[str, object] = {"threshold": 1.0} if name in ("parse", "cascade") else {}
        settings = AnswerEvalSettings(
            model=ModelSpec("target", "draft"),
            method=Method("none", "none", nodes=1),
            suites=(suite,),
            answering=name,
            answering_settings=own,
            rows=5,
            max_new_tokens=LENGTH,
            batch=2,
        )
        out = tmp_path / f"{name}.jsonl"
        [reports[name]] = run_answers(settings, lambda spec, method: pair, out)
        found = read_results(out)[1]
        assert len(found) == 5 and all(0 < one["tokens"] <= LENGTH + 1 for one in found)
        [again] = run_answers(settings, lambda spec, method: pytest.fail("nothing is left to ask"), out)
        assert again == reports[name]
    parse, cascade = reports["parse"], reports["cascade"]
    assert cascade.accepted_whole == 0.0 and cascade.kept_fraction == 0.0 and cascade.mean_tokens == LENGTH
    assert cascade.all_rejected is not None and cascade.all_rejected > 1.0
    assert parse.judge_nodes_per_token > 1.0 and parse.latency_p95_s >= parse.latency_p50_s > 0
    assert reports["draft"].accepted_whole == 1.0 and reports["draft"].all_rejected is None
    assert reports["target"].judge_nodes_per_token == 0.0
    assert all(json.dumps(report.describe()) for report in reports.values())


def test_rows_of_a_calibration_are_refused(suite: Path, pair: Pair, tmp_path: Path) -> None:
    out = tmp_path / "parse.json"
    calibrate(make(suite), lambda spec, method: pair, out, tmp_path / "records.jsonl")
    settings = AnswerEvalSettings(
        model=ModelSpec("target", "draft"),
        method=Method("none", "none", nodes=1),
        suites=(suite,),
        answering="parse",
        answering_settings={"config": str(out)},
        max_new_tokens=LENGTH,
    )
    with pytest.raises(InputError, match=r"6 of these rows .*--without"):
        run_answers(settings, lambda spec, method: pair, tmp_path / "eval.jsonl")
    [report] = run_answers(replace(settings, without=(out,)), lambda spec, method: pair, tmp_path / "eval.jsonl")
    assert report.answers == report.fallbacks == 4


def test_the_commands(suite: Path, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "load_pair", lambda spec, method: pair)
    app = typer.Typer()
    calibrate_command.register(app)
    evaluate_command.register(app)
    out = tmp_path / "judge.json"
    asked = ["calibrate", "parse", "--suite", f"{suite}:6", "--draft-model", "draft", "--model", "target"]
    asked += [
        "--max-new-tokens",
        "8",
        "--out",
        str(out),
        "--set",
        "answer.boundaries=tokens",
        "--set",
        "answer.every=4",
    ]
    ran = CliRunner().invoke(app, asked)
    assert ran.exit_code == 0, ran.output
    assert "AUC" in ran.output and "perfect judge" in ran.output and "The target will answer alone" in ran.output
    assert out.with_suffix(".roc.png").stat().st_size > 5000
    assert out.with_suffix(".reliability.png").stat().st_size > 5000
    evaluating = ["eval", "--suite", str(suite), "--draft-model", "draft", "--model", "target", "--max-new-tokens", "8"]
    ran = CliRunner().invoke(
        app,
        [*evaluating, "--method", "parse", "--set", f"answer.config={out}", "--without", str(out)],
    )
    assert ran.exit_code == 0, ran.output
    assert "the target answered 4 alone" in ran.output
    ran = CliRunner().invoke(
        app,
        [*evaluating, "--method", "cascade", "--rows", "2", "--set", "answer.threshold=1", "--json"],
    )
    assert json.loads(ran.output)["accepted_whole"] == 0.0
    ran = CliRunner().invoke(app, [*asked, "--set", "answer.threshold=1"])
    assert isinstance(ran.exception, InputError) and "a calibration takes" in str(ran.exception)
