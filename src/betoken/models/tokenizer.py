"""Text to token ids and back, and chat messages to a prompt, without importing transformers (slow to start)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from betoken.errors import InputError
from betoken.models.chat_template import ChatTemplate
from betoken.models.config import read_json


class Tokenizer:
    """The tokenizer of a model folder (`tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`)."""

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        chat_template: str | None = None,
        special_names: Mapping[str, str] | None = None,
    ) -> None:
        """`special_names`: what a chat template may name, such as {"bos_token": "<s>"}."""
        self.core = core
        self.chat_template = chat_template
        self.special_names = dict(special_names or {})
        self._bytes_of = _byte_reader(core)
        core.no_padding()
        core.no_truncation()

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Raises InputError if the folder has no `tokenizer.json` or it cannot be read."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise InputError(f"{folder}: no tokenizer.json (the fast tokenizer format), so text cannot be encoded")
        try:
            core = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception for any malformed file
            raise InputError(f"{path}: corrupt tokenizer file ({error})") from error
        settings_path = folder / "tokenizer_config.json"
        settings = read_json(settings_path) if settings_path.is_file() else {}
        return cls(core, _chat_template(folder, settings), _special_names(settings))

    @property
    def template(self) -> ChatTemplate:
        """What makes a prompt of chat messages."""
        return ChatTemplate(self.chat_template, self.special_names)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Token -> id, special tokens included."""
        return self.core.get_vocab(with_added_tokens=True)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that `decode` leaves out by default."""
        return frozenset(i for i, token in self.core.get_added_tokens_decoder().items() if token.special)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of a text. Special tokens written in the text become themselves.

        `add_special`: put the begin token in front if the model's tokenizer does so.
        """
        return list(self.core.encode(text, add_special_tokens=add_special).ids)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD, ids without a token nothing."""
        return self.core.decode(list(ids), skip_special_tokens=skip_special)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token adds to the text, a special token's name included; b"" for an id without a token.

        Joined, they are the UTF-8 of `decode(ids, skip_special=False)`, except for the one space that a
        SentencePiece tokenizer puts in front of a text.
        """
        added = self._added.get(token_id)
        if added is not None:
            return added
        token = self.core.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None
        return b"" if token is None else self._bytes_of(token)

    @cached_property
    def _added(self) -> dict[int, bytes]:
        return {i: token.content.encode() for i, token in self.core.get_added_tokens_decoder().items()}


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """From `chat_template.jinja`, else from the tokenizer's settings (one template, or named ones)."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise InputError(f"{folder / 'tokenizer_config.json'}: chat_template must be text")
    return template


def _special_names(settings: Mapping[str, Any]) -> dict[str, str]:
    names = {}
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = settings.get(key)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            names[key] = token
    return names


class _ByteLevel:
    """Bytes of a byte-level BPE token: each of its characters stands for one byte (GPT-2's table)."""

    def __init__(self) -> None:
        self._table = {character: byte for byte, character in byte_characters().items()}

    def __call__(self, token: str) -> bytes:
        try:
            return bytes(self._table[character] for character in token)
        except KeyError:  # a token that was never byte-level, such as an unlisted special one
            return token.encode()


class _Pieces:
    """Bytes of a SentencePiece token: U+2581 stands for a space, `<0xE2>` for one byte."""

    def __call__(self, token: str) -> bytes:
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return token.replace("\u2581", " ").encode()


def byte_characters() -> dict[int, str]:
    """Byte -> the printable character that byte-level BPE writes for it (GPT-2's encoder.py)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    table = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in table)
    return table | {byte: chr(256 + n) for n, byte in enumerate(others)}


def _byte_reader(core: tokenizers.Tokenizer) -> _ByteLevel | _Pieces:
    decoder = json.loads(core.to_str()).get("decoder") or {}
    kinds = {step.get("type") for step in _steps(decoder)}
    if "ByteLevel" in kinds:
        return _ByteLevel()
    if kinds & {"ByteFallback", "Metaspace"}:
        return _Pieces()
    raise InputError(f"tokenizer decoder {sorted(map(str, kinds))} is not supported: byte-level or SentencePiece only")


def _steps(decoder: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
