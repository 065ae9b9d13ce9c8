"""Suites: the six formats, seeded draws, and one clear line for whatever is wrong with a file."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench_toys import write_suite
from betoken.bench.formats import FORMATS
from betoken.bench.suites import draw, find_suite, read_suite, stratified
from betoken.errors import InputError

ROWS: dict[str, dict[str, Any]] = {
    "spec_bench": {"question_id": 7, "category": "qa", "turns": ["Who?", "Why?"], "reference": ["He."]},
    "gsm8k": {"question": "What is 2 + 3?", "answer": "2 + 3 = 5\n#### 5"},
    "math500": {
        "problem": "Find $x$.",
        "solution": "It is 1.",
        "answer": "1",
        "subject": "Algebra",
        "level": 2,
        "unique_id": "t/1",
    },
    "humaneval": {
        "task_id": "Own/1",
        "prompt": "def double(x):\n",
        "entry_point": "double",
        "canonical_solution": "    return 2 * x\n",
        "test": "assert double(2) == 4",
    },
    "mbpp": {
        "task_id": 12,
        "text": "Write a function that adds.",
        "code": "add = sum",
        "test_list": ["assert add([1, 2]) == 3"],
        "test_setup_code": "",
        "challenge_test_list": [],
    },
    "mmlu": {"subject": "botany", "question": "What is moss?", "choices": ["A plant", "b", "c", "d"], "answer": "A"},
}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("name", "own", "category", "said", "raw"),
    [
        ("spec_bench", "own/7", "qa", "Who?", "Who?"),
        ("gsm8k", "own/1", "gsm8k", "What is 2 + 3?", "Question: What is 2 + 3?\nAnswer:"),
        ("math500", "own/1", "math500", "Find $x$.", "Problem: Find $x$.\nSolution:"),
        ("humaneval", "own/Own/1", "humaneval", "```python\ndef double(x):\n```", "def double(x):\n"),
        ("mbpp", "own/12", "mbpp", "assert add([1, 2]) == 3", '"""\nWrite a function that adds.'),
        ("mmlu", "own/1", "mmlu", "A. A plant\nB. b\nC. c\nD. d", "What is moss?\nA. A plant"),
    ],
)
def test_each_format_is_recognised_by_its_fields(
    tmp_path: Path, name: str, own: str, category: str, said: str, raw: str
) -> None:
    (question,) = read_suite(write(tmp_path / "own.jsonl", ROWS[name]))
    assert (question.id, question.suite, question.category) == (own, "own", category)
    (message,) = question.messages
    assert message["role"] == "user" and said in message["content"]
    assert question.raw.startswith(raw)


def test_what_must_not_be_told_to_the_model_is_not_in_the_prompt(tmp_path: Path) -> None:
    secrets = {"gsm8k": "= 5", "math500": "It is 1", "humaneval": "return 2", "mbpp": "= sum", "spec_bench": "Why?"}
    for name, secret in secrets.items():
        (question,) = read_suite(write(tmp_path / "own.jsonl", ROWS[name]))
        assert secret not in question.messages[0]["content"] + question.raw


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (["{not json"], "line 1: no valid JSON"),
        ([ROWS["gsm8k"], '{"question": "x", '], "line 2: no valid JSON"),
        (["[1, 2]"], "line 1: a row must be a JSON object"),
        ([{"colour": "red"}], "line 1: the fields colour fit no known format"),
        ([{}], r"line 1: the fields \(none\) fit no known format"),
        ([ROWS["gsm8k"] | {"hint": "x"}], "line 1: unknown field 'hint'; gsm8k has: answer, question"),
        ([ROWS["gsm8k"], ROWS["mmlu"]], "line 2: unknown field 'choices'; gsm8k"),
        ([ROWS["gsm8k"], {"question": "x"}], "line 2: field 'answer' is missing"),
        ([ROWS["gsm8k"] | {"question": 3}], "line 1: question must be of type str, not 3"),
        ([ROWS["mbpp"] | {"task_id": True}], "line 1: task_id must be of type int, not True"),
        ([ROWS["spec_bench"] | {"turns": []}], "line 1: turns must be a list of at least one text"),
        ([ROWS["spec_bench"] | {"turns": [1]}], "line 1: turns must be a list of at least one text"),
        ([ROWS["mmlu"] | {"choices": ["a"]}], "line 1: choices must be 4 texts, not 1"),
        ([ROWS["mbpp"], ROWS["mbpp"]], "line 2: question 12 stands here a second time"),
        ([], "no question in this file"),
        (["", "  "], "no question in this file"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, rows: list[object], told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        read_suite(write(tmp_path / "own.jsonl", *rows))
    assert str(tmp_path / "own.jsonl") in str(caught.value) and "\n" not in str(caught.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_suite(tmp_path / "none.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        read_suite(tmp_path / "binary.jsonl")


def test_a_name_is_looked_up_and_a_path_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_suite(tmp_path)
    monkeypatch.delenv("BETOKEN_DATA", raising=False)
    assert find_suite(str(path)) == path
    assert find_suite("toy", tmp_path) == path
    with pytest.raises(InputError, match=r"--data or \$BETOKEN_DATA"):
        find_suite("toy")
    monkeypatch.setenv("BETOKEN_DATA", str(tmp_path))
    assert find_suite("toy") == path
    with pytest.raises(InputError, match=f"is not in {tmp_path}; it has: toy"):
        find_suite("other")
    with pytest.raises(InputError, match="there is no such file"):
        find_suite("toy.jsonl")


def test_the_stratified_sample_is_seeded_and_a_category_does_not_depend_on_others(tmp_path: Path) -> None:
    questions = read_suite(write_suite(tmp_path, categories={"a": 30, "b": 4, "c": 30}))
    drawn = stratified(questions, 10, seed=5)
    assert Counter(question.category for question in drawn) == {"a": 10, "b": 4, "c": 10}
    assert drawn == stratified(questions, 10, seed=5) != stratified(questions, 10, seed=6)
    alone = stratified([question for question in questions if question.category == "c"], 10, seed=5)
    assert alone == [question for question in drawn if question.category == "c"]
    assert stratified(questions, 3, seed=5)[:3] == drawn[:3]
    with pytest.raises(InputError, match="at least 1"):
        stratified(questions, 0, seed=5)


def test_a_draw_takes_evenly_from_all_files(tmp_path: Path) -> None:
    suites = [read_suite(write_suite(tmp_path, name, {"x": count})) for name, count in [("p", 50), ("q", 3), ("r", 50)]]
    drawn = draw(suites, 23, seed=1)
    assert Counter(question.suite for question in drawn) == {"p": 10, "q": 3, "r": 10}
    assert len({question.id for question in drawn}) == 23
    assert drawn == draw(suites, 23, seed=1) != draw(suites, 23, seed=2)
    assert len({question.suite for question in drawn[:8]}) > 1, "suites are mixed"
    assert len(draw(suites, 103, seed=1)) == 103
    for rows in (0, 104):
        with pytest.raises(InputError, match="choose 1 to 103"):
            draw(suites, rows, seed=1)


def test_every_seed_can_draw_every_question(tmp_path: Path) -> None:
    questions = read_suite(write_suite(tmp_path, categories={"a": 8}))
    counts = Counter(question.id for seed in range(400) for question in stratified(questions, 2, seed))
    assert len(counts) == 8
    assert all(60 < count < 140 for count in counts.values()), counts  # 100 each, standard deviation 8.7


@pytest.mark.skipif(not os.environ.get("BETOKEN_DATA"), reason="the public data sets are not part of the project")
@pytest.mark.parametrize("format_", FORMATS, ids=lambda one: one.name)
def test_the_public_files_are_read_whole(format_: Any) -> None:
    path = find_suite(format_.name)
    questions = read_suite(path)
    assert len(questions) == sum(1 for line in path.read_text().splitlines() if line.strip())
    assert all(question.messages[0]["content"] and question.raw for question in questions)
