"""Whole answers over HTTP with llama.cpp's own server (xllamacpp) and the real SmolLM2."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import betoken
from answer_worlds import plain_logits
from betoken.answers import answer, stream
from betoken.answers.judge import Judge, VerdictTokens
from betoken.answers.remote import log_odds, verdicts
from betoken.cli import main
from betoken.engine import Engine
from betoken.models.native.isa import isa
from betoken.remote import RemoteModel
from llama_server import serving

pytestmark = pytest.mark.skipif(isa() == "none", reason="this processor has no native kernels")
QUESTION = "Name three rivers, one in each line. Then say which is longest."
LENGTH = 40


@pytest.fixture(scope="module")
def url(smollm2_gguf: Path) -> Iterator[str]:
    with serving(smollm2_gguf) as address:
        yield address


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[RemoteModel]:
    model = RemoteModel.open(url)
    yield model
    model.close()


@pytest.fixture(scope="module")
def local(smollm2: Path) -> Engine:
    return betoken.load("smollm2-135m", drafter="suffix", dtype="float32", nodes=8)


def greedy(url: str, prompt: str) -> str:
    """What the server itself writes, asked without any code of ours."""
    body = json.dumps({"prompt": prompt, "max_tokens": LENGTH, "temperature": 0}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(json.loads(response.read())["choices"][0]["text"])


def test_the_prompt_is_the_models_own(server: RemoteModel, local: Engine) -> None:
    """Text and number of tokens: no second begin token."""
    prompt = local.tokenizer.template.apply([{"role": "user", "content": QUESTION}])
    assert server.owner == "llamacpp"
    assert server.ask(QUESTION) == prompt
    found = answer(QUESTION, method="target", target=server, max_new_tokens=3)
    assert found.prompt_tokens == len(local.encode(QUESTION))
    assert found.stats.target_tokens == 3 and found.finish_reason == "length"


def test_the_target_alone_writes_what_its_server_writes(server: RemoteModel, url: str) -> None:
    found = answer(QUESTION, method="target", target=server, max_new_tokens=LENGTH)
    assert found.text == greedy(url, str(server.ask(QUESTION)))


@pytest.mark.parametrize("layout", ["suffix", "prompt"])
def test_the_judge_reads_what_a_judge_here_reads(server: RemoteModel, local: Engine, layout: Any) -> None:
    """Log-odds of the same ids in the same weights, from other kernels: float32 here, Q4_1 times Q8 there."""
    judge = Judge(layout=layout)
    draft = "The Nile\nThe Amazon\n"
    before, suffix = judge.texts(QUESTION, local.tokenizer.template)
    found, cost = server.judge(before + draft + suffix)
    words = VerdictTokens.of(local.tokenizer, judge.correct, judge.incorrect)
    ids = [*judge.prompt(local.tokenizer, QUESTION).before, *local.tokenizer.encode(draft, add_special=False)]
    logits = plain_logits(local.target, [*ids, *judge.prompt(local.tokenizer, QUESTION).suffix])
    assert cost.prompt == len(ids) + len(judge.prompt(local.tokenizer, QUESTION).suffix)
    known = verdicts(server, judge)
    assert known == verdicts(replace(server, tokenizer=local.tokenizer), judge)
    assert log_odds(found, judge, known) == pytest.approx(words.log_odds(logits), abs=0.35)


@pytest.mark.parametrize("far", ["both", "target", "draft"])
def test_draft_judge_keep_and_go_on(server: RemoteModel, local: Engine, far: str) -> None:
    """Every prefix is valid and the whole is not: what is kept is a prefix of the draft, and the target goes on."""
    target, draft = local if far == "draft" else server, local if far == "target" else server
    own = {"boundaries": "line", "threshold": 1.0, "prefix_threshold": 0.0, "most": 3, "rule": "last-pass"}
    shown = stream(QUESTION, target=target, draft=draft, method_settings=own, max_new_tokens=LENGTH)
    seen = list(shown)
    drafted = "".join(event.text for event in seen if event.kind == "draft")
    [kept] = [event.text for event in seen if event.kind == "kept"]
    stats = shown.result.stats
    assert drafted.startswith(kept)
    assert "".join(event.text for event in seen if event.kind in ("kept", "text")) == shown.result.text
    valid = [end for end, confidence in stats.prefix_confidences if confidence > 0.0]
    assert stats.kept_tokens == max(valid, default=0)
    assert stats.target_tokens > 0 and not stats.accepted_whole
    if far != "draft":
        assert stats.judge_forwards == 1 + len(stats.prefix_confidences)
        # The server's prefix cache has the question: prefixes are not read from their beginning.
        assert 0 < stats.judge_nodes < stats.judge_forwards * (shown.result.prompt_tokens + LENGTH)


def test_a_kept_prefix_is_continued_as_the_server_itself_would(server: RemoteModel, url: str) -> None:
    whole = greedy(url, str(server.ask(QUESTION)))
    lines = whole.splitlines(keepends=True)
    reply = server.write(server.ask(QUESTION, answer=lines[0]), betoken.GenerationSettings(), LENGTH)
    text = "".join(reply)
    assert text == greedy(url, str(server.ask(QUESTION)) + lines[0])
    assert reply.finish in ("stop", "length")


def test_the_chat_endpoint_serves_where_no_template_is_known(server: RemoteModel, url: str) -> None:
    chat = replace(server, template=None)
    found = answer(QUESTION, method="target", target=chat, max_new_tokens=LENGTH)
    assert found.text == greedy(url, str(server.ask(QUESTION))).strip()
    own = {"boundaries": "line", "threshold": 1.0, "prefix_threshold": 0.0, "rule": "last-pass", "most": 2}
    parsed = answer(QUESTION, target=chat, draft=server, method_settings=own, max_new_tokens=LENGTH)
    assert parsed.stats.judge_forwards >= 1


def test_the_command_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    two = ("--model", url, "--draft-model", f"{url}/v1")
    with pytest.raises(SystemExit) as ended:
        main(["answer", *two, "--prompt", QUESTION, "--max-new-tokens", "20", "--set", "answer.threshold=0", "--json"])
    told = capsys.readouterr()
    assert (ended.value.code, told.err) == (0, "")
    found = json.loads(told.out)
    assert found["text"] and found["tokens"] == []
    assert found["stats"]["model"].startswith(f"{url}/v1#") and found["stats"]["dtype"] == "server"
