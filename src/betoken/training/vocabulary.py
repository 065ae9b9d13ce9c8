"""Tokenizers of models that are trained here: every byte, the characters of a text, or byte-level BPE.

All are byte-level in the format of the tokenizers library, so that a model folder with one is read like any other.
`<|begin|>` stands in front of every text, `<|end|>` behind every document.
"""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers

from betoken.errors import InputError
from betoken.models.store import resolve
from betoken.models.tokenizer import Tokenizer, byte_characters

BEGIN, END = "<|begin|>", "<|end|>"


def make_tokenizer(name: str, texts: Iterable[str]) -> Tokenizer:
    """`bytes` (258 tokens), `characters` (those of the texts), `bpe:SIZE` (trained on the texts), or a model's own.

    Raises InputError for another name, and for a BPE smaller than its alphabet.
    """
    if name == "bytes":
        return _plain(list(byte_characters().values()))
    if name == "characters":
        used = sorted({byte for text in texts for byte in text.encode()})
        return _plain([byte_characters()[byte] for byte in used])
    kind, _, size = name.partition(":")
    if kind == "bpe":
        if not size.isdigit() or int(size) < 258:
            raise InputError(f"--tokenizer {name}: write bpe:SIZE with a size of at least 258")
        return _trained(texts, int(size))
    return Tokenizer.from_folder(resolve(name))


def begin_id(tokenizer: Tokenizer) -> int | None:
    """The token that the tokenizer puts in front of a text, if it does."""
    ids = tokenizer.encode("")
    return ids[0] if ids else None


def end_id(tokenizer: Tokenizer) -> int | None:
    """The token that ends a document."""
    return tokenizer.vocabulary.get(tokenizer.special_names.get("eos_token", ""))


def _plain(characters: list[str]) -> Tokenizer:
    vocabulary = {character: number for number, character in enumerate(characters)}
    return _finished(tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[])), use_regex=False)


def _trained(texts: Iterable[str], size: int) -> Tokenizer:
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size - 2, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(texts, trainer)
    return _finished(core, use_regex=True)


def _finished(core: tokenizers.Tokenizer, *, use_regex: bool) -> Tokenizer:
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in (BEGIN, END)])
    core.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, core.token_to_id(BEGIN))]
    )
    return Tokenizer(core, None, {"bos_token": BEGIN, "eos_token": END})
