"""Prompts for teacher samples, as token ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from betoken.bench.suites import find_suite, read_suite
from betoken.engine import Engine
from betoken.errors import InputError
from betoken.training.data import Document, read_documents


def from_suites(engine: Engine, suites: Sequence[str], data: Path | None, *, raw: bool) -> list[list[int]]:
    """The questions of suites, through the chat template or `raw`. Raises InputError for a suite that is not there."""
    questions = [question for name in suites for question in read_suite(find_suite(name, data))]
    if raw:
        return [engine.encode(question.raw, raw=True) for question in questions]
    return [engine.encode(question.messages) for question in questions]


def from_texts(
    engine: Engine, source: str, files: str, stretch: tuple[int, int] | None, *, raw: bool
) -> list[list[int]]:
    """The lines of a .txt file, the rows of a .jsonl file, the files of a folder.

    `stretch` (P, A): instead, one after another, each document's stretches of P + A tokens, of which the first P are
    a prompt; a stretch counts if it has P tokens and one more. Texts are plain then. Raises InputError for what
    cannot be read and for no prompt at all.
    """
    documents = read_documents(source, files)
    if stretch is not None:
        found = [prompt for document in documents for prompt in _cut(engine, document, *stretch)]
    else:
        if source.endswith(".txt"):
            documents = [line for text in documents if isinstance(text, str) for line in text.splitlines()]
        documents = [document for document in documents if not isinstance(document, str) or document.strip()]
        found = [engine.encode(one, raw=raw) if isinstance(one, str) else one for one in documents]
    if not found:
        raise InputError(f"{source}: no prompt in it")
    return found


def digest(prompts: Sequence[Sequence[int]]) -> str:
    """A hash of prompts."""
    return hashlib.sha256(json.dumps([list(prompt) for prompt in prompts]).encode()).hexdigest()[:16]


def _cut(engine: Engine, document: Document, length: int, answer: int) -> list[list[int]]:
    ids = engine.encode(document, raw=True) if isinstance(document, str) else document
    starts = range(0, len(ids) - length, length + answer)
    return [ids[start : start + length] for start in starts]
