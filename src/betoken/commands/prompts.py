"""Where a prompt comes from on a command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from betoken.errors import InputError

Prompt = str | list[dict[str, Any]]


def read_prompt(
    source: str | None,
    prompt: str | None,
    prompt_file: Path | None,
    messages: Path | None,
    *,
    system: str | None,
    raw: bool,
) -> Prompt:
    """The prompt of exactly one source: a text, or chat messages.

    `source` is the positional argument, which can only be `-`: standard input. The line break at the end of a file
    or of standard input is not part of the prompt, unless `raw`. Raises InputError for none, for several, and for
    what cannot be read.
    """
    given = [source is not None, prompt is not None, prompt_file is not None, messages is not None]
    if sum(given) != 1:
        what = "no prompt" if not any(given) else "several prompts"
        raise InputError(f"{what}: give one of --prompt TEXT, --prompt-file FILE, --messages FILE, - (standard input)")
    if raw and (system is not None or messages is not None):
        raise InputError("--raw takes a plain text: no --system and no --messages")
    if messages is not None:
        return _with_system(read_messages(messages), system)
    if source is not None and source != "-":
        raise InputError(f"unexpected argument {source!r}: use --prompt for a text, or - for standard input")
    text = prompt
    if text is None:
        text = read_text(prompt_file) if prompt_file is not None else _decode(sys.stdin.buffer.read(), "standard input")
        text = text if raw else text.removesuffix("\n")
    if not text.strip():
        raise InputError("the prompt is empty")
    return text if system is None else _with_system([{"role": "user", "content": text}], system)


def read_text(path: Path) -> str:
    """A UTF-8 text file. Raises InputError if it is not one."""
    try:
        return _decode(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, not a file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def read_messages(path: Path) -> list[dict[str, Any]]:
    """A JSON list of {"role": ..., "content": ...}. Raises InputError for anything else."""
    try:
        found = json.loads(read_text(path))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise InputError(f'{path}: must be a list of {{"role": ..., "content": ...}} objects')
    return found


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8 text (byte {error.start}); convert it first") from None


def _with_system(messages: list[dict[str, Any]], system: str | None) -> list[dict[str, Any]]:
    if system is None:
        return messages
    if any(message.get("role") == "system" for message in messages):
        raise InputError("the messages have a system message already: leave --system out")
    return [{"role": "system", "content": system}, *messages]
