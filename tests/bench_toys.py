"""A toy model with a tokenizer and a suite file, for tests of benchmarks and audits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from betoken.bench.subject import ModelSpec, Subject
from betoken.models.chat_template import ChatTemplate
from betoken.models.target import Scores
from betoken.testing import ToyCache, ToyTarget
from betoken.tree import TokenTree

VOCABULARY = 9


class ToyCodec:
    """Each character is one token, never the end token 0."""

    template = ChatTemplate("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}")

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [1 + ord(character) % (VOCABULARY - 1) for character in text]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return "".join("<end>" if token == 0 else chr(96 + token) for token in ids)


class CountingTarget(ToyTarget):
    """Counts the nodes that it scores."""

    nodes = 0

    def forward(
        self, tree: TokenTree, cache: ToyCache, slots: Sequence[int], hidden_layers: Sequence[int] = ()
    ) -> Scores:
        self.nodes += int(tree.counts.sum())
        return super().forward(tree, cache, slots, hidden_layers)


class ToyLoader:
    """Loads the same toy again and again, and counts how often."""

    def __init__(self, target: type[ToyTarget] = CountingTarget, costs: Path | None = None) -> None:
        self.loads = 0
        self.kind, self.costs = target, costs

    def __call__(self, spec: ModelSpec) -> Subject:
        self.loads += 1
        return Subject(
            self.kind(VOCABULARY, order=2, seed=30, sharpness=3.0, context=2000), ToyCodec(), None, self.costs
        )


def write_suite(folder: Path, name: str = "toy", categories: Mapping[str, int] | None = None) -> Path:
    """A suite in Spec-Bench's format; {"a": 3} is three questions of category a."""
    rows = []
    for category, count in (categories or {"writing": 3, "coding": 2}).items():
        for index in range(count):
            text = f"Say something about {category}, item {index * 7}. " * (1 + index % 3)
            rows.append({"question_id": len(rows), "category": category, "turns": [text, "And now shorter."]})
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
