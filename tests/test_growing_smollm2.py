"""The drafters that grow their own drafts on a real model: plain decoding's tokens, in fewer forward passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from betoken.decode import Decoder, Request
from betoken.drafters import DRAFTERS
from betoken.drafters.plain import Plain
from betoken.models.load import Loaded, load_target
from betoken.registry import create
from betoken.state import SamplingSettings, StopSettings
from betoken.tree import Role
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Replay
from growing_toys import run_batch

TEXT = "one red bird, two blue birds, three red birds, four blue birds, five red birds, six blue birds, seven"
GROWING = ["ptd", "ptd:paper", "lookahead", "self-draft", "token-recycling"]


@pytest.fixture(scope="module", params=["float32", "int8"])
def model(smollm2: Path, request: pytest.FixtureRequest) -> Loaded:
    return load_target(str(smollm2), dtype=request.param)


@pytest.fixture(scope="module")
def requests(model: Loaded) -> list[Request]:
    """A repetitive text, greedy, and a shorter one, sampled."""
    ids = model.tokenizer.encode(TEXT)
    return [
        Request(ids, stop=StopSettings(max_new_tokens=32)),
        Request(ids[:9], SamplingSettings(temperature=0.7, seed=3), StopSettings(max_new_tokens=12)),
    ]


@pytest.fixture(scope="module")
def plain(model: Loaded, requests: list[Request]) -> list[list[int]]:
    decoder = Decoder(model.target, Plain(), Replay(), FixedNodes(1))
    rows = [decoder.admit(request) for request in requests]
    while any(row.finish_reason is None for row in rows):
        decoder.step()
    return [row.new_tokens for row in rows]


@pytest.mark.parametrize("name", GROWING)
def test_same_tokens_as_plain_decoding_in_fewer_forwards(
    model: Loaded, requests: list[Request], plain: list[list[int]], name: str
) -> None:
    name, _, preset = name.partition(":")
    got, trees = run_batch(
        create("drafter", DRAFTERS, name, {"preset": preset} if preset else {}), model.target, requests, 24
    )
    assert got == plain
    forwards = sum(int(tree.roles[0, 0] == Role.PENDING) for tree in trees)  # of the first row, the longer one
    assert len(got[0]) > forwards
