"""Every setting through the Python face, on the toy target: what arrives, what is reported, what is promised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

import numpy as np
import pytest

from betoken.decode import Decoder, Request
from betoken.drafters.plain import Plain
from betoken.engine import Engine
from betoken.errors import InputError
from betoken.settings import GenerationSettings, SettingKeywords
from betoken.state import SamplingSettings, StopSettings
from betoken.testing import ToyTarget
from betoken.tuning.nodes import FixedNodes, NodePolicy
from betoken.verifiers import Verifier
from betoken.verifiers.asd import Asd
from betoken.verifiers.rejection import Rejection
from betoken.verifiers.relaxed import Typical
from betoken.verifiers.replay import Greedy, Replay
from test_engine import TOKENIZER, Oracle, Watched, engine_of, idle, long_engine

RELAXED = Asd(budget=30.0, gate=100.0, cap=8)


def toy_engine(verifier: Verifier, nodes: int = 4, seed: int = 3) -> Engine:
    """An engine whose drafter is right except in the last node of each draft."""
    target = Watched(7, seed=seed)
    return Engine(target, TOKENIZER, Oracle(target), verifier, FixedNodes(nodes))


def test_keywords_are_the_fields() -> None:
    assert get_type_hints(SettingKeywords) == get_type_hints(GenerationSettings)
    with pytest.raises(TypeError, match="temperatur"):
        GenerationSettings(temperatur=0.5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("asked", "sampling", "stop"),
    [
        ({"repetition_penalty": 4.0}, {"repetition_penalty": 4.0}, {}),
        ({"presence_penalty": 3.0}, {"presence_penalty": 3.0}, {}),
        ({"frequency_penalty": 2.0}, {"frequency_penalty": 2.0}, {}),
        ({"logit_bias": {1: -np.inf, 2: 3.5}}, {"logit_bias": {1: -np.inf, 2: 3.5}}, {}),
        ({"stop_ids": [1, 2, 3]}, {}, {"stop_ids": (1, 2, 3)}),
        ({"ignore_eos": True}, {}, {"ignore_eos": True}),
        ({"min_new_tokens": 15}, {}, {"min_new_tokens": 15}),
        ({"temperature": 1.3, "seed": 8}, {"temperature": 1.3, "seed": 8}, {}),
        ({"temperature": 1.3, "top_k": 2, "min_p": 0.3}, {"temperature": 1.3, "top_k": 2, "min_p": 0.3}, {}),
        ({"temperature": 1.3, "top_p": 0.3}, {"temperature": 1.3, "top_p": 0.3}, {}),
    ],
)
def test_each_setting_reaches_the_decoder(
    asked: dict[str, Any], sampling: dict[str, Any], stop: dict[str, Any]
) -> None:
    """Over some models, so that the setting makes a difference at all."""
    differs, prompt = False, "abaab"
    usual = {"temperature": asked["temperature"]} if "temperature" in asked else {}
    for seed in range(12):
        decoder = Decoder(ToyTarget(7, seed=seed), Plain(), Replay(), FixedNodes(1))
        row = decoder.admit(Request(TOKENIZER.encode(prompt), SamplingSettings(**sampling), StopSettings(20, **stop)))
        while row.finish_reason is None:
            decoder.step()
        fast = engine_of(seed, nodes=4)
        [result] = fast.generate(prompt, raw=True, max_new_tokens=20, **asked)
        assert (result.tokens, result.finish_reason) == (row.new_tokens, row.finish_reason)
        [again] = fast.generate(prompt, raw=True, settings=GenerationSettings(**asked), max_new_tokens=20)
        assert again.tokens == result.tokens
        differs = differs or result.tokens != fast.generate(prompt, raw=True, max_new_tokens=20, **usual)[0].tokens
    assert differs


def test_forced_and_banned_tokens() -> None:
    engine = engine_of(2, nodes=4)
    [forced] = engine.generate("ab", raw=True, max_new_tokens=9, logit_bias={2: 1000.0})
    assert forced.text == "b" * 9
    banned = dict.fromkeys((0, 2, 3, 4, 5, 6), -np.inf)
    assert engine.generate("ab", raw=True, max_new_tokens=5, logit_bias=banned)[0].text == "aaaaa"
    [ended] = engine.generate("ab", raw=True, logit_bias={2: 1000.0}, stop_ids=[2])
    assert (ended.tokens, ended.text, ended.finish_reason) == ([2], "", "stop")


@pytest.mark.parametrize("stop", [(), ("b",)])
def test_logprobs_are_those_of_the_target(stop: tuple[str, ...]) -> None:
    for seed in range(6):
        engine = engine_of(seed, nodes=4)
        [result] = engine.generate("ab", raw=True, max_new_tokens=12, logprobs=3, temperature=0.9, stop=stop)
        chunks = list(engine.stream("ab", raw=True, max_new_tokens=12, logprobs=3, temperature=0.9, stop=stop))
        assert result.logprobs is not None
        assert [chunk.logprob for chunk in chunks] == result.logprobs
        assert [one.token for one in result.logprobs] == result.tokens
        text = TOKENIZER.encode("ab")
        for one in result.logprobs:
            logits = engine.target.next_logits(text).astype(np.float64)  # type: ignore[attr-defined]
            expected = logits - np.log(np.exp(logits).sum())
            assert one.logprob == pytest.approx(expected[one.token], abs=1e-5)
            best = sorted(range(7), key=lambda token: -expected[token])[:3]
            assert [other.token for other in one.top] == best
            assert [other.logprob for other in one.top] == pytest.approx(expected[best], abs=1e-5)
            spelled = {0: "<|end|>", 1: "a", 2: "b", 3: "\n", 4: "\ufffd", 5: "\ufffd", 6: "aba"}
            assert [other.text for other in (one, *one.top)] == [spelled[other.token] for other in (one, *one.top)]
            text.append(one.token)
    assert engine.generate("ab", raw=True, max_new_tokens=3)[0].logprobs is None
    [bare] = engine.generate("ab", raw=True, max_new_tokens=3, logprobs=0)
    assert bare.logprobs is not None and all(one.top == () for one in bare.logprobs)


def test_samples_come_prompt_by_prompt_and_equal_those_alone() -> None:
    asked: dict[str, Any] = {"raw": True, "max_new_tokens": 12, "temperature": 1.4, "seed": 5}
    prompts = ["ab" * 20, "a"]
    results = engine_of(1, nodes=4).generate(prompts, samples=3, **asked)
    assert [(one.prompt_tokens, one.sample) for one in results] == [(n, k) for n in (40, 1) for k in range(3)]
    for index, one in enumerate(results):
        alone = engine_of(1).stream(prompts[index // 3], sample=index % 3, **asked).finish()
        assert one.tokens == alone.tokens
    singles = engine_of(1).generate(prompts, **asked)
    assert [one.tokens for one in singles] == [results[0].tokens, results[3].tokens]
    assert len({tuple(one.tokens) for one in results[:3]}) == 3


def test_samples_share_their_prefill() -> None:
    engine = engine_of(1)
    assert isinstance(engine.target, Watched)
    results = engine.generate("ab" * 100, raw=True, samples=8, temperature=1.0, max_new_tokens=4)
    assert engine.target.scored == 199 + sum(one.stats.forwards for one in results)
    assert idle(engine)


def test_exceptions_and_budget_are_those_of_the_target() -> None:
    """Each exception against the toy's own table, and the running account in the chunks."""
    seen = 0
    for seed in range(8):
        engine = toy_engine(RELAXED, seed=seed)
        stream = engine.stream("ab", raw=True, max_new_tokens=24, budget=20.0, ignore_eos=True)
        chunks = list(stream)
        result = stream.result
        assert result.exceptions == tuple(chunk.exception for chunk in chunks if chunk.exception)
        spent = 0.0
        for position, chunk in enumerate(chunks):
            text = [*TOKENIZER.encode("ab"), *result.tokens[:position]]
            logits = engine.target.next_logits(text)  # type: ignore[attr-defined]
            best = int(logits.argmax())
            if chunk.exception is None:
                assert chunk.token == best
            else:
                one = chunk.exception
                assert (one.position, one.chosen, one.preferred) == (position, chunk.token, best)
                assert one.regret == pytest.approx(float(logits[best] - logits[chunk.token]), abs=1e-5)
                assert one.chosen_text == TOKENIZER.token_bytes(chunk.token).decode("utf-8", "replace")
                assert one.preferred_text == TOKENIZER.token_bytes(best).decode("utf-8", "replace")
                spent += one.regret
            assert chunk.budget_spent == pytest.approx(spent)
            assert chunk.budget_left == pytest.approx(20.0 - spent)
        assert (result.budget_spent, result.budget_left) == (chunks[-1].budget_spent, chunks[-1].budget_left)
        assert spent <= 20.0
        seen += len(result.exceptions)
    assert seen > 8


def test_what_a_stop_string_cuts_off_is_not_reported() -> None:
    for seed in range(20):
        engine = toy_engine(RELAXED, nodes=6, seed=seed)
        [one] = engine.generate("ab", raw=True, max_new_tokens=24, stop=["b", "é"], logprobs=1)
        assert one.logprobs is not None and len(one.logprobs) == len(one.tokens)
        assert all(exception.position < len(one.tokens) for exception in one.exceptions)
        assert one.budget_spent == pytest.approx(sum(exception.regret for exception in one.exceptions))


@dataclass
class Restless(FixedNodes):
    """Says that it goes by timings."""

    reproducible = False


@dataclass
class Sharing(Oracle):
    """Says that requests learn from each other."""

    shares_state = True


@pytest.mark.parametrize(
    ("verifier", "asked", "lossless", "exact", "reproducible"),
    [  # reproducible: with fixed nodes, with auto nodes, with shared state
        (Replay(), {}, True, True, (True, True, True)),
        (Replay(), {"temperature": 1.0}, True, True, (True, True, True)),
        (Greedy(), {}, True, True, (True, True, True)),
        (Rejection(), {"temperature": 1.0}, True, False, (True, False, False)),
        (Rejection(), {}, True, True, (True, True, True)),
        (RELAXED, {}, False, False, (True, False, False)),
        (RELAXED, {"temperature": 1.0}, False, False, (True, False, False)),
        (RELAXED, {"budget": 0.0}, True, True, (True, True, True)),
        (Asd(budget=0.0), {}, True, True, (True, True, True)),
        (Typical(), {"temperature": 1.0}, False, False, (True, False, False)),
        (Typical(), {"temperature": 1.0, "budget": 0.0}, True, True, (True, True, True)),
    ],
)
def test_what_is_promised(
    verifier: Verifier, asked: dict[str, Any], lossless: bool, exact: bool, reproducible: tuple[bool, ...]
) -> None:
    cases: list[tuple[NodePolicy, type[Oracle]]] = [
        (FixedNodes(4), Oracle),
        (Restless(4), Oracle),
        (FixedNodes(4), Sharing),
    ]
    for (policy, drafter), expected in zip(cases, reproducible, strict=True):
        target = ToyTarget(7, seed=4)
        engine = Engine(target, TOKENIZER, drafter(target), verifier, policy)
        stats = engine.generate("ab", raw=True, max_new_tokens=4, **asked)[0].stats
        assert (stats.lossless, stats.exact, stats.reproducible) == (lossless, exact, expected)


class Rounding(ToyTarget):
    """A target that cannot promise the same bits for every tree."""

    exact = False


def test_no_promise_is_exact_on_a_target_that_is_not() -> None:
    for policy, expected in ((FixedNodes(4), True), (Restless(4), False)):
        target = Rounding(7)
        stats = Engine(target, TOKENIZER, Oracle(target), Replay(), policy).generate("ab", raw=True)[0].stats
        assert (stats.exact, stats.reproducible) == (False, expected)


def test_streams_of_different_settings_come_and_go() -> None:
    engine = long_engine(4)
    asked: list[Mapping[str, Any]] = [
        {"max_new_tokens": 14, "temperature": 1.2, "seed": 3, "presence_penalty": 1.0},
        {"max_new_tokens": 5, "repetition_penalty": 1.7, "logprobs": 2},
        {"max_new_tokens": 9, "temperature": 0.6, "logit_bias": {1: 2.0}, "ignore_eos": True},
    ]
    texts = ["ab" * 30, "é", "aba"]
    streams = [engine.stream(text, raw=True, **one) for text, one in zip(texts, asked, strict=True)]
    next(streams[0])
    list(streams[1])  # joins after the first and leaves before it
    next(streams[2])
    for stream, text, one in zip(streams, texts, asked, strict=True):
        [alone] = long_engine(1).generate(text, raw=True, **one)
        found = stream.finish()
        assert (found.tokens, found.finish_reason, found.logprobs) == (
            alone.tokens,
            alone.finish_reason,
            alone.logprobs,
        )
    assert idle(engine)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        *[({f.name: float("nan")}, f.name) for f in fields(GenerationSettings) if f.name not in ("ignore_eos",)
          and f.type in ("int", "float", "int | None", "float | None")],
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0"),
        ({"repetition_penalty": "2"}, "repetition_penalty: '2' is not a number"),
        ({"logit_bias": {7: 1.0}}, "logit_bias has a token id outside 0..6"),
        ({"logit_bias": {-1: 1.0}}, "use a token id"),
        ({"logit_bias": {1.5: 1.0}}, "1.5 is not a whole number"),
        ({"logit_bias": {1: float("nan")}}, "bias nan"),
        ({"logit_bias": dict.fromkeys(range(7), -np.inf)}, "leave at least one"),
        ({"stop_ids": [7]}, "stop_ids has a token id outside 0..6"),
        ({"stop_ids": [-1]}, "stop_ids: -1 is no token id"),
        ({"stop_ids": [1.0]}, "stop_ids: 1.0 is not a whole number"),
        ({"stop": [3]}, "stop: 3 is not a text"),
        ({"min_new_tokens": -1}, "min_new_tokens must be at least 0"),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens 5 is above max_new_tokens 4"),
        ({"logprobs": -1}, "logprobs must be at least 0"),
        ({"budget": -1.0}, "budget must be at least 0"),
        ({"budget": 2.0}, "verifier replay has no budget"),
        ({"samples": 0}, "samples must be at least 1"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used(asked: dict[str, Any], told: str) -> None:
    engine = engine_of()
    with pytest.raises(InputError, match=told.replace("(", r"\(")) as error:
        engine.generate("a", raw=True, **asked)
    assert "\n" not in str(error.value)
    assert idle(engine)


def test_a_budget_above_the_verifier_s_is_refused() -> None:
    engine = toy_engine(RELAXED)
    with pytest.raises(InputError, match="above the verifier's budget"):
        engine.generate("a", raw=True, budget=31.0)
    with pytest.raises(InputError, match="sample must be at least 0"):
        engine.stream("a", raw=True, sample=-1)
    for verifier in (Greedy(), Rejection(), Typical()):
        with pytest.raises(InputError, match=f"verifier {verifier.name} has no budget"):
            toy_engine(verifier).generate("a", raw=True, budget=1.0)
