"""Chunks of text: independent of how tokens arrive, never half a character, never a stop string."""

from __future__ import annotations

from itertools import pairwise

import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models

from betoken.models.tokenizer import Tokenizer, byte_characters
from betoken.text import StopFilter, TextStream

SPECIAL = 256
MULTI = 257  # a token of several bytes that ends in the middle of a character


def byte_tokenizer() -> Tokenizer:
    """Byte-level: ids 0..255 are bytes, 256 is special, 257 and 258 are longer tokens."""
    table = byte_characters()
    longer = "".join(table[b] for b in "né".encode()[:-1])
    vocab = {table[b]: b for b in range(256)} | {longer: MULTI, "<tool>": 258}
    core = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<|end|>", special=True)])
    core.add_tokens([AddedToken("<tool>", special=False)])
    return Tokenizer(core)


def piece_tokenizer() -> Tokenizer:
    """SentencePiece-like, as Llama 2 decodes: a space in front of the text is not part of it."""
    pieces = ["<unk>", "▁", "▁the", "cat", "▁▁", "é", *(f"<0x{b:02X}>" for b in range(256))]
    core = tokenizers.Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], byte_fallback=True))
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.add_special_tokens([AddedToken("</s>", special=True)])
    return Tokenizer(core)


BYTES = byte_tokenizer()
PIECES = piece_tokenizer()

texts = st.text(alphabet="ab\n é€🎉\u0301", max_size=12)
byte_tokens = st.one_of(
    texts.map(lambda text: list(text.encode())),
    st.lists(st.integers(0, 258), max_size=24),
)


def chunks(tokenizer: Tokenizer, tokens: list[int], stop: list[str]) -> list[str]:
    """One chunk a token; the last also has what was held back."""
    stream = TextStream(tokenizer, stop)
    out = [stream.push(token) for token in tokens]
    return [*out[:-1], out[-1] + stream.finish()] if out else [stream.finish()]


def cut(text: str, stop: list[str]) -> str:
    """Brute force: read one character at a time until some stop string is complete."""
    for end in range(len(text) + 1):
        done = [end - len(s) for s in stop if text[:end].endswith(s)]
        if done:
            return text[: min(done)]
    return text


@given(byte_tokens)
def test_chunks_join_to_the_decoded_text(tokens: list[int]) -> None:
    assert "".join(chunks(BYTES, tokens, [])) == BYTES.decode(tokens)


@given(byte_tokens, st.lists(st.sampled_from(["a", "ab", "ba\n", "é", "🎉a", "aab", "<tool>", "\n\n"]), max_size=3))
def test_text_ends_before_the_first_stop_string(tokens: list[int], stop: list[str]) -> None:
    assert "".join(chunks(BYTES, tokens, stop)) == cut(BYTES.decode(tokens), stop)


@given(st.text(alphabet="ab", max_size=10), st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3))
def test_what_was_passed_never_has_to_be_taken_back(text: str, stop: list[str]) -> None:
    one = StopFilter(stop)
    passed = ""
    for n, character in enumerate(text):
        passed += one.push(character)
        # Whatever follows, the final text begins with what was passed on so far ...
        for future in ("", "a", "b", "ab", "ba", "abab", "baba"):
            assert cut(text[: n + 1] + future, stop).startswith(passed)
        # ... and nothing is held back that no stop string can begin with.
        held = cut(text[: n + 1], stop)[len(passed) :]
        assert one.stopped or held == "" or any(s.startswith(held) for s in stop)


@given(st.text(alphabet="abc", max_size=12), st.lists(st.integers(0, 12), max_size=4))
def test_the_split_into_tokens_does_not_move_the_cut(text: str, at: list[int]) -> None:
    stop = ["abca", "bc", "cc"]
    edges = sorted({0, *(min(a, len(text)) for a in at), len(text)})
    one = StopFilter(stop)
    passed = "".join(one.push(text[a:b]) for a, b in pairwise(edges)) + one.finish()
    assert passed == cut(text, stop)


@given(texts)
def test_no_chunk_has_half_a_character(text: str) -> None:
    assert "\ufffd" not in "".join(chunks(BYTES, list(text.encode()), []))


def test_a_character_waits_for_its_last_byte() -> None:
    stream = TextStream(BYTES)
    assert [stream.push(b) for b in "a🎉b".encode()] == ["a", "", "", "", "🎉", "b"]


def test_half_a_character_at_the_end_is_flushed_as_the_tokenizer_writes_it() -> None:
    tokens = [ord("a"), MULTI]
    assert chunks(BYTES, tokens, []) == ["a", "n\ufffd"]
    assert BYTES.decode(tokens) == "an\ufffd"


def test_special_tokens_add_no_text_and_split_no_character() -> None:
    first, second = "é".encode()
    assert chunks(BYTES, [first, SPECIAL, second], []) == ["", "", "é"]


def test_a_stop_string_split_over_tokens_leaks_nothing() -> None:
    stream = TextStream(BYTES, ["\nQ:"])
    assert [stream.push(ord(c)) for c in "A\n\nQ:no"] == ["A", "", "\n", "", "", "", ""]
    assert stream.stopped
    assert stream.finish() == ""


def test_what_looked_like_a_stop_string_comes_in_the_end() -> None:
    assert chunks(BYTES, [ord(c) for c in "ab\nQ"], ["\nQ:"]) == ["a", "b", "", "\nQ"]


piece_tokens = st.lists(st.sampled_from([1, 2, 3, 4, 5, 262]), max_size=8)


@given(piece_tokens)
def test_sentencepiece_text_is_the_decoded_text(tokens: list[int]) -> None:
    assert "".join(chunks(PIECES, tokens, [])) == PIECES.decode(tokens)


@given(st.text(alphabet="a\né€🎉", max_size=6))
def test_sentencepiece_byte_tokens_make_characters(text: str) -> None:
    tokens = [2, *(6 + b for b in text.encode()), 3]
    assert "".join(chunks(PIECES, tokens, [])) == PIECES.decode(tokens) == f"the{text}cat"
