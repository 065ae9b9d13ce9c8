"""A toy model that answers in digits, and suites of sums whose right answers are what it says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench_toys import VOCABULARY, ToyCodec
from betoken.bench.subject import ModelSpec, Subject
from betoken.testing import ToyTarget

LIMIT = 12
"""Most new tokens of an answer."""


class DigitCodec(ToyCodec):
    """Token n is the digit n."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return "".join(str(token) for token in ids)


def load_digits(spec: ModelSpec) -> Subject:
    target = ToyTarget(VOCABULARY, order=2, seed=13, sharpness=3.0, context=2000, far=True)
    return Subject(target, DigitCodec(), None, None)


def plain_answer(prompt: list[int], limit: int = LIMIT) -> list[int]:
    """Greedy decoding by the toy's own table, without decoder, cache or drafter."""
    target = load_digits(ModelSpec("toy")).target
    assert isinstance(target, ToyTarget)
    text = list(prompt)
    while len(text) - len(prompt) < limit and (len(text) == len(prompt) or text[-1] != 0):
        text.append(int(np.argmax(target.next_logits(text))))
    return text[len(prompt) :]


def write_sums(folder: Path, name: str = "sums", rows: int = 12, wrong: Sequence[int] = ()) -> Path:
    """A suite in GSM8K's format; the references of rows `wrong` are not what the toy says."""
    path = folder / f"{name}.jsonl"
    told: list[dict[str, Any]] = []
    for index in range(rows):
        question = f"{name} {'how many apples are left ' * (1 + index % 3)}{index}?"
        told.append({"question": question, "answer": "#### 0"})
    path.write_text("".join(json.dumps(row) + "\n" for row in told))
    from betoken.bench.suites import read_suite

    subject = load_digits(ModelSpec("toy"))
    for index, asked in enumerate(read_suite(path)):
        tokens = plain_answer(subject.prompt(asked))
        number = "".join(map(str, tokens)).removesuffix("0") if tokens[-1] == 0 else "".join(map(str, tokens))
        told[index]["answer"] = f"#### {'-1' if index in wrong else number or '-2'}"
    path.write_text("".join(json.dumps(row) + "\n" for row in told))
    return path
