"""HumanEval and MBPP: the code in an answer, run against the tests of the question."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Mapping
from typing import Any

from betoken.bench.scorers.sandbox import Limits, run_code
from betoken.bench.scorers.score import Score

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)
_CODE_STARTS = re.compile(r"^(?:def |async def |class |from \w|import \w|@)", re.MULTILINE)
_MBPP_ENDS = re.compile(r"^(?:assert\b|\"\"\"|'''|print\b|if __name__|#|```)", re.MULTILINE)


class HumanEval:
    """Right if the function passes the question's `check`."""

    def __init__(self, limits: Limits | None = None) -> None:
        """`limits`: of one program; those of `Limits` if None."""
        self._limits = limits or Limits()

    def score(self, row: Mapping[str, Any], answer: str) -> Score:
        """Run the answer in a confined process."""
        program = humaneval_program(row["prompt"], row["entry_point"], answer)
        if program is None:
            return Score(False, None, "no code in the answer")
        outcome = run_code(program, f"{row['test']}\n\ncheck({row['entry_point']})\n", self._limits)
        return Score(outcome.passed, program, outcome.reason)

    def close(self) -> None:
        """Holds nothing."""


class Mbpp:
    """Right if the code passes the question's asserts."""

    def __init__(self, limits: Limits | None = None) -> None:
        """`limits`: of one program; those of `Limits` if None."""
        self._limits = limits or Limits()

    def score(self, row: Mapping[str, Any], answer: str) -> Score:
        """Run the answer in a confined process."""
        names = set(re.findall(r"\b([A-Za-z_]\w*)\s*\(", row["test_list"][0])) if row["test_list"] else set()
        code = whole_code(answer, names)
        if code is None:
            return Score(False, None, "no code in the answer")
        setup = row.get("test_setup_code", "")
        outcome = run_code(f"{setup}\n{code}", "\n".join(row["test_list"]), self._limits)
        return Score(outcome.passed, code, outcome.reason)

    def close(self) -> None:
        """Holds nothing."""


def humaneval_program(prompt: str, name: str, answer: str) -> str | None:
    """The prompt and what an answer adds to it: a whole function in a code block or in the text, or a continuation.

    None if there is no code. The prompt stands first, since it has the imports and helpers.
    """
    blocks = [block for _, block in _FENCE.findall(answer)]
    for block in blocks:
        if _defines(block, name):
            return f"{prompt}\n\n{block}"
    if not blocks and _defines(answer, name):
        start = _CODE_STARTS.search(answer)
        code = _longest_code(answer[start.start() :]) if start else None
        return f"{prompt}\n\n{code}" if code else None
    body = blocks[0] if blocks else _indented(answer)
    if not body.strip():
        return None
    return prompt + (body if _parses(prompt + body) else textwrap.indent(textwrap.dedent(body), "    "))


def whole_code(answer: str, names: set[str]) -> str | None:
    """The code of an answer that stands on its own: the first block that defines one of `names`, else the first block.

    Without a block: from the first line of code on, as far as it is Python. None if there is none.
    """
    blocks = [block for _, block in _FENCE.findall(answer)]
    if blocks:
        return next((one for one in blocks if any(_defines(one, name) for name in names)), blocks[0])
    start = _CODE_STARTS.search(answer)
    if start is None:
        return None
    text = answer[start.start() :]
    end = _MBPP_ENDS.search(text)
    return _longest_code(text[: end.start()] if end else text)


def _defines(code: str, name: str) -> bool:
    return (
        re.search(rf"^[ \t]*(?:async +)?def +{re.escape(name)}\b|^{re.escape(name)} *=", code, re.MULTILINE) is not None
    )


def _indented(text: str) -> str:
    """A function body: up to the first line that is neither blank nor indented. Its first line may lack its indent."""
    lines = text.split("\n")
    if lines[0] and not lines[0][0].isspace():
        lines[0] = f"    {lines[0]}"
    for count, line in enumerate(lines):
        if line.strip() and not line[0].isspace():
            return "\n".join(lines[:count])
    return "\n".join(lines)


def _longest_code(text: str) -> str | None:
    """The longest beginning, in lines, that is Python; None if not even the first line is."""
    lines = text.split("\n")[:400]
    for count in range(len(lines), 0, -1):
        code = "\n".join(lines[:count])
        if _parses(code):
            return code if code.strip() else None
    return None


def _parses(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that a model writes
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
