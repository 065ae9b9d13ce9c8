"""What the judge is asked, under templates of every kind, and how its verdict is read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from betoken.answers.judge import Judge, VerdictTokens
from betoken.errors import InputError
from betoken.models.tokenizer import Tokenizer
from model_files import trained_bpe

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
THINKING = "{% if add_generation_prompt and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
QUESTION = "What is 2 + 2?"


def tokenizer(template: str | None = TURNS + ASK) -> Tokenizer:
    texts = ["the quick brown fox Correct Incorrect correct incorrect"] * 3
    core = trained_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), texts, 300)
    return Tokenizer(core, template)


def read(judge: Judge, codec: Tokenizer, prompt: object = QUESTION, *, raw: bool = False) -> tuple[str, str]:
    """The texts before and behind the draft."""
    asked = judge.prompt(codec, prompt, raw=raw)  # type: ignore[arg-type]
    return codec.decode(asked.before, skip_special=False), codec.decode(asked.suffix, skip_special=False)


def test_suffix_layout_is_the_targets_own_prompt_and_a_second_turn() -> None:
    codec = tokenizer()
    before, suffix = read(Judge(instruction="Right?"), codec)
    assert before == codec.template.apply([{"role": "user", "content": QUESTION}])
    assert suffix == "<|im_end|>\n<|im_start|>user\nRight?<|im_end|>\n<|im_start|>assistant\n"


def test_prompt_layout_has_a_short_suffix() -> None:
    before, suffix = read(Judge(layout="prompt", instruction="Right?"), tokenizer())
    assert before == f"<|im_start|>user\nRight?\n\nQuestion:\n{QUESTION}\n\nAnswer:\n"
    assert suffix == "<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("layout", ["suffix", "prompt"])
def test_system_prompts_and_earlier_turns_are_kept(layout: str) -> None:
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": QUESTION},
    ]
    before, suffix = read(Judge(layout=layout), tokenizer(), talk)  # type: ignore[arg-type]
    assert before.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    assert before.count("Be brief.") == 1
    assert all(text in before for text in ("Hi", "Hello", QUESTION))
    assert "Be brief." not in suffix


@pytest.mark.parametrize("layout", ["suffix", "prompt"])
@pytest.mark.parametrize(
    "template",
    [
        TURNS + ASK + THINKING,  # writes the empty block where thinking is off
        TURNS + ASK.replace("assistant\n", "assistant\n<think>\n") + "{# </think> #}",  # opens a block itself
        TURNS + ASK + "{# </think> is stripped from old turns #}",  # leaves the block to the model
    ],
)
def test_the_suffix_of_a_thinking_model_carries_an_empty_think_block(layout: str, template: str) -> None:
    _, suffix = read(Judge(layout=layout), tokenizer(template))  # type: ignore[arg-type]
    assert suffix.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_without_a_template_the_judge_reads_plain_text() -> None:
    codec = tokenizer(None)
    before, suffix = read(Judge(instruction="Right?"), codec, raw=True)
    assert (before, suffix) == (QUESTION, "\n\nRight?\nVerdict:")
    before, suffix = read(Judge(layout="prompt", instruction="Right?"), codec, raw=True)
    assert (before, suffix) == (f"Right?\n\nQuestion:\n{QUESTION}\n\nAnswer:\n", "\n\nVerdict:")
    with pytest.raises(InputError, match="--raw"):
        Judge().prompt(codec, QUESTION)
    with pytest.raises(InputError, match="raw"):
        Judge().prompt(codec, [{"role": "user", "content": "x"}], raw=True)


def test_a_template_that_hides_the_answer_is_refused() -> None:
    hides = "{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(InputError, match="does not show the answer"):
        Judge().prompt(tokenizer(hides), QUESTION)


def test_real_template(smollm2: Path) -> None:
    codec = Tokenizer.from_folder(smollm2)
    asked = Judge().prompt(codec, QUESTION)
    whole = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "It is 4."},
        {"role": "user", "content": codec.decode(asked.suffix).split("user\n")[1].split("\nassistant")[0]},
    ]
    draft = codec.encode("It is 4.", add_special=False)
    expected = codec.encode(codec.template.apply(whole), add_special=False)
    assert [*asked.before, *draft, *asked.suffix] == expected


def test_verdict_tokens_with_and_without_space_in_every_case(smollm2: Path) -> None:
    codec = Tokenizer.from_folder(smollm2)
    found = VerdictTokens.of(codec, "Correct", "Incorrect")
    assert {codec.decode([token]) for token in found.correct} == {
        "Correct",
        " Correct",
        "correct",
        " correct",
        "COR",
        " COR",
    }
    assert " incorrect" in {codec.decode([token]) for token in found.incorrect}
    assert not set(found.correct) & set(found.incorrect)


def test_words_that_begin_alike_are_refused() -> None:
    with pytest.raises(InputError, match="begins"):
        VerdictTokens.of(tokenizer(), "Correct", "correct")


def test_confidence_is_normalised_over_the_two_sets() -> None:
    tokens = VerdictTokens((1, 4), (2,))
    logits = np.array([9.0, 1.0, 0.5, 7.0, -0.5], dtype=np.float32)
    good, bad = math.exp(1.0) + math.exp(-0.5), math.exp(0.5)
    odds = tokens.log_odds(logits)
    assert Judge().confidence(odds) == pytest.approx(good / (good + bad), abs=1e-12)
    cooled = good**0.25 / (good**0.25 + bad**0.25)
    assert Judge(temperature=4.0).confidence(odds) == pytest.approx(cooled, abs=1e-12)
    assert Judge(likelihood=2.0).confidence(odds, -0.3) == pytest.approx(1 / (1 + math.exp(-(odds - 0.6))), abs=1e-12)
    assert Judge().confidence(1e5) == 1.0
    assert Judge().confidence(-1e5) == 0.0


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"correct": " "}, {"likelihood": math.inf}])
def test_settings_that_give_no_verdict(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Judge(**wrong)  # type: ignore[arg-type]
