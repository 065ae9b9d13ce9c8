"""Whatever is drafted, `replay` commits the tokens that a loop without trees, caches and decoders would."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from betoken import noise
from betoken.decode import Request
from betoken.errors import InputError
from betoken.sampling import law
from betoken.state import Row, SamplingSettings, State, StopSettings
from betoken.testing import OracleDrafter, RandomTreeDrafter, ToyTarget
from betoken.testing.running import decode
from betoken.verifiers.replay import Greedy, Replay


def slow_sampling(
    target: ToyTarget, prompt: list[int], sampling: SamplingSettings, length: int, gumbel: bool
) -> list[int]:
    """Plain sampling from its definition: u_k picks token k."""
    text = list(prompt)
    for position in range(length):
        logits = target.next_logits(text)
        if sampling.temperature == 0:
            text.append(int(logits.argmax()))
            continue
        probabilities = law(logits, sampling)
        if gumbel:
            with np.errstate(divide="ignore"):
                noisy = np.log(probabilities) + noise.gumbels(sampling.seed, 0, position, len(logits))
            text.append(int(noisy.argmax()))
        else:
            u = noise.uniform(sampling.seed, 0, position)
            text.append(next(t for t in range(len(logits)) if probabilities[: t + 1].sum() > u))
    return text[len(prompt) :]


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 4), min_size=1, max_size=9),
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.5]),
    seed=st.integers(0, 2**70),
    gumbel=st.booleans(),
    nodes=st.integers(1, 12),
    drafter=st.sampled_from(["oracle", "half", "random tree"]),
)
def test_replay_is_plain_sampling(
    prompt: list[int], temperature: float, seed: int, gumbel: bool, nodes: int, drafter: str
) -> None:
    target = ToyTarget(far=True)
    rule = "gumbel" if gumbel else "inverse-cdf"
    makers = {
        "oracle": OracleDrafter(rule=rule),
        "half": OracleDrafter(0.5, rule=rule),
        "random tree": RandomTreeDrafter(seed % 97),
    }
    chosen = makers[drafter]
    chosen.start(target)
    sampling = SamplingSettings(temperature, top_p=0.95, seed=seed)
    stop = StopSettings(max_new_tokens=14, ignore_eos=True)
    row = decode(target, chosen, Replay(rule), [Request(prompt, sampling, stop)], nodes)[0]
    assert row.new_tokens == slow_sampling(target, prompt, sampling, 14, gumbel)
    if drafter == "oracle" and nodes >= 5:
        assert row.steps == 3


def test_samples_of_one_request_differ() -> None:
    target = ToyTarget(far=True)
    drafter = RandomTreeDrafter()
    drafter.start(target)
    stop = StopSettings(max_new_tokens=20, ignore_eos=True)
    sampling = SamplingSettings(temperature=1.0, seed=4)
    rows = decode(target, drafter, Replay(), [Request([1], sampling, stop, sample=n) for n in range(3)], 6)
    assert len({tuple(row.new_tokens) for row in rows}) == 3


def test_greedy_refuses_a_temperature() -> None:
    row = Row(0, 0, np.array([1]), SamplingSettings(temperature=0.8), StopSettings(), frozenset(), 9)
    with pytest.raises(InputError, match="use replay"):
        Greedy().check(State((row,)))
