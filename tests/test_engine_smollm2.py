"""Requests of different settings that join and leave a batch, on the default model in int8: each as alone."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

import betoken
from betoken import Engine, GenerationSettings

PROMPTS = (
    "Write one line about rain.",
    "Repeat this code:\n\ndef area(width, height):\n    return width * height\n",
    "Name a river. 🌧",
)
SETTINGS = (
    GenerationSettings(max_new_tokens=16, temperature=0.8, seed=5, frequency_penalty=0.5, logprobs=2),
    GenerationSettings(max_new_tokens=9, repetition_penalty=1.1, min_new_tokens=4),
    GenerationSettings(max_new_tokens=12, temperature=1.2, top_p=0.9, seed=2, presence_penalty=0.6, ignore_eos=True),
)


@pytest.fixture(scope="module")
def plain(smollm2: Path) -> Engine:
    return betoken.load("smollm2-135m", drafter="none", dtype="int8")


@pytest.mark.parametrize("drafter", ["suffix", "ptd"])
def test_rows_that_come_and_go_are_as_alone(plain: Engine, drafter: str) -> None:
    fast = betoken.load("smollm2-135m", drafter=drafter, dtype="int8", nodes=6)
    streams = [fast.stream(prompt, settings=one) for prompt, one in zip(PROMPTS, SETTINGS, strict=True)]
    list(islice(streams[0], 3))
    list(islice(streams[1], 2))  # joins a row that is on its way
    list(islice(streams[2], 2))
    list(streams[1])  # leaves first, between two steps
    for stream, prompt, settings in zip(streams, PROMPTS, SETTINGS, strict=True):
        found = stream.finish()
        [alone] = plain.generate(prompt, settings=settings)
        assert (found.text, found.tokens, found.finish_reason) == (alone.text, alone.tokens, alone.finish_reason)
        assert found.logprobs == alone.logprobs
        assert found.stats.exact and found.stats.reproducible
    assert not fast.decoder.rows


def test_samples_of_one_prompt_are_as_alone(plain: Engine) -> None:
    settings = GenerationSettings(max_new_tokens=8, temperature=1.0, seed=9)
    samples = plain.generate(PROMPTS[0], samples=3, settings=settings)
    assert len({one.text for one in samples}) > 1
    for one in samples:
        assert one.tokens == plain.stream(PROMPTS[0], sample=one.sample, settings=settings).finish().tokens
    assert samples[0].tokens == plain.generate(PROMPTS[0], settings=settings)[0].tokens
