"""The loop at the ends of answers: limits, end tokens and the context inside a draft, and the cache afterwards."""

from collections.abc import Sequence

import pytest

from betoken.decode import Decoder, Request
from betoken.drafters.plain import Plain
from betoken.errors import InputError
from betoken.models.target import Scores
from betoken.state import State, StopSettings
from betoken.testing import OracleDrafter, ToyCache, ToyTarget, plain_tokens
from betoken.tree import RowTree, TokenTree
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Replay


class Recording(ToyTarget):
    """Remembers how many nodes each forward pass read, and how far into the cache they reached."""

    def __init__(self, context: int = 512) -> None:
        super().__init__(context=context, far=True)
        self.widths: list[int] = []
        self.ends: list[int] = []

    def forward(self, tree, cache, slots, hidden_layers=()) -> Scores:  # type: ignore[no-untyped-def]
        assert isinstance(tree, TokenTree)
        self.widths.append(tree.width)
        self.ends.append(cache.length(slots[0]) + tree.width)
        return super().forward(tree, cache, slots, hidden_layers)


def run(target: ToyTarget, request: Request, nodes: int = 5) -> tuple[list[int], str | None, list[int]]:
    """New tokens, the reason of the end, and the text in the cache, with a drafter that is always right."""
    drafter = OracleDrafter(depth=nodes - 1)
    drafter.start(ToyTarget(context=target.context, far=True))
    decoder = Decoder(target, drafter, Replay(), FixedNodes(nodes))
    row = decoder.admit(request)
    for _ in range(100):
        if row.finish_reason is not None:
            break
        decoder.step()
    assert isinstance(decoder.cache, ToyCache)
    return row.new_tokens, row.finish_reason, decoder.cache.slots[row.slot]


@pytest.mark.parametrize("limit", [1, 4, 5, 6, 7])
def test_the_token_limit_holds_inside_a_draft(limit: int) -> None:
    target = Recording()
    request = Request([1, 2, 3], stop=StopSettings(max_new_tokens=limit, ignore_eos=True))
    tokens, reason, cached = run(target, request)
    long = plain_tokens(ToyTarget(far=True), Request([1, 2, 3], stop=StopSettings(max_new_tokens=20, ignore_eos=True)))
    assert (tokens, reason) == (long[:limit], "length")
    assert cached == [1, 2, 3, *long[: limit - 1]]
    # No node is scored that could not be committed: the forwards after prefill read `limit` nodes in all.
    assert sum(target.widths[1:]) == limit


@pytest.mark.parametrize("place", range(5))
def test_an_end_token_ends_the_row_inside_a_draft(place: int) -> None:
    long = plain_tokens(ToyTarget(far=True), Request([2, 1], stop=StopSettings(max_new_tokens=20, ignore_eos=True)))
    end = long[place]
    stop = StopSettings(max_new_tokens=20, ignore_eos=True, stop_ids=(end,))
    tokens, reason, cached = run(ToyTarget(far=True), Request([2, 1], stop=stop), 9)
    assert (tokens, reason) == (long[: long.index(end) + 1], "stop")
    assert cached == [2, 1, *tokens[:-1]]


def test_the_context_is_never_passed() -> None:
    target = Recording(context=10)
    tokens, reason, cached = run(target, Request([1, 2, 3], stop=StopSettings(max_new_tokens=99, ignore_eos=True)))
    assert (len(tokens), reason) == (7, "context")
    assert len(cached) == 9


class Grasping(Plain):
    """Takes every node that it is offered, for tokens that are nearly always wrong."""

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        rows = zip(state.pending, nodes, strict=True)
        return TokenTree.stack([RowTree.chain(pending, [pending] * (most - 1)) for pending, most in rows])


def grasp(target: Recording, new_tokens: int) -> None:
    """Decode one row with every node that the loop offers."""
    decoder = Decoder(target, Grasping(), Replay(), FixedNodes(5))
    row = decoder.admit(Request([1, 2, 3], stop=StopSettings(max_new_tokens=new_tokens, ignore_eos=True)))
    while row.finish_reason is None:
        decoder.step()


def test_no_tree_reaches_beyond_the_context() -> None:
    target = Recording(context=10)
    grasp(target, 99)
    assert max(target.widths) == 5
    assert max(target.ends) <= 10


def test_a_row_that_takes_one_more_token_gets_no_draft() -> None:
    target = Recording()
    grasp(target, 1)
    assert target.widths[1:] == [1]
    grasp(target, 2)
    assert target.widths[3] == 5


def test_the_verifier_may_commit_more_than_was_asked_for_and_the_row_takes_only_its_part() -> None:
    """A drafter that ignores its limit: tokens and cache are cut all the same."""
    target = ToyTarget(far=True)
    request = Request([1, 2, 3], stop=StopSettings(max_new_tokens=6, ignore_eos=True))
    drafter = OracleDrafter(depth=4)
    drafter.start(target)
    decoder = Decoder(target, drafter, Replay(), FixedNodes(5))
    row = decoder.admit(request)
    decoder.step()
    assert row.generated == 5
    assert row.commit([1, 2, 3]) == [1]
    assert row.finish_reason == "length"


@pytest.mark.parametrize("prompt", [[], [-1], [5], [1] * 512])
def test_prompts_that_cannot_be_read_are_refused(prompt: list[int]) -> None:
    decoder = Decoder(ToyTarget(far=True), OracleDrafter(), Replay(), FixedNodes())
    with pytest.raises(InputError):
        decoder.admit(Request(prompt))


def test_a_long_common_prefix_is_taken_over_from_another_row() -> None:
    target = Recording()
    drafter = OracleDrafter()
    drafter.start(ToyTarget(far=True))
    decoder = Decoder(target, drafter, Replay(), FixedNodes(4))
    shared = [1 + index % 3 for index in range(60)]
    stop = StopSettings(max_new_tokens=8, ignore_eos=True)
    first = decoder.admit(Request([*shared, 1], stop=stop))
    decoder.step()
    target.widths.clear()
    second = decoder.admit(Request([*shared, 2, 2], stop=stop))
    while second.finish_reason is None or first.finish_reason is None:
        decoder.step()
    assert max(target.widths) < 10
    assert second.new_tokens == plain_tokens(ToyTarget(far=True), Request([*shared, 2, 2], stop=stop))
