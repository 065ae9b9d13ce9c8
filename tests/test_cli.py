"""The command line as a user meets it: real processes, their output, their exit codes."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from betoken.cli import main
from betoken.commands.methods import field_docs
from betoken.commands.options import parse_set
from betoken.commands.prompts import read_prompt
from betoken.drafters import DRAFTERS
from betoken.errors import InputError
from betoken.registry import settings_of
from betoken.verifiers import VERIFIERS
from cli_home import BETOKEN, TINY, betoken, environment, make_home, refused


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `make_home`."""
    return make_home(tmp_path_factory.mktemp("cli"))


def test_help_is_quick_and_imports_nothing_heavy(home: Path) -> None:
    code = (
        "import sys, betoken.cli as c\n"
        "try: c.main(['generate', '--help'])\n"
        "finally: print([m for m in ('torch', 'transformers', 'numba', 'tokenizers') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment(home), capture_output=True, text=True, check=True
    )
    assert "Examples" in ran.stdout
    assert ran.stdout.endswith("[]\n")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", ["train ptp", "train collect", "calibrate parse"])
def test_help_fills_the_width_of_the_terminal(home: Path, command: str, width: int) -> None:
    """A line of a paragraph ends only where the next word does not fit."""
    told = environment(home) | {"COLUMNS": str(width)}
    ran = subprocess.run(
        [*BETOKEN, *command.split(), "--help"], env=told, capture_output=True, text=True, check=True, timeout=60
    )
    lines = [line.strip() if line[:2] != "  " else "" for line in ran.stdout.split("─")[0].splitlines()]
    for line, following in pairwise(lines):
        assert not line or not following or len(line) + 1 + len(following.split()[0]) > width - 2, line


def test_the_version_is_the_packages(home: Path) -> None:
    ran = betoken(home, "--version")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"betoken {metadata.version('betoken')}\n", "")


def test_without_arguments_it_helps(home: Path) -> None:
    ran = betoken(home)
    assert ran.returncode == 0
    assert "generate" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["generate"], "no prompt"),
        (["generate", "--prompt", "a", "--prompt-file", "good.txt"], "several prompts"),
        (["generate", "--prompt", ""], "the prompt is empty"),
        (["generate", "--prompt-file", "empty.txt"], "the prompt is empty"),
        (["generate", "-"], "the prompt is empty"),
        (["generate", "hello"], "unexpected argument 'hello'"),
        (["generate", "--prompt-file", "latin.txt"], "latin.txt: not UTF-8 text (byte 3)"),
        (["generate", "--prompt-file", "nowhere.txt"], "nowhere.txt: no such file"),
        (["generate", "--prompt-file", "tiny"], "tiny: is a folder, not a file"),
        (["generate", "--messages", "bad.json"], "bad.json: not JSON"),
        (["generate", "--messages", "shape.json"], "shape.json: must be a list"),
        (["generate", "--messages", "talk.json", "--raw"], "--raw takes a plain text"),
        (["generate", "--prompt", "a", "--temperature", "nan"], "temperature must be a finite number"),
        (["generate", "--prompt", "a", "--temperature", "hot"], "--temperature"),
        (["generate", "--prompt", "a", "--top-p", "1.5"], "top_p must be above 0 and at most 1"),
        (["generate", "--prompt", "a", "--max-new-tokens", "0"], "max_new_tokens must be at least 1"),
        (["generate", "--prompt", "a", "--stop", ""], "stop: an empty stop text"),
        (["generate", "--prompt", "a", "--nodes", "many"], "--nodes must be auto or a whole number"),
        (["generate", "--prompt", "a", "--set", "drafter"], "--set drafter: write drafter.KEY=VALUE"),
        (["generate", "--prompt", "a", "--set", "model.x=1"], "--set model.x=1: write drafter.KEY=VALUE"),
        (["generate", "--prompt", "a", "--logprobs", "3"], "--logprobs"),
        (["generate", "--prompt", "a", "--max-new-token", "3"], "--max-new-token"),
        (["generate", "--prompt"], "--prompt"),
        (["generat"], "generat"),
        (["models", "rm", "nothing-here"], "nothing-here"),
        (["pull", "smollm3"], "unknown model 'smollm3'"),
    ],
)
def test_bad_input_is_one_clear_line(home: Path, arguments: list[str], told: str) -> None:
    refused(betoken(home, *arguments), told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "smollm2-135"], "unknown model 'smollm2-135': did you mean smollm2-135m?"),
        (["--model", "nowhere/here/x"], "no such file or folder"),
        (["--model", "good.txt"], "a model is a folder or a .gguf file"),
        (["--drafter", "sufix"], "unknown drafter 'sufix' (did you mean 'suffix'?)"),
        (["--verifier", "greedi"], "unknown verifier 'greedi' (did you mean 'greedy'?)"),
        (["--set", "drafter.max_drafft=3"], "has no setting 'max_drafft' (did you mean 'max_draft'?)"),
        (["--set", "drafter.max_draft=three"], "drafter.max_draft must be a whole number, not 'three'"),
        (["--set", "verifier.rule=dice"], "verifier.rule must be inverse-cdf | gumbel, not 'dice'"),
        (["--set", "drafter.min_ratio=nan"], "drafter.min_ratio"),
        (["--nodes", "0"], "nodes must be auto or a whole number, at least 1"),
        (["--drafter", "draft-model"], "needs a draft model"),
        (["--drafter", "suffix", "--draft-model", "tiny"], "does not use a draft model"),
        (["--dtype", "int3"], "unknown dtype 'int3'"),
        (["--device", "tpu"], "unknown device 'tpu'"),
    ],
)
def test_what_cannot_be_loaded_is_one_clear_line(
    home: Path, arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has imported torch already."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("BETOKEN_CACHE", str(home / "cache"))
    asked = ["generate", "--prompt", "a", "--model", "tiny", *arguments]
    with pytest.raises(SystemExit) as exit_:
        main(asked)
    out, err = capsys.readouterr()
    refused(subprocess.CompletedProcess(asked, int(str(exit_.value.code)), out, err), told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--drafter", "sufix", "--prompt", "a"], "unknown drafter 'sufix' (did you mean 'suffix'?)"),
        (["--verifier", "greedy", "--temperature", "1", "--prompt", "a"], "use replay"),
        (["--prompt-file", "long.txt"], "the model's context is 8192: shorten it"),
    ],
)
def test_what_cannot_be_decoded_is_one_clear_line(home: Path, arguments: list[str], told: str) -> None:
    refused(betoken(home, "generate", *TINY, *arguments), told)


def test_generate_writes_text_and_one_line_of_statistics(home: Path) -> None:
    ran = betoken(home, "generate", *TINY, "--prompt", "the fox", "--max-new-tokens", "24")
    assert ran.returncode == 0, ran.stderr
    [stats] = ran.stderr.splitlines()
    assert stats.startswith("24 tokens, ")
    assert "suffix + greedy" in stats
    asked = ("generate", *TINY, "--max-new-tokens", "24", "--json")
    found = [json.loads(betoken(home, *asked, "--prompt", "the fox", "--drafter", name).stdout) for name in DRAFTED]
    for one in found:
        assert one["text"] + "\n" == ran.stdout
        assert one["tokens"] == found[0]["tokens"]
        assert len(one["tokens"]) == one["stats"]["committed"] == 24
        assert one["finish_reason"] == "length"
    assert [one["stats"]["drafter"] for one in found] == list(DRAFTED)
    assert found[0]["stats"]["acceptance_length"] == 1.0


DRAFTED = ("none", "prompt-lookup", "suffix")


def test_standard_input_is_a_prompt_too(home: Path) -> None:
    asked = ("generate", *TINY, "--max-new-tokens", "4", "--json", "--drafter", "none")
    raw = betoken(home, *asked, "--raw", "-", stdin="<user>the fox\n")
    [plain, rest] = (json.loads(ran.stdout) for ran in (betoken(home, *asked, "--prompt", "the fox"), raw))
    assert (plain["tokens"], plain["prompt_tokens"]) == (rest["tokens"], rest["prompt_tokens"])


def test_every_prompt_source_is_the_same_prompt(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the fox\n")))
    assert read_prompt(None, "the fox", None, None, system=None, raw=False) == "the fox"
    assert read_prompt(None, None, home / "good.txt", None, system=None, raw=False) == "the fox"
    assert read_prompt("-", None, None, None, system=None, raw=False) == "the fox"
    said = {"role": "user", "content": "the fox"}
    assert read_prompt(None, None, None, home / "talk.json", system=None, raw=False) == [said]
    brief = {"role": "system", "content": "be brief"}
    assert read_prompt(None, "the fox", None, None, system="be brief", raw=False) == [brief, said]
    assert read_prompt(None, None, None, home / "talk.json", system="be brief", raw=False) == [brief, said]


@pytest.fixture
def streaming(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the middle of a long answer, whose first characters have come."""
    arguments = [*TINY, "--prompt", "the fox", "--max-new-tokens", "8000", "--temperature", "2"]
    # A test run in the background ignores Ctrl-C, and so would what it starts.
    hear = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", hear, *BETOKEN, "generate", *arguments]
    with subprocess.Popen(command, cwd=home, env=environment(home), stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        assert process.stdout.read(8)
        yield process
        process.kill()


def test_ctrl_c_in_a_stream_keeps_what_there_was(streaming: subprocess.Popen[bytes]) -> None:
    streaming.send_signal(signal.SIGINT)
    out, err = streaming.communicate(timeout=60)
    assert streaming.returncode == 130
    assert out.endswith(b"\n")
    assert err == b"betoken: interrupted\n"


def test_a_reader_that_leaves_is_no_error(streaming: subprocess.Popen[bytes]) -> None:
    assert streaming.stdout is not None and streaming.stderr is not None
    streaming.stdout.close()
    assert streaming.stderr.read() == b""
    assert streaming.wait(timeout=60) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(home: Path) -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [*BETOKEN, "verifiers", "--json"], env=environment(home), stdout=full, stderr=-1, text=True, check=False
        )
    assert (ran.returncode, ran.stderr) == (2, "betoken: No space left on device\n")


def test_chat_answers_each_line_and_remembers(home: Path) -> None:
    ran = betoken(
        home, "chat", *TINY, "--max-new-tokens", "8", stdin="the fox\n\nsays it\n/reset\nthe fox\n/exit\nno\n"
    )
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stderr.splitlines()) == 3
    alone = betoken(home, "generate", *TINY, "--max-new-tokens", "8", "--prompt", "the fox")
    assert ran.stdout.startswith(alone.stdout)
    assert ran.stdout.endswith(alone.stdout)


@pytest.mark.parametrize("debug", [False, True])
def test_a_fault_of_ours_asks_for_a_report(home: Path, tmp_path: Path, debug: bool) -> None:
    (tmp_path / "broken.py").write_text(
        "def register(app):\n    app.command()(broken)\ndef broken():\n    raise ZeroDivisionError('oh')\n"
    )
    code = f"import betoken.cli as c; c.COMMANDS += ('broken',); c.main({['--debug'] * debug + ['broken']})"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(home), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ("Traceback" in ran.stderr) == debug
    assert debug or "a fault of ours: ZeroDivisionError: oh - please report it" in ran.stderr


@pytest.mark.parametrize(("command", "table"), [("drafters", DRAFTERS), ("verifiers", VERIFIERS)])
def test_methods_are_listed_with_their_settings(home: Path, command: str, table: dict[str, type]) -> None:
    found: list[dict[str, Any]] = json.loads(betoken(home, command, "--json").stdout)
    assert [one["name"] for one in found] == list(table)
    for one in found:
        assert one["about"]
        assert [setting["name"] for setting in one["settings"]] == list(settings_of(table[one["name"]]))
    shown = betoken(home, command).stdout
    for one in found:
        assert one["name"] in shown
        assert all(f"{setting['name']}=" in shown for setting in one["settings"])


def test_settings_are_documented_from_the_source() -> None:
    assert field_docs(VERIFIERS["replay"])["rule"].startswith("How a token is picked")


def test_models_are_listed(home: Path) -> None:
    found = json.loads(betoken(home, "models", "--json").stdout)
    assert {"name", "description", "path", "bytes"} == set(found[0])
    assert [one["path"] for one in found] == [None] * len(found)
    assert "smollm2-135m" in betoken(home, "models", "list").stdout


def test_set_is_parsed_and_refused() -> None:
    assert parse_set(["drafter.a=1", "verifier.b=x=y"]) == {"drafter": {"a": "1"}, "verifier": {"b": "x=y"}}
    for text in ("a=1", "drafter.=1", "drafter.a", "drafters.a=1"):
        with pytest.raises(InputError, match="--set"):
            parse_set([text])
    with pytest.raises(InputError, match="twice"):
        parse_set(["drafter.a=1", "drafter.a=2"])


def test_raw_text_is_kept_to_the_last_character(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("x = 1\n")
    assert read_prompt(None, None, tmp_path / "code.py", None, system=None, raw=True) == "x = 1\n"
    assert read_prompt(None, None, tmp_path / "code.py", None, system=None, raw=False) == "x = 1"
