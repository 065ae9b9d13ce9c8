"""The tokenizer wrapper: ids, bytes and chat prompts against transformers and the text itself."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, normalizers, pre_tokenizers

from betoken.errors import InputError
from betoken.models.tokenizer import Tokenizer
from model_files import tiny_bpe

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi \u00e9 <&>"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]


def sentencepiece_like() -> Core:
    """As Llama 2's tokenizer.json: pieces with U+2581 and bytes for what has none."""
    pieces = ["<unk>", "<s>", *[f"<0x{byte:02X}>" for byte in range(256)], "\u2581", "a", "b", "\u2581a", "ab"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    core = Core(models.BPE(vocabulary, [("\u2581", "a"), ("a", "b")], byte_fallback=True, unk_token="<unk>"))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return core


def saved(folder: Path, core: Core, **config: Any) -> Path:
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", **config})
    )
    return folder


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_bytes_of_byte_level_tokens(text: str) -> None:
    tokenizer = Tokenizer(tiny_bpe())
    ids = tokenizer.encode(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.decode(ids, skip_special=False) == text


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab \u00e9\u65e5\U0001f389<0x", max_size=20))
def test_bytes_of_sentencepiece_tokens(text: str) -> None:
    tokenizer = Tokenizer(sentencepiece_like())
    ids = tokenizer.encode(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == (" " + text if text else "").encode()
    assert tokenizer.decode(ids) == text


def test_special_tokens_and_ids_without_a_token() -> None:
    tokenizer = Tokenizer(tiny_bpe())
    ids = tokenizer.encode("a<|im_end|>b")
    assert tokenizer.special_ids == {0, 1, 2}
    assert ids[1] == 2
    assert (tokenizer.decode(ids), tokenizer.decode(ids, skip_special=False)) == ("ab", "a<|im_end|>b")
    assert tokenizer.token_bytes(2) == b"<|im_end|>"
    assert tokenizer.token_bytes(10**6) == tokenizer.token_bytes(-1) == tokenizer.token_bytes(1 << 40) == b""
    assert tokenizer.decode([10**6]) == ""


TEMPLATES = {
    "plain": "{% for m in messages %}\n{{ m['role'] }}: {{ m.content | trim }}{{ eos_token }}\n{% endfor %}\n"
    "{% if add_generation_prompt %}assistant:{% endif %}",
    "json and loops": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m | tojson }}"
    "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}{{ messages | tojson(indent=2) }}",
    "generation": "{% for m in messages %}  {% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "tools": "{% if tools %}TOOLS{% endif %}{% if documents is none %}none{% endif %}"
    "{% set ns = namespace(x=1) %}{{ ns.x }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("place", ["settings", "named", "file"])
def test_chat_prompts_are_those_of_transformers(name: str, place: str, tmp_path: Path) -> None:
    template: Any = TEMPLATES[name]
    if place == "named":
        template = [{"name": "other", "template": "x"}, {"name": "default", "template": template}]
    saved(tmp_path, tiny_bpe(), **({} if place == "file" else {"chat_template": template}))
    if place == "file":
        (tmp_path / "chat_template.jinja").write_text(template)
    ours, theirs = Tokenizer.from_folder(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert ours.chat_template == TEMPLATES[name]
    for ask in (True, False):
        expected = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=ask)
        assert ours.template.apply(CHAT, add_generation_prompt=ask) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.__class__.__base__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ raise_exception('only users may speak') }}",
        "{{ messages[0].content + 1 }}",
        "{{ missing.name }}",
        "{% for m in messages %}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_a_template_that_misbehaves_is_one_error(template: str) -> None:
    with pytest.raises(InputError, match="chat template") as caught:
        Tokenizer(tiny_bpe(), template).template.apply(CHAT)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "non-empty list"),
        ("hello", "non-empty list"),
        ({"role": "user", "content": "x"}, "non-empty list"),
        (None, "non-empty list"),
        (["hello"], "message 1 must be an object"),
        ([CHAT[0], {"role": "user"}], "message 2: content"),
        ([{"content": "x"}], "message 1: role"),
        ([{"role": "", "content": "x"}], "role is empty"),
        ([{"role": "user", "content": [{"type": "image"}]}], "message 1: content must be text"),
        ([{"role": 3, "content": "x"}], "message 1: role must be text"),
    ],
)
def test_bad_messages(messages: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Tokenizer(tiny_bpe(), "x").template.apply(messages)


def test_models_without_a_template_or_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no chat template"):
        Tokenizer(tiny_bpe()).template.apply(CHAT)
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model"')
    with pytest.raises(InputError, match="corrupt tokenizer"):
        Tokenizer.from_folder(tmp_path)
    core = Core(models.WordLevel({"a": 0}, unk_token="a"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(InputError, match="not supported"):
        Tokenizer(core)


def test_padding_and_truncation_of_a_training_setup_are_off() -> None:
    core = tiny_bpe()
    core.enable_truncation(3)
    core.enable_padding(length=50)
    assert len(Tokenizer(core).encode("abcdefgh")) == len(tiny_bpe().encode("abcdefgh").ids) > 3


REAL = [
    "def f(x):\n    if x:\n\t\treturn 12345.678e9\n\n\n        # spaces      \r\n",
    "I'm can't WE'LL they'd I'VE, 3 and  4  and   55",
    "h\u00e9llo \u65e5\u672c\u8a9e\u30c6\u30b9\u30c8 \ud55c\uad6d \U0001f469\u200d\U0001f467 e\u0301 \u00bd\u2167",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "   lead and trail   ",
    "\n\n\n",
    "",
]


@pytest.mark.parametrize("text", REAL)
def test_the_real_tokenizer(text: str, smollm2: Path) -> None:
    ours, theirs = Tokenizer.from_folder(smollm2), transformers.AutoTokenizer.from_pretrained(smollm2)
    ids = ours.encode(text)
    assert ids == theirs(text)["input_ids"]
    assert b"".join(map(ours.token_bytes, ids)) == text.encode()
    assert ours.decode(ids, skip_special=False) == text
    digits = [i for i in ids if any(unicodedata.category(c) == "Nd" for c in ours.decode([i]))]
    assert all(len(ours.decode([i])) == 1 for i in digits)  # SmolLM2 reads one digit at a time


def test_the_real_chat(smollm2: Path) -> None:
    ours = Tokenizer.from_folder(smollm2)
    prompt = ours.template.apply([{"role": "user", "content": "Hi"}])
    assert prompt.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert ours.encode(prompt, add_special=False)[0] == 1


def test_transformers_is_not_imported() -> None:
    code = "import sys, betoken.models.tokenizer, betoken.models.store; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
