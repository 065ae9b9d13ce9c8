"""Copying drafters and a draft model on real weights: plain decoding's tokens, in fewer forward passes."""

from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from betoken.decode import Request
from betoken.drafters.draft_model import DraftModel, check_vocabularies
from betoken.drafters.drafter import Drafter
from betoken.drafters.plain import Plain
from betoken.drafters.prompt_lookup import PromptLookup
from betoken.drafters.suffix import Suffix
from betoken.models.load import Loaded, load_target
from betoken.state import Row, SamplingSettings, State, StopSettings
from betoken.testing.running import decode
from betoken.verifiers.replay import Replay

TEXT = "one red bird, two blue birds, three red birds, four blue birds, five red birds, six blue birds, seven"


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Loaded:
    return load_target(str(smollm2))


@pytest.fixture(scope="module")
def requests(model: Loaded) -> list[Request]:
    """A repetitive text, greedy, and its beginning, greedy and sampled: three lengths and three laws."""
    ids = model.tokenizer.encode(TEXT)
    return [
        Request(ids, stop=StopSettings(max_new_tokens=32, ignore_eos=True)),
        Request(ids[:9], SamplingSettings(temperature=0.8, seed=3), StopSettings(max_new_tokens=24)),
        Request(ids[:17], SamplingSettings(temperature=1.2, top_p=0.9, seed=4), StopSettings(max_new_tokens=16)),
    ]


def rows_of(model: Loaded, drafter: Drafter, requests: list[Request], nodes: int) -> list[Row]:
    drafter.start(model.target, model.target)
    return decode(model.target, drafter, Replay(), requests, nodes, prefill_chunk=64)


@pytest.fixture(scope="module")
def plain(model: Loaded, requests: list[Request]) -> list[list[int]]:
    return [rows_of(model, Plain(), [request], 1)[0].new_tokens for request in requests]


DRAFTERS = [
    PromptLookup(),
    Suffix(),
    Suffix(tree=True),
    DraftModel(depth=4),
    DraftModel(depth=3, width=2),
]


@pytest.mark.parametrize("drafter", DRAFTERS, ids=str)
def test_alone_and_in_a_batch_the_tokens_are_plain_decodings(
    model: Loaded, requests: list[Request], plain: list[list[int]], drafter: Drafter
) -> None:
    if not model.target.exact:
        pytest.skip("this machine's target does not promise equal logits for different node counts")
    together = rows_of(model, drafter, requests, 8)
    assert [row.new_tokens for row in together] == plain
    alone = rows_of(model, drafter, requests[:1], 8)[0]
    assert alone.new_tokens == plain[0]
    assert alone.steps < alone.generated


def test_smollm2_drafts_for_itself_without_a_miss(model: Loaded, requests: list[Request]) -> None:
    """Greedy and coupled: every draft is accepted, so 5 tokens a forward."""
    if not model.target.exact:
        pytest.skip("this machine's target does not promise equal logits for different node counts")
    row = rows_of(model, DraftModel(depth=4), requests[:1], 5)[0]
    assert row.steps == 7  # 32 tokens
    check_vocabularies(model.tokenizer, model.tokenizer)


@pytest.mark.parametrize("drafter", [PromptLookup(), Suffix()], ids=str)
def test_copying_costs_far_less_than_a_forward_pass(model: Loaded, drafter: Drafter) -> None:
    """Over 1,000 tokens of text that repeats in part, the median step stays below a millisecond on any machine."""
    ids = (model.tokenizer.encode(TEXT) + model.tokenizer.encode("and now for something else, red birds")) * 25
    row = Row(0, 0, np.array(ids[:800]), SamplingSettings(), StopSettings(), frozenset(), 8192)
    drafter.start(model.target)
    drafter.admit([row])
    drafter.propose(State((row,)), [16])
    times = []
    for token in ids[800:]:
        row.commit([token])
        began = perf_counter()
        drafter.propose(State((row,)), [16])
        times.append(perf_counter() - began)
    assert sorted(times)[len(times) // 2] < 1e-3
