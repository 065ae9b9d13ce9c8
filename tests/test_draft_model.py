"""The draft model: what it proposes, what its cache holds, and how its vocabulary may differ."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from betoken.decode import Decoder, Prefix, Request
from betoken.drafters.draft_model import DraftModel, check_vocabularies
from betoken.drafters.guesses import drawn, most_probable
from betoken.errors import InputError
from betoken.sampling import law
from betoken.state import Row, SamplingSettings, State, StopSettings
from betoken.testing import ToyCache, ToyTarget, plain_tokens
from betoken.testing.running import decode, finish
from betoken.tree import TokenTree
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.rejection import Rejection
from betoken.verifiers.replay import Replay


def run(drafter: DraftModel, target: ToyTarget, draft: ToyTarget, request: Request, nodes: int = 6) -> Row:
    drafter.start(target, draft)
    return decode(target, drafter, Replay(), [request], nodes)[0]


def held_by(drafter: DraftModel) -> ToyCache:
    """What the draft model's cache holds."""
    cache = drafter._started().cache
    assert isinstance(cache, ToyCache)
    return cache


def request(temperature: float = 0.0, length: int = 40, seed: int = 3) -> Request:
    sampling = SamplingSettings(temperature, seed=seed)
    return Request([1, 2, 3], sampling, StopSettings(max_new_tokens=length, ignore_eos=True))


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
@pytest.mark.parametrize("rule", ["inverse-cdf", "gumbel"])
def test_the_target_as_its_own_draft_model_is_always_right(temperature: float, rule: str) -> None:
    """Coupled guesses use the row's own random numbers, so with the same law every one of them is accepted."""
    target = ToyTarget()
    drafter = DraftModel(depth=4, rule=rule)
    drafter.start(target, ToyTarget())
    row = decode(target, drafter, Replay(rule), [request(temperature)], 5)[0]
    assert (row.generated, row.steps) == (40, 8)


def test_coupled_guesses_agree_more_often_than_greedy_ones() -> None:
    target, draft = ToyTarget(seed=1, sharpness=1.0), ToyTarget(seed=1, sharpness=1.1)
    coupled = sum(run(DraftModel(), target, draft, request(1.0, seed=s)).steps for s in range(5))
    greedy = sum(run(DraftModel(coupled=False), target, draft, request(1.0, seed=s)).steps for s in range(5))
    assert coupled < 0.6 * greedy


@dataclass
class Counting(ToyTarget):
    """A toy that counts its forward passes and the nodes they read."""

    passes: int = 0
    nodes: int = 0

    def __post_init__(self) -> None:
        ToyTarget.__init__(self, seed=2)

    def forward(self, tree, cache, slots, hidden_layers=()):  # type: ignore[no-untyped-def]
        self.passes += 1
        self.nodes += int(tree.counts.sum())
        return super().forward(tree, cache, slots, hidden_layers)


def test_accepted_drafts_are_not_read_again() -> None:
    """With itself as draft model: depth 4, 40 tokens, so 8 steps of 4 passes; each committed token is read once."""
    draft = Counting()
    row = run(DraftModel(depth=4), ToyTarget(seed=2), draft, request(), nodes=5)
    assert row.steps == 8
    assert draft.passes <= 1 + 8 * 4, "and one for the prompt"
    assert draft.nodes <= 3 + 40


@pytest.mark.parametrize("width", [1, 2])
def test_the_cache_holds_the_committed_text_and_slots_are_given_back(width: int) -> None:
    target, draft = ToyTarget(), ToyTarget(seed=5)
    drafter = DraftModel(depth=3, width=width, prefill_chunk=2)
    drafter.start(target, draft)
    decoder = Decoder(target, drafter, Replay(), FixedNodes(8))
    row = decoder.admit(request(0.9))
    cache = held_by(drafter)
    while row.finish_reason is None:
        before = list(row.tokens)
        decoder.step()
        (held,) = cache.slots.values()
        assert held[: len(before) - 1] == before[: len(held)][: len(before) - 1]
    decoder.release(row)
    assert cache.slots == {}


@dataclass
class Watched(DraftModel):
    """Remembers how many nodes its model had read when each step's draft began, and when it ended."""

    seen: list[tuple[int, int]] = field(default_factory=list, init=False)

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        model = self._started().model
        assert isinstance(model, Counting)
        before = model.nodes
        tree = super().propose(state, nodes)
        self.seen.append((before, model.nodes))
        return tree


def long_request(*ends: int, length: int = 12) -> Request:
    prompt = [1 + index * index % 4 for index in range(60)]
    return Request([*prompt, *ends], stop=StopSettings(max_new_tokens=length, ignore_eos=True))


def watching(nodes: int = 4) -> tuple[Decoder, Watched, Counting]:
    target, draft, drafter = ToyTarget(seed=2, far=True), Counting(), Watched(depth=3)
    drafter.start(target, draft)
    return Decoder(target, drafter, Replay(), FixedNodes(nodes), prefill_chunk=16), drafter, draft


def test_the_prompt_is_read_in_prefill() -> None:
    """It was read by the first draft: long prompts then counted as decoding, at less than half of plain speed."""
    decoder, drafter, draft = watching()
    row = decoder.admit(long_request())
    read = []
    while not drafter.seen:
        decoder.step()
        read.append(draft.nodes)
    assert read[:3] == [16, 32, 48]
    assert drafter.seen[0] == (59, 59 + 3), "the first draft reads the pending token and its own"
    finish(decoder, [row])
    assert row.new_tokens == plain_tokens(ToyTarget(seed=2, far=True), long_request())


def test_a_prompt_that_no_draft_will_follow_is_not_read() -> None:
    decoder, _, draft = watching(nodes=1)
    finish(decoder, [decoder.admit(long_request())])
    assert draft.passes == 0


def test_prefill_between_steps_of_other_rows_reads_each_token_once() -> None:
    decoder, drafter, draft = watching()
    first = decoder.admit(long_request())
    while not drafter.seen:
        decoder.step()
    second = decoder.admit(Request([4, *long_request(3, 1).prompt]))
    read = draft.nodes
    for step in range(4):
        decoder.step()
        before, after = drafter.seen[-1]
        assert before - read == (16 if step < 3 else 62 - 48), "a chunk of the second row, in prefill"
        read = after
    assert second.generated > 0
    finish(decoder, [first])
    assert first.new_tokens == plain_tokens(ToyTarget(seed=2, far=True), long_request())


@pytest.mark.parametrize("ends", [(), (3, 1), (1,) * 40], ids=["the same prompt", "a short rest", "a long rest"])
def test_what_was_read_of_another_row_is_taken_over(ends: tuple[int, ...]) -> None:
    """The target skips the shared part of its prefill, or all of it: then no chunk tells the draft model to read."""
    decoder, drafter, draft = watching()
    first = decoder.admit(long_request())
    while not drafter.seen:
        decoder.step()
    read = draft.nodes
    second = decoder.admit(long_request(*ends))
    while second.generated == 0:
        decoder.step()
    memory = drafter._started().memory(second)
    assert held_by(drafter).slots[memory.slot] == memory.text
    finish(decoder, [first, second])
    assert draft.nodes - read <= len(ends) + 4 * 2 * len(drafter.seen)
    for row, own in ((first, long_request()), (second, long_request(*ends))):
        assert row.new_tokens == plain_tokens(ToyTarget(seed=2, far=True), own)
    for row in (first, second):
        decoder.release(row)
    assert held_by(drafter).slots == {}


def test_retained_text_is_not_read_again_and_is_given_back() -> None:
    decoder, drafter, draft = watching()
    row = decoder.admit(long_request())
    finish(decoder, [row])
    prefix = decoder.release(row, retain=True)
    assert prefix is not None
    again = Request([*row.tokens, 2, 3], stop=StopSettings(max_new_tokens=12, ignore_eos=True))
    read, turn = draft.nodes, len(drafter.seen)
    second = decoder.admit(again)
    finish(decoder, [second])
    assert drafter.seen[turn][0] - read <= 8, "the last tokens of the answer and the two new ones"
    assert second.new_tokens == plain_tokens(ToyTarget(seed=2, far=True), again)
    decoder.forget(prefix)
    decoder.release(second)
    assert held_by(drafter).slots == {}


def test_where_nothing_was_kept_the_last_chunk_makes_it_read_all() -> None:
    """A prefix of the target's alone, as whole-answer methods leave it: the draft model still reads in prefill."""
    decoder, drafter, draft = watching()
    asked = long_request(2, 3)
    row = decoder.admit(long_request())
    finish(decoder, [row])
    prefix = decoder.release(row, retain=True)
    assert prefix is not None
    slot = decoder.detach(prefix)
    decoder.prefixes.append(Prefix(slot, prefix.tokens))
    read, turn = draft.nodes, len(drafter.seen)
    second = decoder.admit(asked)
    finish(decoder, [second])
    assert drafter.seen[turn][0] - read == 61
    assert second.new_tokens == plain_tokens(ToyTarget(seed=2, far=True), asked)


def test_all_rows_share_one_pass_a_level() -> None:
    target, draft = ToyTarget(seed=2), Counting()
    drafter = DraftModel(depth=4)
    drafter.start(target, draft)
    decode(target, drafter, Replay(), [request(seed=s) for s in range(6)], 5)
    alone = Counting()
    run(DraftModel(depth=4), target, alone, request(), nodes=5)
    assert draft.passes < 2.5 * alone.passes


def test_a_wider_draft_vocabulary_is_never_proposed_and_a_narrower_one_never_fed_unknown_tokens() -> None:
    target = ToyTarget(5, seed=1)
    plain = run(DraftModel(), target, target, request(1.2), 1).new_tokens
    for size in (3, 9):
        drafter = DraftModel(depth=3, width=2)
        assert run(drafter, target, ToyTarget(size, seed=4), request(1.2)).new_tokens == plain


def test_a_full_draft_context_ends_drafting_not_decoding() -> None:
    target, draft = ToyTarget(), ToyTarget(context=20)
    row = run(DraftModel(), target, draft, request())
    assert row.generated == 40
    assert row.new_tokens == run(DraftModel(), target, draft, request(), 1).new_tokens


def test_min_confidence_stops_a_draft_early() -> None:
    target = ToyTarget(sharpness=0.1)
    wide = Counting()
    run(DraftModel(depth=5, min_confidence=0.99), target, wide, request(length=10), 8)
    assert wide.passes <= 10


@pytest.mark.parametrize("width", [1, 2])
def test_drawn_drafts_have_the_law_that_is_recorded(width: int) -> None:
    """Two draws without replacement from a law, by counting."""
    probabilities = np.array([0.5, 0.0, 0.3, 0.2])
    rng = np.random.default_rng(0)
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(4000):
        seen[tuple(drawn(probabilities, rng.random(width)).tokens)] += 1
    for tokens, count in seen.items():
        expected, left = 1.0, 1.0
        for token in tokens:
            expected *= probabilities[token] / left
            left -= probabilities[token]
        assert count / 4000 == pytest.approx(expected, abs=0.03)
    assert len(drawn(probabilities, [0.1] * 4).tokens) == 3


def test_with_rejection_sampling_the_law_is_the_targets() -> None:
    target, draft = ToyTarget(3, seed=1, sharpness=1.0), ToyTarget(3, seed=8, sharpness=1.0)
    drafter = DraftModel(depth=2, width=2, sample=True)
    drafter.start(target, draft)
    stop = StopSettings(max_new_tokens=2, ignore_eos=True)
    requests = [Request([1, 2], SamplingSettings(1.0, seed=seed), stop) for seed in range(1200)]
    seen: Counter[tuple[int, ...]] = Counter()
    for at in range(0, len(requests), 300):
        rows = decode(target, drafter, Rejection(), requests[at : at + 300], 5)
        seen.update(tuple(row.new_tokens) for row in rows)
    settings = SamplingSettings(1.0)
    first = law(target.next_logits([1, 2]), settings)
    for a in range(3):
        second = law(target.next_logits([1, 2, a]), settings)
        for b in range(3):
            assert seen[(a, b)] / 1200 == pytest.approx(first[a] * second[b], abs=0.05)


def test_most_probable_breaks_ties_by_id_and_leaves_out_the_impossible() -> None:
    probabilities = np.array([0.2, 0.0, 0.3, 0.3, 0.2])
    assert most_probable(probabilities, 1).tokens == [2]
    assert most_probable(probabilities, 3).tokens == [2, 3, 0]
    assert most_probable(probabilities, 9).tokens == [2, 3, 0, 4]


@dataclass
class Vocabulary:
    vocabulary: dict[str, int]


def test_vocabularies_may_differ_in_what_stands_at_the_end() -> None:
    ours = Vocabulary({"a": 0, "b": 1, "<pad>": 2})
    check_vocabularies(ours, Vocabulary({"a": 0, "b": 1}))
    check_vocabularies(Vocabulary({"a": 0, "b": 1}), ours)
    for other in ({"a": 1, "b": 0}, {"a": 0, "c": 1}, {"a": 0, "b": 2}):
        with pytest.raises(InputError, match="vocabulary"):
            check_vocabularies(ours, Vocabulary(other))


def test_bad_settings_and_a_missing_model_are_refused() -> None:
    for settings in ({"depth": 0}, {"width": 0}, {"min_confidence": 1.5}, {"temperature": -1.0}):
        with pytest.raises(InputError):
            DraftModel(**settings)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="--draft-model"):
        DraftModel().start(ToyTarget())
