"""Documents to rows of tokens: text folders, text and JSONL files, teacher samples, data sets of the Hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from betoken.errors import InputError
from betoken.models.tokenizer import Tokenizer
from betoken.training.vocabulary import end_id

Ints = NDArray[np.int64]
Document = str | list[int]
"""A text, or token ids that are taken as they are."""


@dataclass(frozen=True)
class Rows:
    """R rows of up to N tokens, padded with 0."""

    tokens: Ints
    """[R, N]"""
    lengths: Ints
    """[R] tokens without padding."""
    first: Ints
    """[R] the first token that may be predicted: 1, or where a teacher's answer begins."""
    low: NDArray[np.float64] | None = None
    """[R, N] lower ends of the intervals of u that pick each token, where a teacher told; nan elsewhere."""
    high: NDArray[np.float64] | None = None
    """[R, N] upper ends."""

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, places: Ints | slice) -> Rows:
        """Some of the rows."""
        low = None if self.low is None else self.low[places]
        high = None if self.high is None else self.high[places]
        return Rows(self.tokens[places], self.lengths[places], self.first[places], low, high)

    def split(self, share: float) -> tuple[Rows, Rows]:
        """Rows to train on, and the last `share` of them (at least one) to validate with. Needs two rows."""
        held = max(1, round(share * len(self)))
        if held >= len(self):
            raise InputError(f"{len(self)} rows are too few to hold some out for validation: give more data")
        return self.take(slice(0, len(self) - held)), self.take(slice(len(self) - held, len(self)))

    @property
    def digest(self) -> str:
        """A hash of everything in them."""
        found = hashlib.sha256()
        for array in (self.tokens, self.lengths, self.first, self.low, self.high):
            found.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
        return found.hexdigest()[:16]


def read_documents(source: str, pattern: str = "*.txt") -> list[Document]:
    """The documents of a folder (every file that matches `pattern`), a .jsonl file (objects with `text` or `tokens`,
    one a line), another text file (one document), or a Hub data set (owner/name, its split `train`, column `text`).

    Raises InputError, in one line, for what is missing, empty, no UTF-8 text or of another form.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        found: list[Document] = [_text(file) for file in sorted(path.rglob(pattern)) if file.is_file()]
        if not found:
            raise InputError(f"{source}: no file {pattern} in this folder; choose others with --files '*.md'")
    elif path.suffix == ".jsonl" and path.is_file():
        found = list(_json_lines(path))
    elif path.is_file():
        found = [_text(path)]
    elif source.count("/") == 1 and not source.startswith((".", "/", "~")):
        found = _from_hub(source)
    else:
        raise InputError(f"{source}: no such file or folder")
    found = [document for document in found if document]
    if not found:
        raise InputError(f"{source}: every document in it is empty")
    return found


def texts_of(documents: Sequence[Document]) -> list[str]:
    """The documents that are texts."""
    return [document for document in documents if isinstance(document, str)]


def rows_of(
    documents: Sequence[Document], tokenizer: Tokenizer, sequence: int, *, vocab_size: int, pack: bool = True
) -> Rows:
    """Documents as rows of `sequence` tokens, in their order.

    A text gets what the tokenizer puts in front and an end token; token ids are taken as they are. `pack`: documents
    one after another, cut every `sequence` tokens, whatever document ends there, and attention does not stop at
    their ends (the usual way of pre-training). Otherwise each document has rows of its own, the last one padded.
    Raises InputError for a token outside the vocabulary, and if not even two tokens are there.
    """
    end = end_id(tokenizer)
    streams = [_ids(document, tokenizer, end) for document in documents]
    if pack:
        streams = [np.concatenate(streams)]
    parts = [stream[at : at + sequence] for stream in streams for at in range(0, len(stream), sequence)]
    parts = [part for part in parts if len(part) > 1]
    if not parts:
        raise InputError("the data has no row of two tokens or more: give longer documents")
    tokens = np.zeros((len(parts), sequence), dtype=np.int64)
    for row, part in enumerate(parts):
        tokens[row, : len(part)] = part
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise InputError(f"the data has a token id outside the vocabulary of {vocab_size}")
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    return Rows(tokens, lengths, np.ones(len(parts), dtype=np.int64))


def _ids(document: Document, tokenizer: Tokenizer, end: int | None) -> Ints:
    if isinstance(document, str):
        return np.array(tokenizer.encode(document) + ([] if end is None else [end]), dtype=np.int64)
    return np.array(document, dtype=np.int64)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}); convert it or leave it out") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def _json_lines(path: Path) -> Iterator[Document]:
    for line, part in enumerate(_text(path).split("\n"), 1):
        if not part.strip():
            continue
        try:
            row: Any = json.loads(part)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {line}: no valid JSON ({error.msg})") from None
        text, tokens = (row.get("text"), row.get("tokens")) if isinstance(row, dict) else (None, None)
        if isinstance(text, str):
            yield text
        elif isinstance(tokens, list) and all(type(token) is int for token in tokens):
            yield tokens
        else:
            raise InputError(f'{path}, line {line}: an object with "text" or "tokens" (a list of ids) is expected')


def _from_hub(name: str) -> list[Document]:
    try:
        import datasets
    except ImportError:
        raise InputError(
            f"{name}: no such file here; for a data set of the Hub install its package: pip install datasets"
        ) from None
    try:
        rows = datasets.load_dataset(name, split="train")
    except Exception as error:  # a stranger's data set can fail in any way
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{name}: not a file here, and the Hub cannot give it ({reason})") from error
    if "text" not in rows.column_names:
        raise InputError(f"{name}: the data set has no column text, only {', '.join(rows.column_names)}")
    return [str(row["text"]) for row in rows]
