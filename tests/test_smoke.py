from betoken.decode import Decoder, Request
from betoken.drafters.plain import Plain
from betoken.state import SamplingSettings, StopSettings
from betoken.testing import ToyTarget
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Replay


def test_plain_decoding_of_the_toy_follows_its_table() -> None:
    target = ToyTarget(seed=3)
    decoder = Decoder(target, Plain(), Replay(), FixedNodes(4))
    row = decoder.admit(Request([1, 2, 3], stop=StopSettings(max_new_tokens=9)))
    sampled = decoder.admit(
        Request([1, 2, 3], SamplingSettings(temperature=0.8, seed=5), StopSettings(max_new_tokens=9))
    )
    while any(one.finish_reason is None for one in (row, sampled)):
        decoder.step()
    text = [1, 2, 3]
    for token in row.new_tokens:
        assert token == int(target.next_logits(text).argmax())
        text.append(token)
    assert row.finish_reason in ("stop", "length")
    assert row.steps == len(row.new_tokens)
    assert sampled.new_tokens != row.new_tokens
