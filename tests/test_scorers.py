"""Scorers on answers that are known to be right or wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from betoken.bench.scorers import SCORERS, choose_letter, final_letter, final_number, letter_ids
from betoken.bench.scorers.maths import MathAnswer
from betoken.errors import InputError

ADD = {
    "prompt": 'from typing import List\n\n\ndef total(xs: List[int]) -> int:\n    """ Sum of the numbers.\n    """\n',
    "entry_point": "total",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n",
}
SQUARE = {"text": "Write a function to square.", "test_list": ["assert square(3) == 9", "assert square(-2) == 4"]}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("6 * 7 = 42\n#### 42", "42"),
        ("#### Step 1: add 3\nwe get 9\n#### $1,234.50", "1234.50"),
        ("#### **18**", "18"),
        ("#### 42\nAnd 7 more words.", "42"),
        ("So it is \\boxed{1{,}200} dollars, not 3.", "1200"),
        ("\\boxed{\\text{\\$}75\\%} of 80", "75"),
        ("#### \\boxed{12}", "12"),
        ("The answer is $18. She has 3 left.", "18"),
        ("The final answer is: 6 * 3 = 18 eggs", "18"),
        ("**Answer:** 7", "7"),
        ("She earns 5, then 9 dollars.", "9"),
        ("It costs 25%.", "25"),
        ("The temperature is -5", "-5"),
        ("10-5 left over is written 10-5", "5"),
        ("about .5 litres", ".5"),
        ("In total:\n- 18 eggs", "18"),
        ("what is left is 12 - 5", "5"),
        ("a loss of -$5", "-5"),
        ("of -$1,250.75", "-1250.75"),
        ("up to 1.5.", "1.5"),
        ("version x86 has 3", "3"),
        ("€1,000,000", "1000000"),
        ("In all 3.0 cups.", "3.0"),
        ("no idea", None),
        ("", None),
    ],
)
def test_the_final_number(text: str, number: str | None) -> None:
    assert final_number(text)[0] == number


@pytest.mark.parametrize(
    ("answer", "right"),
    [("#### 1,200", True), ("1200.00", True), ("#### $1200", True), ("120", False), ("#### -1200", False), ("", False)],
)
def test_gsm8k(answer: str, right: bool) -> None:
    score = SCORERS["gsm8k"]().score({"question": "?", "answer": "Add.\n#### 1,200"}, answer)
    assert score.correct == right and (score.extracted is None) == (answer == "")


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is (B).", "B"),
        ("Answer: C", "C"),
        ("**Answer: D. Paris**", "D"),
        ("The correct answer is **A**, because B is wrong.", "A"),
        ("so \\boxed{\\text{C}}", "C"),
        ("The answer is A good idea. Therefore the correct choice is D.", "D"),
        ("B", "B"),
        ("B. It is the law of large numbers.", "B"),
        ("(C) Because of that.", "C"),
        ("A. one\nB. two\nC. three\nD. four", None),
        ("I would go for option B here", "B"),
        ("A man walks into a bar.", None),
        ("", None),
    ],
)
def test_the_final_letter(text: str, letter: str | None) -> None:
    assert final_letter(text)[0] == letter
    assert SCORERS["mmlu"]().score({"answer": "B"}, text).correct == (letter == "B")


class Letters:
    """A tokenizer whose letters are tokens 1 to 4, and 11 to 14 after a space."""

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [("ABCD".index(text.strip()) + 1) + (10 if text[0] == " " else 0)]


def test_the_letter_by_logits() -> None:
    ids = letter_ids(Letters())  # type: ignore[arg-type]
    assert ids == [[1, 11], [2, 12], [3, 13], [4, 14]]
    logits = np.zeros(20, dtype=np.float32)
    logits[[1, 12, 3, 0]] = [1.0, 2.5, 2.0, 9.0]
    assert choose_letter(logits, ids) == ("B", 0.5)
    assert choose_letter(np.zeros(20, dtype=np.float32), ids) == ("A", 0.0)

    class Wordy(Letters):
        def encode(self, text: str, add_special: bool = True) -> list[int]:
            return [1, 2]

    with pytest.raises(InputError, match="no single token for A"):
        letter_ids(Wordy())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def maths() -> Iterator[MathAnswer]:
    scorer = MathAnswer(seconds=5.0)
    yield scorer
    scorer.close()


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("\\frac{1}{2}", "So we get \\boxed{0.5}.", True),
        ("p - q", "Hence \\boxed{-q + p}", True),
        ("2\\sqrt{3}", "The answer is $\\sqrt{12}$.", True),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "\\boxed{(3, \\pi/2)}", True),
        ("\\text{Evelyn}", "\\boxed{\\text{Evelyn}}", True),
        ("9", "\\boxed{8}, although 9 is near", False),
        ("\\frac{1}{2}", "no idea", False),
        ("(2, 3)", "\\boxed{(3, 2)}", False),
    ],
)
def test_math500(maths: MathAnswer, gold: str, answer: str, right: bool) -> None:
    score = maths.score({"answer": gold}, answer)
    assert score.correct == right, score


def test_an_endless_comparison_is_given_up_and_the_next_one_works(maths: MathAnswer) -> None:
    score = maths.score({"answer": "3"}, "\\boxed{9^{9^{9^{9}}}}")
    assert not score.correct
    assert maths.score({"answer": "3"}, "\\boxed{3}").correct


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("    return sum(xs)\n", True),
        ("return sum(xs)", True),
        ("    return sum(xs)\n\n\nprint(total([1]))\nassert False", True),
        ("Sure!\n\n```python\ndef total(xs: List[int]) -> int:\n    return sum(xs)\n```\nIt adds.", True),
        ("```python\nprint('first')\n```\n```py\ndef total(xs):\n    return sum(xs)\n```", True),
        ("```python\ndef total(xs):\n    return sum(xs)", True),
        ("```\n    return sum(xs)\n```", True),
        ("Here it is:\ndef total(xs):\n    return sum(xs)\nI hope that helps.", True),
        ("```python\ndef total(xs):\n    return len(xs)\n```", False),
        ("    pass\n", False),
        ("I cannot do that.", False),
        ("", False),
    ],
)
def test_humaneval(answer: str, right: bool) -> None:
    assert SCORERS["humaneval"]().score(ADD, answer).correct == right


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("```python\ndef square(x):\n    return x * x\n```", True),
        ("def square(x):\r\n    return x ** 2", True),
        ("The code:\n\nimport math\n\ndef square(x):\n    return int(math.pow(x, 2))\n\nassert square(3) == 8", True),
        ("```python\ndef square(x):\n    return x + x\n```", False),
        ("```python\ndef other(x):\n    return x * x\n```", False),
        ("nothing here", False),
    ],
)
def test_mbpp(answer: str, right: bool) -> None:
    assert SCORERS["mbpp"]().score(SQUARE, answer).correct == right


def rows(name: str) -> list[dict[str, Any]]:
    path = Path(os.environ["BETOKEN_DATA"]) / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


needs_data = pytest.mark.skipif(
    not os.environ.get("BETOKEN_DATA"), reason="the public data sets are not part of the project"
)


@needs_data
@pytest.mark.parametrize("fenced", [False, True])
def test_humanevals_own_solutions_pass(fenced: bool) -> None:
    scorer = SCORERS["humaneval"]()
    for row in rows("humaneval"):
        code = row["canonical_solution"]
        score = scorer.score(row, f"```python\n{row['prompt']}{code}```" if fenced else code)
        assert score.correct, (row["task_id"], score)


@needs_data
def test_the_references_of_the_other_suites_are_right() -> None:
    for row in rows("gsm8k"):
        assert SCORERS["gsm8k"]().score(row, row["answer"]).correct, row
    for row in rows("mmlu"):
        assert SCORERS["mmlu"]().score(row, f"The answer is {row['answer']}.").correct, row
    for row in rows("mbpp")[::4]:
        score = SCORERS["mbpp"]().score(row, f"```python\n{row['code']}\n```")
        assert score.correct, (row["task_id"], score)


@needs_data
def test_math500s_own_solutions_are_right() -> None:
    scorer = MathAnswer()
    try:
        wrong = [row["answer"] for row in rows("math500")[::5] if not scorer.score(row, row["solution"]).correct]
    finally:
        scorer.close()
    assert wrong == []
