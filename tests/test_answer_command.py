"""`betoken answer` from the command line, on tiny models; and the real default model as writer and judge at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import betoken as library
from answer_worlds import plain_logits, tiny_folder
from betoken.answers import answer
from betoken.answers.calibration import KIND
from betoken.answers.judge import Judge, VerdictTokens
from betoken.commands.answer import Pair
from betoken.models.native.isa import isa
from cli_home import betoken, make_home, refused

pytestmark = pytest.mark.skipif(isa() == "none", reason="this processor has no native kernels")
PAIR = ("answer", "--model", "tiny", "--draft-model", "other", "--dtype", "int8", "--threads", "1", "--nodes", "4")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_home(tmp_path_factory.mktemp("home"))
    tiny_folder(folder / "other", 3, "is this answer free of mistakes? a quick brown dog")
    return folder


def test_one_json_object(home: Path) -> None:
    own = ("--set", "answer.boundaries=tokens", "--set", "answer.every=4", "--set", "answer.threshold=1")
    own += ("--set", "answer.most=8")  # as many as pay may be none
    ran = betoken(home, *PAIR, *own, "--prompt", "the fox", "--max-new-tokens", "12", "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    found = json.loads(ran.stdout)
    assert len(found["tokens"]) == 12
    stats = found["stats"]
    assert not stats["accepted_whole"]
    assert (stats["method"], stats["draft_tokens"]) == ("parse", 12)
    assert stats["judge_forwards"] >= 1 and stats["judge_nodes"] > 12
    assert all(4 <= end < 12 * 4 for end, _ in stats["prefix_confidences"])
    assert stats["prefix_confidences"]


def test_text_on_standard_output_and_one_line_of_statistics(home: Path) -> None:
    ran = betoken(home, *PAIR, "--method", "draft", "--prompt", "the fox", "--max-new-tokens", "12")
    drafted = library.load(str(home / "other"), drafter="none", dtype="int8", threads=1, cache_dir=home / "cache")
    assert ran.returncode == 0
    assert ran.stdout.encode().startswith(drafted.generate("the fox", max_new_tokens=12)[0].text.encode()[:6])
    assert len(ran.stderr.splitlines()) == 1
    assert "kept the whole draft" in ran.stderr


def test_a_draft_model_may_have_another_dtype(home: Path) -> None:
    pair = Pair(dtype="int8", draft_dtype="float32", threads=1, nodes="4", model=str(home / "tiny"))
    pair = replace(pair, draft_model="other", cache_dir=home / "cache")
    engines = pair.open_target(), pair.open_draft(str(home / "other"))
    assert [engine.target.dtype for engine in engines] == ["int8", "float32"]
    assert replace(pair, draft_dtype=None).open_draft(str(home / "other")).target.dtype == "int8"


def test_a_draft_model_in_another_dtype_changes_no_token(home: Path) -> None:
    asked = ("--prompt", "the fox", "--max-new-tokens", "48", "--json")
    own = ("generate", "--model", "tiny", "--dtype", "int8", "--threads", "1", "--nodes", "4", *asked)
    found = [json.loads(betoken(home, *own, *more).stdout) for more in ((), ("--draft-model", "tiny"))]
    rounded = json.loads(betoken(home, *own, "--draft-model", "tiny", "--draft-dtype", "int4").stdout)
    assert rounded["tokens"] == found[0]["tokens"] == found[1]["tokens"]
    assert rounded["stats"]["forwards"] > found[1]["stats"]["forwards"]  # the same weights in int8 are always right


def test_the_dtype_of_no_draft_model_is_refused(home: Path) -> None:
    asked = ("--model", "tiny", "--draft-dtype", "int4", "--prompt", "x")
    refused(betoken(home, "generate", *asked), "needs a draft model")
    refused(betoken(home, "answer", "--method", "target", *asked), "is for a draft model on this machine")
    asked = ("--model", "tiny", "--draft-model", "http://127.0.0.1:9/v1", "--draft-dtype", "int4", "--prompt", "x")
    refused(betoken(home, "answer", *asked), "is for a draft model on this machine")


def test_a_calibration_that_falls_back_on_the_target_takes_the_same_command(home: Path) -> None:
    told = {"kind": KIND, "settings": {}, "fallback": "too weak", "target": "tiny", "draft": "other", "rows": {}}
    (home / "weak.json").write_text(json.dumps(told))
    asked = ("--set", "answer.config=weak.json", "--prompt", "the fox", "--max-new-tokens", "4", "--json")
    ran = betoken(home, *PAIR, "--draft-dtype", "int4", *asked)
    assert json.loads(ran.stdout)["stats"]["fallback"] == "too weak", ran.stderr


def test_settings_of_generate_are_settings_of_an_answer(home: Path) -> None:
    own = ("--logit-bias", "40=1000", "--max-new-tokens", "3", "--json")
    ran = betoken(home, *PAIR, "--method", "target", "--prompt", "the fox", *own)
    assert json.loads(ran.stdout)["tokens"] == [40, 40, 40]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("answer", "--model", "tiny", "--prompt", "x"), "needs a draft model"),
        ((*PAIR, "--method", "pars", "--prompt", "x"), "did you mean 'parse'"),
        ((*PAIR, "--set", "answer.treshold=1", "--prompt", "x"), "did you mean 'threshold'"),
        ((*PAIR, "--set", "answer.threshold=7", "--prompt", "x"), "at most 1"),
        ((*PAIR, "--set", "answer.passes=3", "--prompt", "x"), "answer.passes must be one | two or auto"),
        ((*PAIR, "--set", "judge.threshold=1", "--prompt", "x"), "answer.KEY=VALUE"),
        ((*PAIR, "--stop-id", "5", "--prompt", "x"), "the two models have different tokens"),
        ((*PAIR, "--logit-bias", "5", "--prompt", "x"), "write ID=BIAS"),
        (PAIR, "no prompt"),
    ],
)
def test_what_cannot_be_used_is_one_line(home: Path, arguments: tuple[str, ...], told: str) -> None:
    refused(betoken(home, *arguments), told)


@pytest.mark.parametrize("layout", ["suffix", "prompt"])
def test_a_real_model_judges_its_own_draft(smollm2: Path, layout: str) -> None:
    """Packed confidences are, bit for bit, those of separate plain requests."""
    target, draft = (library.load("smollm2-135m", drafter=name, dtype="int8", nodes=8) for name in ("suffix", "none"))
    question = "Name three rivers, one in each line. Then say which is longest."
    own = {"layout": layout, "boundaries": "line", "threshold": 1.0, "prefix_threshold": 0.0, "most": 3}
    found = answer(question, target=target, draft=draft, method_settings=own, max_new_tokens=40)
    ends = [end for end, _ in found.stats.prefix_confidences]
    assert ends and found.stats.kept_tokens == ends[-1]
    written = draft.generate(question, max_new_tokens=40)[0]
    kept = found.stats.kept_tokens
    assert found.tokens == written.tokens  # the same model goes on as it began
    asked, words = (
        Judge(layout=layout).prompt(target.tokenizer, question),
        VerdictTokens.of(  # type: ignore[arg-type]
            target.tokenizer, "Correct", "Incorrect"
        ),
    )
    for end, confidence in found.stats.prefix_confidences:
        logits = plain_logits(draft.target, [*asked.before, *written.tokens[:end], *asked.suffix])
        assert confidence == Judge().confidence(words.log_odds(logits))
    if layout == "suffix":
        # The target copies from its own draft: far fewer forward passes than tokens.
        assert found.stats.target_forwards < (len(found.tokens) - kept) / 1.5
