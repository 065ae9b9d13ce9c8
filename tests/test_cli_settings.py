"""Sampling settings, samples, log-probabilities and exceptions on the command line, as the Python face gives them."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import betoken
from betoken import Engine
from betoken.cli import main
from betoken.commands.generate import write
from betoken.result import Chunk, RelaxedToken
from cli_home import TINY, make_home, refused

Run = Callable[..., subprocess.CompletedProcess[str]]
ASKED = ("generate", *TINY, "--prompt", "the fox says it, the fox", "--raw", "--max-new-tokens", "16")
ASD = ("--verifier", "asd", *(f"--set=verifier.{one}" for one in ("budget=500", "gate=500", "cap=8")))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `make_home`."""
    return make_home(tmp_path_factory.mktemp("cli"))


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command line in this process, which has imported torch already."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("BETOKEN_CACHE", str(home / "cache"))

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        return subprocess.CompletedProcess(arguments, int(str(exit_.value.code)), *capsys.readouterr())

    return call


@pytest.fixture
def engine(home: Path) -> Engine:
    return betoken.load(str(home / "tiny"), drafter="none", dtype="float32", threads=1)


def told(found: dict[str, Any]) -> dict[str, Any]:
    """An answer without what it cost."""
    return {key: value for key, value in found.items() if key != "stats"}


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["--repetition-penalty", "1.7"], {"repetition_penalty": 1.7}),
        (["--presence-penalty", "0.5"], {"presence_penalty": 0.5}),
        (["--frequency-penalty=2"], {"frequency_penalty": 2.0}),
        (["--logit-bias", "70=-inf", "--logit-bias", "71=1000"], {"logit_bias": {70: float("-inf"), 71: 1000.0}}),
        (["--stop-id", "72", "--stop-id", "73", "--logit-bias", "73=1000"],
         {"stop_ids": [72, 73], "logit_bias": {73: 1e3}}),
        (["--stop-id", "73", "--logit-bias", "73=9", "--min-new-tokens", "5"],
         {"stop_ids": [73], "logit_bias": {73: 9}, "min_new_tokens": 5}),
        (["--ignore-eos", "--logprobs", "2"], {"ignore_eos": True, "logprobs": 2}),
        (["--temperature", "1.1", "--top-k", "40", "--top-p", ".9", "--min-p", ".01", "--seed", "4", "--logprobs", "0"],
         {"temperature": 1.1, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "seed": 4, "logprobs": 0}),
    ],
)  # fmt: skip
def test_the_command_line_asks_what_python_asks(
    run: Run, engine: Engine, arguments: list[str], asked: dict[str, Any]
) -> None:
    ran = run(*ASKED, *arguments, "--json")
    assert ran.returncode == 0, ran.stderr
    [expected] = engine.generate(ASKED[-4], raw=True, max_new_tokens=16, **asked)
    assert told(json.loads(ran.stdout)) == told(json.loads(json.dumps(asdict(expected))))
    default = engine.generate(ASKED[-4], raw=True, max_new_tokens=16)[0]
    assert "logprobs" in asked or expected.tokens != default.tokens


def test_ignore_eos(home: Path, run: Run) -> None:
    """On a model that has an end token."""
    ending = shutil.copytree(home / "tiny", home / "ending")
    for name in ("config.json", "generation_config.json"):
        (ending / name).write_text(json.dumps(json.loads((ending / name).read_text()) | {"eos_token_id": 73}))
    asked = (*ASKED, "--model", "ending", "--logit-bias", "73=1000", "--json")
    ended, ignored = (json.loads(run(*asked, *more).stdout) for more in ((), ("--ignore-eos",)))
    assert (ended["tokens"], ended["finish_reason"]) == ([73], "stop")
    assert (ignored["tokens"], ignored["finish_reason"]) == ([73] * 16, "length")


def test_logprobs_have_texts(run: Run, engine: Engine) -> None:
    found = json.loads(run(*ASKED, "--json", "--logprobs", "2").stdout)
    assert [one["token"] for one in found["logprobs"]] == found["tokens"]
    for one in found["logprobs"]:
        assert one["logprob"] == one["top"][0]["logprob"] >= one["top"][1]["logprob"]  # greedy
        assert one["top"][0]["text"] == one["text"] == engine.tokenizer.decode([one["token"]])


def test_samples(run: Run, engine: Engine) -> None:
    sampled = ("--temperature", "1", "--seed", "3", "--samples", "3")
    found = [json.loads(line) for line in run(*ASKED, *sampled, "--json").stdout.splitlines()]
    expected = engine.generate(ASKED[-4], raw=True, max_new_tokens=16, temperature=1.0, seed=3, samples=3)
    assert [told(one) for one in found] == [told(json.loads(json.dumps(asdict(one)))) for one in expected]
    assert [one["sample"] for one in found] == [0, 1, 2]
    shown = run(*ASKED, *sampled[:-2], "-n", "2")
    assert shown.stdout == f"{expected[0].text}\n\n{expected[1].text}\n"
    assert len(shown.stderr.splitlines()) == 2


def test_exceptions_are_listed_and_charged(run: Run) -> None:
    relaxed = (*ASKED, "--temperature", "2", *ASD, "--budget", "400")
    found = json.loads(run(*relaxed, "--json").stdout)
    assert found["exceptions"]
    assert found["budget_spent"] == pytest.approx(sum(one["regret"] for one in found["exceptions"]))
    assert found["budget_left"] == pytest.approx(400 - found["budget_spent"])
    assert all(found["tokens"][one["position"]] == one["chosen"] != one["preferred"] for one in found["exceptions"])
    stats = found["stats"]
    assert (stats["lossless"], stats["exact"], stats["reproducible"]) == (False, False, True)
    shown = run(*relaxed, "--show-exceptions")
    summary, *listed = shown.stderr.splitlines()
    assert f"not lossless: {len(listed)} exception" in summary
    assert summary.endswith(f"{found['budget_left']:.3f} left")
    for line, one in zip(listed, found["exceptions"], strict=True):
        assert line.startswith(f"  token {one['position']}: {one['chosen_text']!r} for {one['preferred_text']!r}")
    assert shown.stdout == found["text"] + "\n"  # no terminal, no colours
    strict = json.loads(run(*relaxed[:-1], "0", "--json").stdout)
    plain = json.loads(run(*ASKED, "--temperature", "2", "--json", "--drafter", "none").stdout)
    assert strict["tokens"] == plain["tokens"]
    assert (strict["exceptions"], strict["budget_left"], strict["stats"]["exact"]) == ([], 0.0, True)


def test_chat_takes_the_same_settings(run: Run, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("--max-new-tokens", "8", "--repetition-penalty", "1.6", "--logit-bias", "70=-inf", "--stop-id", "71")
    monkeypatch.setattr("sys.stdin", io.StringIO("the fox\n"))
    ran = run("chat", *TINY, *asked, *ASD, "--budget", "0", "--show-exceptions")
    [expected] = engine.generate(
        "the fox", max_new_tokens=8, repetition_penalty=1.6, logit_bias={70: float("-inf")}, stop_ids=[71]
    )
    assert (ran.returncode, ran.stdout) == (0, expected.text + "\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("the fox\n"))
    refused(run("chat", *TINY, "--stop-id", "5000"), "stop_ids has a token id outside 0..")


@pytest.mark.parametrize(("terminal", "no_color"), [(True, ""), (True, "1"), (False, "")])
def test_exceptions_are_coloured_in_a_terminal(
    terminal: bool, no_color: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = RelaxedToken(1, 5, 6, 0.5, " cat", " dog")
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    write([Chunk("a", 4), Chunk("", 5, exception=one), Chunk(" cat", 7), Chunk(".", 8)], mark=True)
    marked = "\x1b[35m\x1b[1m cat\x1b[0m" if terminal and not no_color else " cat"
    assert capsys.readouterr().out == f"a{marked}.\n"
    write([Chunk("a", 4, exception=one)])
    assert capsys.readouterr().out == "a\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--logit-bias", "5"], "--logit-bias 5: write ID=BIAS"),
        (["--logit-bias", "x=1"], "--logit-bias x=1: write ID=BIAS"),
        (["--logit-bias", "5=a"], "--logit-bias 5=a: write ID=BIAS"),
        (["--logit-bias", "5=nan"], "token 5 with bias nan"),
        (["--logit-bias", "5=inf"], "token 5 with bias inf"),
        (["--logit-bias", "5=1", "--logit-bias", "5=2"], "token 5 is given twice"),
        (["--logit-bias=-5=1"], "token -5 with bias 1.0; use a token id"),
        (["--logit-bias", "5000=1"], "logit_bias has a token id outside 0.."),
        (["--stop-id=-1"], "stop_ids: -1 is no token id"),
        (["--stop-id", "5000"], "stop_ids has a token id outside 0.."),
        (["--stop-id", "a"], "--stop-id"),
        (["--repetition-penalty", "0"], "repetition_penalty must be above 0"),
        (["--repetition-penalty", "nan"], "repetition_penalty must be a finite number"),
        (["--presence-penalty", "inf"], "presence_penalty must be a finite number"),
        (["--min-new-tokens=-1"], "min_new_tokens must be at least 0"),
        (["--min-new-tokens", "17"], "min_new_tokens 17 is above max_new_tokens 16"),
        (["--logprobs=-1", "--json"], "logprobs must be at least 0"),
        (["--logprobs", "1"], "--logprobs needs --json"),
        (["--samples", "0"], "--samples"),
        (["--budget", "nan"], "budget must be at least 0"),
        (["--budget=-1"], "budget must be at least 0"),
        (["--budget", "1"], "verifier replay has no budget"),
        (["--budget", "501", *ASD], "a budget of 501 is above the verifier's budget 500"),
        (["--show-exceptions", "--json"], "--show-exceptions is for the terminal"),
    ],
)
def test_bad_settings_are_one_clear_line(run: Run, arguments: list[str], told: str) -> None:
    refused(run(*ASKED, *arguments), told)
