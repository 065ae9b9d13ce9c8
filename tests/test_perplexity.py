"""The price of int8: perplexity against transformers, texts from files, one clear line for whatever is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import tiny_models
from bench_toys import ToyCodec, write_suite
from betoken.bench.subject import ModelSpec, Subject
from betoken.bench.suites import suite_text
from betoken.commands import audit as command
from betoken.errors import InputError
from betoken.models.native.image import in_memory
from betoken.models.native.isa import isa
from betoken.models.native.model import pack_model
from betoken.models.native.target import NativeTarget
from betoken.tuning.perplexity import price_of_rounding, score_text
from test_suites import ROWS, write
from tiny_models import VOCAB, reference_logits

native_only = pytest.mark.skipif(isa() == "none", reason="this processor has no native kernels")
pair = cache(tiny_models.pair)
WORDS = "def area(width, height):\n    return width * height\n\n" * 14


def load(spec: ModelSpec) -> Subject:
    """The tiny llama in the dtype that is asked for."""
    both = pair("llama")
    tensors, config = both.reference.state_dict(), both.decoder.config
    assert spec.dtype in ("int8", "int4", "float32")
    arrays = in_memory(pack_model(tensors, config, spec.dtype))
    embeddings = tensors["model.embed_tokens.weight"].numpy()
    target = NativeTarget(config, arrays, embeddings, name="tiny", dtype=spec.dtype, threads=1)
    return Subject(target, ToyCodec())


def reference(ids: list[int], window: int) -> tuple[float, list[int]]:
    """Perplexity and greedy choices by transformers; windows do not see each other."""
    losses: list[torch.Tensor] = []
    choices: list[int] = []
    for begin in range(0, len(ids) // window * window or 1, window):
        part = ids[begin : begin + window]
        logits = torch.from_numpy(reference_logits(pair("llama").reference, part))[:-1]
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(part[1:]), reduction="none"))
        choices += logits.argmax(-1).tolist()
    return float(torch.cat(losses).mean().exp()), choices


@native_only
@pytest.mark.parametrize(("length", "window"), [(2, 512), (100, 512), (100, 30), (200, 200), (200, 199)])
def test_perplexity_is_that_of_transformers(length: int, window: int) -> None:
    ids = np.random.default_rng(length).integers(VOCAB, size=length).tolist()
    target = load(ModelSpec("tiny", dtype="float32")).target
    counted: list[int] = []
    score = score_text(target, ids, window, counted.append)
    expected, choices = reference(ids, window)
    assert score.perplexity == pytest.approx(expected, rel=1e-4)
    assert score.argmax.tolist() == choices
    assert sum(counted) == score.tokens == len(choices)


@native_only
def test_both_dtypes_are_compared_on_the_same_tokens(tmp_path: Path) -> None:
    code, suite = tmp_path / "own.py", write_suite(tmp_path)
    code.write_text(WORDS)
    told: list[tuple[int, int, str]] = []
    first, second = price_of_rounding(ModelSpec("tiny"), [code, suite], load, 200, lambda *all: told.append(all))
    ids = ToyCodec().encode(WORDS)[:200]
    full, choices = reference(ids, 200)
    int8 = score_text(load(ModelSpec("tiny", dtype="int8")).target, ids, 200)
    assert (first.text, second.text, first.tokens) == (str(code), str(suite), 199)
    assert first.float32 == pytest.approx(full, rel=1e-4)
    assert first.rounded == pytest.approx(int8.perplexity) and first.rounded != first.float32
    assert first.increase == pytest.approx(100 * (int8.perplexity / full - 1), abs=0.05)
    assert first.agreement == pytest.approx(np.mean(int8.argmax == choices)) and 0.5 < first.agreement < 1
    assert second.float32 == pytest.approx(reference(ToyCodec().encode(suite_text(suite))[:200], 200)[0], rel=1e-4)
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[-1] == (4 * 199, 4 * 199, "toy.jsonl, float32") and told[0][2] == "own.py, int8"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("spec_bench", "Who?\nWhy?\nHe."),
        ("gsm8k", "What is 2 + 3?\n2 + 3 = 5\n#### 5"),
        ("math500", "Find $x$.\nIt is 1."),
        ("humaneval", "def double(x):\n\n    return 2 * x\n"),
        ("mbpp", "Write a function that adds.\nadd = sum"),
        ("mmlu", "What is moss?\nA plant\nb\nc\nd\nA"),
    ],
)
def test_a_suite_as_text_is_its_questions_and_answers(tmp_path: Path, name: str, text: str) -> None:
    changed = {"question_id": 8, "task_id": 13 if name == "mbpp" else "Own/2"}
    again = ROWS[name] | {key: value for key, value in changed.items() if key in ROWS[name]}
    assert suite_text(write(tmp_path / "own.jsonl", ROWS[name], again)) == f"{text}\n\n{text}"


def test_an_answer_that_is_missing_is_left_out(tmp_path: Path) -> None:
    row = {key: value for key, value in ROWS["spec_bench"].items() if key != "reference"}
    assert suite_text(write(tmp_path / "own.jsonl", row)) == "Who?\nWhy?"


@pytest.mark.parametrize(
    ("name", "content", "tokens", "told"),
    [
        ("gone.txt", None, 9, "gone.txt: cannot be read"),
        ("latin.txt", "caf\xe9".encode("latin-1"), 9, "latin.txt: not UTF-8 text"),
        ("empty.txt", b"", 9, "fewer than 2 tokens"),
        ("one.txt", b"a", 9, "fewer than 2 tokens"),
        ("rows.jsonl", b"{}\n", 9, "rows.jsonl, line 1: "),
        ("none.jsonl", b"", 9, "no question in this file"),
        ("good.txt", b"good", 1, "tokens must be at least 2"),
    ],
)
def test_texts_that_cannot_be_scored_are_refused(
    tmp_path: Path, name: str, content: bytes | None, tokens: int, told: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    subject = Subject(pair("llama").decoder, ToyCodec())
    with pytest.raises(InputError, match=told):
        list(price_of_rounding(ModelSpec("tiny"), [path], lambda spec: subject, tokens))


def invoke(monkeypatch: pytest.MonkeyPatch, loader: Any, *arguments: object) -> Any:
    monkeypatch.setattr("betoken.bench.subject.load_subject", loader)
    app = typer.Typer()
    command.register(app)
    app.callback()(lambda: None)
    return CliRunner().invoke(app, ["audit", "perplexity", *map(str, arguments)])


@native_only
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "own.py"
    text.write_text(WORDS)
    seen: list[ModelSpec] = []

    def loader(spec: ModelSpec) -> Subject:
        seen.append(spec)
        return load(spec)

    asked = ("--model", "here", "--text", text, "--text", write_suite(tmp_path), "--tokens", 50, "--threads", 1)
    done = invoke(monkeypatch, loader, *asked)
    assert done.exit_code == 0 and done.output.count("% of 49 tokens") == 2, done.output
    assert seen == [replace(ModelSpec("here", threads=1), dtype=dtype) for dtype in ("int8", "float32")]
    told = invoke(monkeypatch, load, *asked, "--json")
    rows = [json.loads(line) for line in told.stdout.splitlines()]
    assert [set(row) for row in rows] == [{"text", "tokens", "float32", "int8", "agreement", "increase"}] * 2
    assert f"({rows[0]['increase']:+.2f} %)" in done.output
    missing = invoke(monkeypatch, load, "--text", tmp_path / "gone.txt")
    assert isinstance(missing.exception, InputError) and "gone.txt: cannot be read" in str(missing.exception)


@native_only
def test_int4_is_compared_with_float32_too(tmp_path: Path) -> None:
    code = tmp_path / "own.py"
    code.write_text(WORDS)
    told: list[tuple[int, int, str]] = []
    (price,) = price_of_rounding(ModelSpec("tiny"), [code], load, 100, lambda *all: told.append(all), "int4")
    alone = score_text(load(ModelSpec("tiny", dtype="int4")).target, ToyCodec().encode(WORDS)[:100], 100)
    assert (price.dtype, price.rounded) == ("int4", pytest.approx(alone.perplexity))
    assert set(price.describe()) == {"text", "tokens", "float32", "int4", "agreement", "increase"}
    assert told[0][2] == "own.py, int4"
    with pytest.raises(InputError, match="dtype must be int8 or int4"):
        list(price_of_rounding(ModelSpec("tiny"), [code], load, 100, dtype="bfloat16"))


@native_only
def test_the_real_smollm2_loses_little(smollm2: Path, tmp_path: Path) -> None:
    from betoken.bench.subject import load_subject

    text = tmp_path / "own.txt"
    text.write_text(Path(command.__file__).read_text(encoding="utf-8"))
    (price,) = price_of_rounding(ModelSpec("smollm2-135m"), [text], load_subject, 300)
    assert price.tokens == 299
    assert 2 < price.float32 < 200
    assert abs(price.increase) < 8 and price.agreement > 0.8
