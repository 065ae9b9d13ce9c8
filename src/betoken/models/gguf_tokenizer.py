"""The tokenizer inside a GGUF file as a Hugging Face `tokenizer.json`: byte-level BPE.

A GGUF names its pre-tokenizer only by a word (`tokenizer.ggml.pre`); what each word means is llama.cpp's
src/llama-vocab.cpp, rebuilt here from the tokenizers library's parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from betoken.errors import InputError
from betoken.models.tokenizer import Tokenizer as ModelTokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5  # tokenizer.ggml.token_type
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Contractions, words, DIGITS digits at a time, punctuation, line ends, spaces: the pattern of Llama 3 and Qwen 2."""
_SAME_AS = {
    "gpt-2": "gpt-2",
    "smollm": "smollm",
    "qwen2": "qwen2",
    "deepseek-r1-qwen": "qwen2",
    "llama-bpe": "llama-bpe",
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> ModelTokenizer:
    """The tokenizer that the file's `tokenizer.*` keys describe, chat template included.

    Raises InputError for vocabularies that are not byte-level BPE and for pre-tokenizers that are not known.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise InputError(
            f"GGUF tokenizer {kind} is not supported, only byte-level BPE (gpt2): use the model's safetensors folder"
        )
    named = str(metadata.get("tokenizer.ggml.pre"))
    if named not in _SAME_AS:
        raise InputError(f"GGUF pre-tokenizer {named} is not supported ({', '.join(_SAME_AS)})")
    tokens = list(metadata.get("tokenizer.ggml.tokens", []))
    if not tokens or "tokenizer.ggml.merges" not in metadata:
        raise InputError("GGUF tokenizer: tokens or merges are missing")
    kinds = list(metadata.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens)))
    while kinds and kinds[-1] == _UNUSED:  # names such as [PAD151700] that only fill the embedding up
        kinds.pop(), tokens.pop()
    pre = _SAME_AS[named]
    core = _byte_level(tokens, [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]], pre)
    special = [(t, k) for t, k in zip(tokens, kinds, strict=False) if k in (_UNKNOWN, _CONTROL, _USER_DEFINED)]
    core.add_tokens([AddedToken(t, special=k != _USER_DEFINED, normalized=False) for t, k in special])
    names = _special_names(metadata, tokens)
    if metadata.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe") and "bos_token" in names:
        core.post_processor = _begin_with(names["bos_token"], tokens)
    return ModelTokenizer(core, metadata.get("tokenizer.chat_template"), names)


def _byte_level(tokens: list[str], merges: list[Any], pre: str) -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate(tokens)}
    try:
        # Llama 3 looks a whole word up before it merges.
        core = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    except Exception as error:  # tokenizers raises plain Exception for a merge of unknown tokens
        raise InputError(f"GGUF tokenizer: merges do not fit the vocabulary ({error})") from error
    if pre == "qwen2":
        core.normalizer = normalizers.NFC()
    core.pre_tokenizer = _pre_tokenizer(pre)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.ByteLevel(trim_offsets=False)
    return core


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    if pre == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    words = Regex(_WORDS.replace("DIGITS", "{1,3}" if pre == "llama-bpe" else ""))
    split = pre_tokenizers.Split(words, behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _begin_with(token: str, tokens: list[str]) -> processors.PostProcessor:
    template = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B:1", special_tokens=[(token, tokens.index(token))]
    )
    return processors.Sequence([processors.ByteLevel(trim_offsets=False), template])


def _special_names(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    return {name: tokens[i] for name, i in ids.items() if i is not None and 0 <= i < len(tokens)}
