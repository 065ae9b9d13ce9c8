"""The default model from end to end: the same text with every drafter, chunk by chunk, and from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

import betoken
from betoken.engine import Engine

Nodes = int | Literal["auto"]
CODE = "Repeat this code:\n\ndef area(width, height):\n    return width * height\n"


@pytest.fixture(scope="module")
def plain(smollm2: Path) -> Engine:
    return betoken.load("smollm2-135m", drafter="none")


@pytest.mark.parametrize(("drafter", "nodes"), [("prompt-lookup", 8), ("suffix", 8), ("suffix", "auto")])
def test_speculation_writes_what_plain_decoding_writes(
    plain: Engine, drafter: str, nodes: int | Literal["auto"]
) -> None:
    fast = betoken.load("smollm2-135m", drafter=drafter, nodes=nodes)
    for temperature in (0.0, 0.8):
        asked = {"max_new_tokens": 32, "temperature": temperature, "seed": 5}
        expected = plain.generate([CODE, "Write one line about rain. 🌧"], **asked)  # type: ignore[arg-type]
        found = fast.generate([CODE, "Write one line about rain. 🌧"], **asked)  # type: ignore[arg-type]
        for one, other in zip(expected, found, strict=True):
            assert (one.text, one.tokens, one.finish_reason) == (other.text, other.tokens, other.finish_reason)
            assert one.stats.acceptance_length == 1.0
            assert other.stats.exact and other.stats.reproducible
            assert other.text == fast.tokenizer.decode(other.tokens)
    code = fast.generate(CODE, max_new_tokens=48)[0].stats
    assert nodes == "auto" or code.acceptance_length > 1.3


def test_speculation_in_int4_writes_what_plain_int4_decoding_writes(smollm2: Path) -> None:
    plain = betoken.load("smollm2-135m", drafter="none", dtype="int4")
    fast = betoken.load("smollm2-135m", drafter="suffix", dtype="int4", nodes=8)
    for temperature in (0.0, 0.8):
        found = [
            engine.generate(CODE, max_new_tokens=40, temperature=temperature, seed=5)[0] for engine in (plain, fast)
        ]
        assert found[0].tokens == found[1].tokens
        assert all(one.stats.exact and one.stats.dtype == "int4" for one in found)
        assert temperature or found[1].stats.acceptance_length > 1.2


def test_chunks_and_stop_strings(plain: Engine) -> None:
    [whole] = plain.generate(CODE, max_new_tokens=48)
    stop = whole.text[10:14]
    stream = plain.stream(CODE, max_new_tokens=48, stop=stop)
    text = "".join(str(chunk) for chunk in stream)
    assert text == stream.result.text == whole.text.split(stop)[0]
    assert stream.result.finish_reason == "stop"
    kept = stream.result.tokens
    assert kept == whole.tokens[: len(kept)]
    assert stop in plain.tokenizer.decode(kept)
    assert stop not in plain.tokenizer.decode(kept[:-1])


def test_a_conversation_says_what_fresh_prompts_say(plain: Engine) -> None:
    chat = betoken.load("smollm2-135m").chat()
    for text in ("Name a river.", "And a mountain?"):
        answer = chat.send(text, max_new_tokens=20)
        [fresh] = plain.generate(chat.messages[:-1], max_new_tokens=20)  # type: ignore[arg-type]
        assert answer.tokens == fresh.tokens
    chat.close()


def test_the_command_line_gives_the_engine_s_answer(plain: Engine) -> None:
    asked = ["generate", "--prompt", CODE, "--max-new-tokens", "24", "--json"]
    ran = subprocess.run([sys.executable, "-m", "betoken.cli", *asked], capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    [expected] = plain.generate(CODE, max_new_tokens=24)
    assert found["text"] == expected.text
    assert found["tokens"] == expected.tokens
    assert set(found["stats"]) == set(replace(expected.stats).__dataclass_fields__)
