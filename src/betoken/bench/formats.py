"""How public data sets write their rows, and what is asked of a model with each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from betoken.errors import InputError


@dataclass(frozen=True)
class Format:
    """How one public data set writes a row."""

    name: str
    required: Mapping[str, type]
    optional: frozenset[str]
    read: Callable[[Mapping[str, Any], int], tuple[str, str, str, str]]
    """A row and its line number -> own id, category, chat request, raw prompt."""
    told: tuple[str, ...]
    """Fields that hold its question and its answer, in this order; absent optional ones are left out."""

    @property
    def known(self) -> frozenset[str]:
        """Every field a row may have."""
        return frozenset(self.required) | self.optional


def _spec_bench(row: Mapping[str, Any], line: int) -> tuple[str, str, str, str]:
    if not row["turns"] or not all(isinstance(turn, str) and turn for turn in row["turns"]):
        raise InputError("turns must be a list of at least one text")
    return str(row["question_id"]), row["category"], row["turns"][0], row["turns"][0]


def _gsm8k(row: Mapping[str, Any], line: int) -> tuple[str, str, str, str]:
    text = f"{row['question']}\n\nThink step by step. End with the final number alone after ####."
    return str(line), "gsm8k", text, f"Question: {row['question']}\nAnswer:"


def _math500(row: Mapping[str, Any], line: int) -> tuple[str, str, str, str]:
    text = f"{row['problem']}\n\nReason step by step and put the final answer in \\boxed{{}}."
    return str(line), "math500", text, f"Problem: {row['problem']}\nSolution:"


def _humaneval(row: Mapping[str, Any], line: int) -> tuple[str, str, str, str]:
    code = row["prompt"]
    text = f"Complete this function. Answer with the whole function in one Python code block.\n\n```python\n{code}```"
    return row["task_id"], "humaneval", text, code


def _mbpp(row: Mapping[str, Any], line: int) -> tuple[str, str, str, str]:
    tests = "\n".join(row["test_list"])
    text = f"{row['text']}\n\nAnswer with Python code. It must pass these tests:\n\n```python\n{tests}\n```"
    return str(row["task_id"]), "mbpp", text, f'"""\n{row["text"]}\n{tests}\n"""\n'


def _mmlu(row: Mapping[str, Any], line: int) -> tuple[str, str, str, str]:
    if len(row["choices"]) != 4:
        raise InputError(f"choices must be 4 texts, not {len(row['choices'])}")
    choices = "\n".join(f"{letter}. {text}" for letter, text in zip("ABCD", row["choices"], strict=True))
    asked = f"{row['question']}\n{choices}"
    return (
        str(line),
        "mmlu",
        f"{asked}\n\nExplain briefly, then give the letter of the answer.",
        f"{asked}\nAnswer:",
    )


FORMATS = (
    Format(
        "spec_bench",
        {"question_id": int, "category": str, "turns": list},
        frozenset({"reference"}),
        _spec_bench,
        ("turns", "reference"),
    ),
    Format("gsm8k", {"question": str, "answer": str}, frozenset(), _gsm8k, ("question", "answer")),
    Format(
        "math500",
        {"problem": str, "solution": str, "answer": str, "subject": str, "level": int},
        frozenset({"unique_id"}),
        _math500,
        ("problem", "solution"),
    ),
    Format(
        "humaneval",
        {"task_id": str, "prompt": str, "entry_point": str, "canonical_solution": str, "test": str},
        frozenset(),
        _humaneval,
        ("prompt", "canonical_solution"),
    ),
    Format(
        "mbpp",
        {"task_id": int, "text": str, "code": str, "test_list": list},
        frozenset({"test_setup_code", "challenge_test_list"}),
        _mbpp,
        ("text", "code"),
    ),
    Format(
        "mmlu",
        {"subject": str, "question": str, "choices": list, "answer": str},
        frozenset(),
        _mmlu,
        ("question", "choices", "answer"),
    ),
)
