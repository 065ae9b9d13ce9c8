"""Every sampling setting under speculation: replay gives plain decoding's tokens and log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from betoken.decode import Decoder, Request
from betoken.drafters.plain import Plain
from betoken.errors import InputError
from betoken.sampling import logprob
from betoken.state import SamplingSettings, StopSettings
from betoken.testing import OracleDrafter, RandomTreeDrafter, ToyTarget
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Replay

V = 6
TARGET = ToyTarget(V, seed=7, sharpness=1.5, context=64)

biases = st.dictionaries(st.integers(0, V - 2), st.sampled_from([-np.inf, -2.0, 0.5, 3.0, 1e4]), max_size=3)


@st.composite
def requests(draw) -> Request:
    """Random combinations of all settings. Token V - 1 is never banned nor an end token, so that one always remains."""
    sampling = SamplingSettings(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 1.7])),
        top_k=draw(st.sampled_from([0, 1, 3])),
        top_p=draw(st.sampled_from([1.0, 0.8, 0.4])),
        min_p=draw(st.sampled_from([0.0, 0.1])),
        seed=draw(st.integers(0, 2**64 - 1)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.7])),
        presence_penalty=draw(st.sampled_from([0.0, 0.8, -0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.4, -0.2])),
        logit_bias=draw(biases),
    )
    stop = StopSettings(
        max_new_tokens=draw(st.integers(1, 20)),
        stop_ids=tuple(draw(st.lists(st.integers(0, V - 2), max_size=2))),
        ignore_eos=draw(st.booleans()),
        min_new_tokens=draw(st.sampled_from([0, 0, 3, 9])),
    )
    prompt = draw(st.lists(st.integers(0, V - 1), min_size=1, max_size=8))
    return Request(prompt, sampling, stop, sample=draw(st.integers(0, 3)), logprobs=draw(st.sampled_from([None, 0, 3])))


def answers(drafter, wanted, nodes, rule="inverse-cdf"):
    """(tokens, finish reason, log-probabilities) of each request, and the steps of all."""
    drafter.start(TARGET)
    decoder = Decoder(TARGET, drafter, Replay(rule), FixedNodes(nodes), prefill_chunk=3)
    rows = [decoder.admit(request) for request in wanted]
    reported = {row.id: [] for row in rows}
    while any(row.finish_reason is None for row in rows):
        for advance in decoder.step():
            reported[advance.row.id] += advance.logprobs
    return [(row.new_tokens, row.finish_reason, reported[row.id]) for row in rows], sum(row.steps for row in rows)


def slow_answer(request: Request):
    """Plain decoding with each setting spelt out, independent of `sampling.adjust`."""
    text, new = list(request.prompt), []
    s, stop = request.sampling, request.stop
    ends = set(stop.stop_ids) | (set() if stop.ignore_eos else {0})
    reason, logprobs = None, []
    while reason is None:
        z = [float(value) for value in TARGET.next_logits(text)]
        for token in range(V):
            if token in text and s.repetition_penalty != 1.0:
                z[token] = z[token] / s.repetition_penalty if z[token] > 0 else z[token] * s.repetition_penalty
            if token in new:
                z[token] -= s.presence_penalty + s.frequency_penalty * new.count(token)
            z[token] += s.logit_bias.get(token, 0.0)
            if token in ends and len(new) < stop.min_new_tokens:
                z[token] = -np.inf
        yield_token = yield z
        total = np.logaddexp.reduce(np.array(z))
        logprobs.append([value - total for value in z])
        text.append(yield_token)
        new.append(yield_token)
        if yield_token in ends:
            reason = "stop"
        elif len(new) == stop.max_new_tokens:
            reason = "length"
        elif len(text) == TARGET.context:
            reason = "context"
    return reason, logprobs


@settings(max_examples=120, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=3), st.integers(0, 99), st.integers(2, 12))
def test_any_draft_gives_plain_decoding_s_answer(wanted: list[Request], seed: int, nodes: int) -> None:
    plain, plain_steps = answers(Plain(), wanted, 1)
    assert answers(RandomTreeDrafter(seed), wanted, nodes)[0] == plain
    drafted, steps = answers(OracleDrafter(0.7, seed=seed), wanted, nodes)
    assert drafted == plain
    assert steps <= plain_steps
    for (tokens, _, logprobs), request in zip(plain, wanted, strict=True):
        assert len(logprobs) == (0 if request.logprobs is None else len(tokens))


@settings(max_examples=30, deadline=None)
@given(requests(), st.integers(0, 99))
def test_gumbel_too(request: Request, seed: int) -> None:
    plain, _ = answers(Plain(), [request], 1, "gumbel")
    assert answers(RandomTreeDrafter(seed), [request], 9, "gumbel")[0] == plain


@settings(max_examples=120, deadline=None)
@given(requests(), st.integers(0, 99))
def test_settings_mean_what_they_say(request: Request, seed: int) -> None:
    """Every committed token, its end and its log-probabilities against a slow plain decoder."""
    ((tokens, reason, logprobs),), _ = answers(RandomTreeDrafter(seed), [request], 9)
    slow = slow_answer(request)
    z = next(slow)
    for n, token in enumerate(tokens):
        assert z[token] > -np.inf
        if request.sampling.temperature == 0.0:
            assert z[token] >= max(z) - 1e-4
        try:
            z = slow.send(token)
        except StopIteration as end:
            assert n == len(tokens) - 1
            told, expected = end.value
    assert told == reason
    for one, token, law in zip(logprobs, tokens, expected, strict=bool(logprobs)) if logprobs else ():
        assert one.token == token
        assert one.logprob == pytest.approx(law[token], abs=1e-3)
        assert len(one.top) == min(request.logprobs or 0, sum(value > -np.inf for value in law))
        best = sorted(law, reverse=True)[: len(one.top)]
        assert [value for _, value in one.top] == pytest.approx(best, abs=1e-3)


def test_logprobs_by_hand() -> None:
    adjusted = np.log(np.array([0.25, 0.5, 0.125, 0.125], dtype=np.float32))
    one = logprob(adjusted, 2, 3)
    assert one.token == 2
    assert one.logprob == pytest.approx(np.log(0.125))
    assert [token for token, _ in one.top] == [1, 0, 2]
    assert logprob(adjusted, 2, 0).top == ()
    assert len(logprob(adjusted, 2, 99).top) == 4
    adjusted[1] = -np.inf
    assert [token for token, _ in logprob(adjusted, 2, 4).top] == [0, 2, 3]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request([1], SamplingSettings(logit_bias={V: 1.0})), "logit_bias has a token id outside 0..5"),
        (Request([1], stop=StopSettings(stop_ids=(-1,))), "stop_ids has a token id outside 0..5"),
        (Request([1], logprobs=-1), "logprobs must be at least 0"),
        (Request([1], SamplingSettings(logit_bias=dict.fromkeys(range(V), -np.inf))), "ban every token"),
        (
            Request(
                [1], SamplingSettings(logit_bias={1: -np.inf}), StopSettings(stop_ids=(2, 3, 4, 5), min_new_tokens=1)
            ),
            "ban every token",
        ),
    ],
)
def test_impossible_settings_are_refused(request_: Request, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Decoder(TARGET, Plain(), Replay(), FixedNodes(1)).admit(request_)


class Counting(ToyTarget):
    """Counts the nodes it scores."""

    nodes = 0

    def forward(self, tree, cache, slots, hidden_layers=()):
        self.nodes += int(tree.counts.sum())
        return super().forward(tree, cache, slots, hidden_layers)


@pytest.mark.parametrize("length", [1, 2, 7, 40])
def test_samples_of_one_prompt_compute_it_once(length: int) -> None:
    target = Counting(V, seed=7)
    decoder = Decoder(target, Plain(), Replay(), FixedNodes(1), prefill_chunk=16)
    prompt = [1 + n % (V - 1) for n in range(length)]
    stop = StopSettings(max_new_tokens=5, ignore_eos=True)
    rows = [decoder.admit(Request(prompt, SamplingSettings(1.0, seed=3), stop, sample=n)) for n in range(6)]
    ready = []
    while any(row.finish_reason is None for row in rows):
        ready.append(len(decoder.step()))
    assert target.nodes == length - 1 + 6 * 5
    # All samples start in the step that computes the last chunk of the prompt.
    assert set(ready) == ({6} if length <= 17 else {0, 6})
    alone = []
    for n in range(6):
        decoder = Decoder(ToyTarget(V, seed=7), Plain(), Replay(), FixedNodes(1))
        row = decoder.admit(Request(prompt, SamplingSettings(1.0, seed=3), stop, sample=n))
        while row.finish_reason is None:
            decoder.step()
        alone.append(row.new_tokens)
    assert [row.new_tokens for row in rows] == alone
    assert len({tuple(tokens) for tokens in alone}) > 1


def test_other_prompts_wait_for_their_own_chunk() -> None:
    """One chunk is computed a step, also when rows that share everything are taken in beside it."""
    target = Counting(V, seed=7)
    decoder = Decoder(target, Plain(), Replay(), FixedNodes(1), prefill_chunk=4)
    first = [1, 2, 3, 4, 5, 1, 2, 3, 4]
    stop = StopSettings(max_new_tokens=30, ignore_eos=True)
    for prompt in (first, first, first[::-1], first):
        decoder.admit(Request(prompt, stop=stop))
    seen = []
    for _ in range(4):
        before = target.nodes
        ready = len(decoder.step())
        seen.append((ready, target.nodes - before - ready))
    assert seen == [(0, 4), (2, 4), (2, 4), (4, 4)]
