"""PTD: the rules of the paper on traces worked by hand, and the promises of every drafter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from betoken.decode import Request
from betoken.drafters.growth import Scored, prompt_chains
from betoken.drafters.offers import Acceptance, Offer, Returns, Source, offers, split
from betoken.drafters.pool import SubtreePool, Trie, chain, drop_oldest, levels, merge, size
from betoken.drafters.ptd import PTD, Shape, _promote
from betoken.drafters.text_pool import Reader, TextPool
from betoken.errors import InputError
from betoken.state import StopSettings
from betoken.testing import ToyTarget, check_drafter, plain_tokens
from betoken.tree import Role
from growing_toys import Ruled, Stepper, ragged_requests, run_batch, trie_of


def alternating(text: Sequence[int]) -> int:
    """+1 after an even number of tokens, +10 after an odd one."""
    return (text[-1] + (1 if len(text) % 2 == 0 else 10)) % 100


def test_seeds_grow_harvest_and_promote_as_worked_by_hand() -> None:
    """Four steps of a 4-seed, width-2, depth-4 draft under a rule that alternates with the position."""
    drafter = PTD(preset="paper", seeds=4, width=2, depth=4)
    run = Stepper(Ruled(alternating), drafter, [50])
    pool = drafter._memories[run.row.id].pool
    assert drafter.growing(run.row) == [{50: {}}, {50: {}}]  # the prompt has one token: two seeds of it

    tree = run.step()  # pending 50 at position 0 -> 60; the seeds see 2 and 3 tokens -> 51, 60
    assert tree.tokens[0].tolist() == [50, 50, 50]
    assert tree.parents[0].tolist() == [-1, 0, 1]
    assert drafter.growing(run.row) == [
        {50: {51: {}}},
        {50: {}},
        {60: {}},
    ]  # 60 moved to the end of the chain

    tree = run.step()  # pending 60 -> 61
    assert trie_of(tree, Role.SEED) == {50: {50: {60: {}}}}
    assert trie_of(tree, Role.SEED, Role.PROBE) == {50: {50: {60: {}}, 51: {}}}
    assert drafter.growing(run.row) == [{50: {51: {52: {}}, 60: {}}}, {50: {51: {}}}, {60: {}}, {70: {}}]

    run.step()  # pending 61 -> 71
    assert drafter.growing(run.row) == [
        {50: {51: {52: {53: {}}, 61: {}}, 60: {70: {}}}},
        {50: {51: {52: {}}, 60: {}}},
        {60: {61: {}}},
        {70: {80: {}}},
    ]
    assert pool.get((52,)) == {}  # three levels: no harvest yet

    tree = run.step()  # pending 71 -> 72: the first tree has four levels
    positions = tree.positions(np.array([3]))[0].tolist()
    assert positions[:5] == [3, 4, 5, 6, 7]  # the pending token, then seed i at pending + 1 + i
    at = {tuple(tree.tokens[0, tree.path(0, node)].tolist()): node for node in range(tree.width)}
    assert positions[at[71, 50, 51, 52]] == 6  # pending + depth + seed index
    assert positions[at[71, 50, 50, 60, 61]] == 7
    assert pool.get((51,)) == {52: {53: {54: {}}, 62: {}}, 61: {71: {}}}
    assert pool.get((52,)) == {53: {54: {}}, 62: {}}
    assert pool.get((53,)) == {54: {}}
    assert pool.get((70,)) == {80: {}}
    below_50 = {51: {52: {53: {54: {}}, 62: {}}, 61: {71: {}}}, 60: {70: {80: {}}, 61: {}}}
    assert pool.get((50,)) == below_50
    assert list(pool.get((50,))) == [60, 51]  # 60 was there first: the target said it after the pending 50
    assert drafter.growing(run.row)[-1] == {51: below_50[51]}  # promoted, with its descendants, at the end
    assert [next(iter(trie)) for trie in drafter.growing(run.row)] == [50, 60, 70, 51]


def test_harvest_at_six_levels_and_promotion_at_six_hops() -> None:
    """One seed, always +1: it gains a level a step, is harvested with 6 levels scored and promoted with 7 grown."""
    rule = lambda text: text[-1] + 1 if text[-1] < 40 else 90 + (text[-1] + 1) % 5  # noqa: E731
    drafter = PTD(preset="paper", seeds=1)
    seed = next(
        s
        for s in range(100)
        if _first_seed(Stepper(Ruled(rule), PTD(preset="paper", seeds=1), [10, 90], seed=s)) == {10: {}}
    )
    run = Stepper(Ruled(rule), drafter, [10, 90], seed=seed)
    pool = drafter._memories[run.row.id].pool
    for step in range(5):
        assert levels(drafter.growing(run.row)[0]) == step + 1
        run.step()
        assert pool.get((10,)) == {}
    assert drafter.growing(run.row) == [chain([10, 11, 12, 13, 14, 15])]
    run.step()
    assert pool.get((10,)) == chain([11, 12, 13, 14, 15, 16])
    assert pool.get((14,)) == chain([15, 16])
    assert drafter.growing(run.row) == [chain([11, 12, 13, 14, 15, 16])]  # promoted: 6 levels again
    run.step()
    assert pool.get((11,)) == chain([12, 13, 14, 15, 16, 17])  # so it is harvested in the very next step


def _first_seed(run: Stepper) -> Trie:
    drafter = run.decoder.drafter
    assert isinstance(drafter, PTD)
    return drafter.growing(run.row)[0]


def test_promotion_takes_the_earliest_child_that_is_no_seed() -> None:
    first, second = (5, {5: {1: {}}, 7: {2: {}}, 6: {3: {}}}), (7, {8: {}})
    seeds = [first, second]
    _promote(seeds, first)
    assert seeds == [second, (6, {3: {}})]
    seeds = [second, (8, {})]
    _promote(seeds, second)
    assert seeds == [(8, {})]  # no such child: it just goes


def test_an_empty_chain_starts_anew_from_the_prompt() -> None:
    drafter = PTD(preset="paper", seeds=1, depth=1)
    run = Stepper(Ruled(lambda text: 5), drafter, [5])
    run.step()  # depth 1: harvested and promoted in the first step, but 5 is a seed already
    assert drafter._memories[run.row.id].pool.get((5,)) == {5: {}}
    assert drafter.growing(run.row) == [{5: {}}]


def test_candidates_are_the_pool_of_the_last_token_and_grow_with_what_the_target_says() -> None:
    """A prompt of nothing but an end token seeds nothing: only verified nodes feed the pool."""
    cycle = {0: 1, 1: 2, 2: 3, 3: 1}
    run = Stepper(Ruled(lambda text: cycle[text[-1]]), PTD(preset="paper"), [0])
    seen = []
    for _ in range(8):
        pending = run.row.pending
        tree = run.step()
        assert (tree.roles[0] <= Role.CANDIDATE).all()
        seen.append((pending, trie_of(tree, Role.CANDIDATE)))
    assert seen == [
        (0, {}),
        (1, {}),
        (2, {}),
        (3, {}),
        (1, {2: {}}),  # accepted, and 3 said after it
        (3, {1: {}}),
        (2, {3: {}}),
        (1, {2: {3: {}}}),
    ]


def test_pool_merges_recursively_and_drops_its_oldest_branch() -> None:
    pool = SubtreePool(5)
    pool.merge((7,), {1: {2: {}}})
    pool.merge((7,), {1: {2: {3: {}}, 4: {}}})
    assert pool.get((7,)) == {1: {2: {3: {}}, 4: {}}}
    pool.merge((7,), {9: {}})
    assert size(pool.get((7,))) == 5
    pool.merge((7,), {1: {4: {}}, 8: {}})  # six: branch 1 is the oldest, though it came again
    assert pool.get((7,)) == {9: {}, 8: {}}
    assert pool.get((1,)) == {}


def test_a_refreshing_pool_keeps_the_branch_that_came_again() -> None:
    pool = SubtreePool(3, refresh=True)
    for token in (1, 2, 3, 1, 4):
        pool.merge((7,), {token: {}})
    assert list(pool.get((7,))) == [3, 1, 4]


def known(pool: TextPool) -> dict[tuple[int, ...], Trie]:
    return {key: pool.find(key) or {} for key in list(pool)}


def test_a_text_is_read_as_worked_by_hand() -> None:
    pool = TextPool(60, 3)
    reader = Reader(pool, 2)
    reader.read([1, 2, 3, 0, 1, 2, 4, 5], frozenset([0]))
    assert len(reader.text) == 8
    assert pool.find((1,)) == {2: {3: {}, 4: {5: {}}}}
    assert pool.find((2,)) == {3: {}, 4: {5: {}}}  # nothing goes on to the end token 0
    assert pool.find((1, 2)) == {3: {}, 4: {5: {}}}
    assert pool.find((0,)) == pool.find((3, 0)) == {1: {2: {4: {}}}}  # three tokens at most
    assert pool.find((5,)) == {}
    assert pool.find((9,)) is pool.find((2, 1)) is None


@settings(deadline=None)
@given(
    text=st.lists(st.integers(0, 3), max_size=40),
    cut=st.integers(0, 40),
    cap=st.integers(1, 200),
    asked=st.sets(st.tuples(st.integers(0, 3)) | st.tuples(st.integers(0, 3), st.integers(0, 3))),
)
def test_a_reader_knows_what_followed_every_key(
    text: list[int], cut: int, cap: int, asked: set[tuple[int, ...]]
) -> None:
    """Brute force over all places of all keys; in one piece or two; the last place is the newest; capped in nodes.

    That some keys were asked for in between makes no difference.
    """
    end, pool, other = frozenset([0]), TextPool(cap, 4), TextPool(cap, 4)
    reader = Reader(pool, 3)
    reader.read(text[:cut], end)
    for key in asked:
        pool.find(key)
    reader.read(text[cut:], end)
    Reader(other, 3).read(text, end)
    got = known(pool)
    assert got == known(other)
    assert [list(trie) for trie in got.values()] == [list(trie) for trie in known(other).values()]
    full = SubtreePool(10_000, refresh=True)
    for at in range(1, len(text)):
        following = text[at : at + 4]
        following = following[: following.index(0)] if 0 in following else following
        for length in range(1, min(3, at) + 1):
            full.merge(tuple(text[at - length : at]), chain(following))
    for key in full:
        expected = full.get(key)
        assert size(got[key]) <= cap
        if size(expected) <= cap:
            assert got[key] == expected
            assert not got[key] or list(got[key])[-1] == list(expected)[-1]


def test_texts_of_several_readers_share_a_pool() -> None:
    pool = TextPool(60, 3)
    first, second = Reader(pool, 2), Reader(pool, 2)
    first.read([1, 2], frozenset())
    second.read([7, 1, 5], frozenset())
    first.read([3], frozenset())
    assert pool.find((1,)) == {2: {3: {}}, 5: {}}
    assert pool.find((7, 1)) == {5: {}}
    second.read([6], frozenset())
    assert pool.find((1,)) == {2: {3: {}}, 5: {6: {}}}


def test_pools_drop_their_oldest_keys() -> None:
    entries = dict.fromkeys([(key,) for key in range(20)], "")
    drop_oldest(entries, 21)
    assert len(entries) == 20
    drop_oldest(entries, 20)
    assert list(entries) == [(key,) for key in range(3, 20)]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=8))
def test_merge_holds_exactly_the_prefixes_of_what_was_merged(paths: list[list[int]]) -> None:
    trie: Trie = {}
    added = sum(merge(trie, chain(path)) for path in paths)
    prefixes = {tuple(path[: n + 1]) for path in paths for n in range(len(path))}
    assert added == size(trie) == len(prefixes)
    assert levels(trie) == max((len(path) for path in paths), default=0)


def test_a_branch_that_reaches_an_end_token_is_removed_up_to_its_seed() -> None:
    """60 is followed by 61, and that by the end token 0; 5 and 6 follow each other."""
    follows = {60: 61, 61: 0, 5: 6, 6: 5}
    drafter = PTD(preset="paper", seeds=2)
    run = Stepper(Ruled(lambda text: follows[text[-1]]), drafter, [5, 5])
    drafter._memories[run.row.id].seeds = [(60, {}), (5, {})]
    run.step()
    assert drafter.growing(run.row) == [{60: {61: {}}}, {5: {6: {}}}]
    run.step()  # 61 says 0, so 60 goes with it; 6 says 5, and 6 moves to the end as a new seed
    assert drafter.growing(run.row) == [{5: {}}, {6: {5: {}}}]


@pytest.mark.parametrize("preset", ["auto", "paper"])
def test_end_tokens_never_grow_seed_or_enter_the_pool(preset: str) -> None:
    ends = frozenset([0, 3])
    steps = 0
    for seed in range(20):
        drafter = PTD(preset=preset, depth=3)  # type: ignore[arg-type]
        run = Stepper(ToyTarget(8, seed=seed, sharpness=1.0), drafter, [4, 0, 1, 3, 0, 5, 1, 3, 4, 6])
        run.row.end_ids = ends
        drafter.admit([run.row])  # again, now that it has two end tokens
        memory = drafter._memories[run.row.id]
        while run.row.finish_reason is None and run.row.generated < 40:
            tree = run.step()
            steps += 1
            assert not ends & set(tree.tokens[0, 1 : tree.counts[0]].tolist())
            grown = [memory.pool.get(key) for key in memory.pool]
            tries = [*drafter.growing(run.row), *grown, *known(memory.text.pool).values()]
            assert not any(ends & _tokens(trie) for trie in tries)
    assert steps > 40


def _tokens(trie: Trie) -> set[int]:
    return set(trie).union(*(_tokens(below) for below in trie.values()))


@pytest.mark.parametrize(
    ("shape", "nodes"), [((4, 4, 6), 124), ((4, 2, 6), 80), ((4, 4, 4), 32), ((2, 2, 4), 14), ((1, 1, 1), 1)]
)
def test_published_sizes(shape: tuple[int, int, int], nodes: int) -> None:
    """The sizes that the paper's settings reach."""
    assert Shape(*shape).nodes == nodes


def brute_force(
    sources: list[Source], acceptance: Acceptance, more: dict[tuple[int, ...], list[Source]], depth: int
) -> dict[tuple[int, ...], float]:
    """The reach of every path of the union, of up to `depth` tokens: the best rate of each token, multiplied."""
    out: dict[tuple[int, ...], float] = {}
    paths: list[tuple[tuple[int, ...], float, list[Source]]] = [((), 1.0, sources)]
    for path, reach, known in paths:
        for token in {token for source in known for token in source.trie} if len(path) < depth else set():
            rates = [
                acceptance.rate(one.kind, one.depth, len(one.trie) - 1 - list(one.trie).index(token))
                for one in known
                if token in one.trie
            ]
            further = [Source(one.kind, one.depth + 1, one.trie[token]) for one in known if token in one.trie]
            new = (*path, token)
            out[new] = reach * max(rates)
            paths.append((new, out[new], further + more.get(new, [])))
    return out


def test_offers_are_the_best_reachable_ones_and_parents_come_first() -> None:
    """Brute force: the reach of every node of the union, and the largest of them."""
    acceptance = Acceptance(((0.5, 0.4, 0.3), (0.6, 0.2)))
    sources = [Source(1, 1, {4: {5: {}}, 6: {1: {}}}), Source(0, 0, {1: {2: {3: {}}}, 4: {}})]
    more = {(4,): [Source(0, 0, {5: {7: {}}, 8: {}})], (6, 1): [Source(1, 2, {9: {}})]}
    expected = brute_force(sources, acceptance, more, 6)
    everything = offers(sources, acceptance, 100, lambda path: more.get(path, []))
    assert offers(sources, acceptance, 4, lambda path: more.get(path, [])) == everything[:4]
    assert [one.reach for one in everything] == sorted((one.reach for one in everything), reverse=True)
    paths: list[tuple[int, ...]] = []
    for index, one in enumerate(everything):
        assert one.parent <= index
        paths.append((*(paths[one.parent - 1] if one.parent else ()), one.token))
        above = everything[one.parent - 1].reach if one.parent else 1.0
        assert one.reach == pytest.approx(above * one.confidence)
    assert dict(zip(paths, [one.reach for one in everything], strict=True)) == pytest.approx(expected)
    assert len(everything) == len(expected) == 10  # 1 2 3, 4, 4 5 7, 4 8, 6 1 9: a path is one node
    kept = offers(sources, acceptance, 100, lambda path: more.get(path, []), least=0.05)
    assert kept == [one for one in everything if one.reach >= 0.05] != everything


def test_priors_of_a_kind_go_on_beyond_the_last_depth() -> None:
    acceptance = Acceptance(((0.5, 0.25), (0.75,)))
    assert [acceptance.rate(0, depth, 0) for depth in range(6)] == [0.5, 0.25, 0.25, 0.25, 0.25, 0.25]
    assert {acceptance.rate(1, depth, 0) for depth in range(6)} == {0.75}


def test_continuations_are_the_scored_subtrees_with_what_the_target_says() -> None:
    """Against the tree and the rule, node by node."""
    rule = lambda text: (text[-1] * 7 + len(text)) % 11 + 1  # noqa: E731
    run = Stepper(Ruled(rule), PTD(), [3, 5, 2, 8, 5, 2])
    seen: list[Scored] = []
    drafter = run.decoder.drafter
    assert isinstance(drafter, PTD)
    learn = drafter._learn
    drafter._learn = lambda memory, scored: (seen.append(scored), learn(memory, scored))[1]  # type: ignore[method-assign]
    nested = 0
    for _ in range(12):
        text = list(run.row.tokens)
        tree = run.step()
        expected: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
        for node in range(int(tree.counts[0])):
            path = tree.tokens[0, tree.path(0, node)].tolist()
            for cut in range(1, len(path) + 1):
                below = expected.setdefault(tuple(path[1:cut]), set())
                below |= {tuple(path[cut:]), (*path[cut:], rule(text + path[1:]))}
        got: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
        for told, trie in seen[-1].continuations(range(1000, 1060)):  # not the text: where it ends is easy to see
            node = tuple(told[told.index(1059) + 1 :])
            got[node] = {()} | {path[:end] for path in _paths(trie) for end in range(1, len(path) + 1)}
            assert list(trie)[-1] == rule([*text, *node])
        assert got == expected
        nested += sum(len(path) > 1 for paths in got.values() for path in paths)
    assert nested > 20


def _paths(trie: Trie) -> list[tuple[int, ...]]:
    return [(token, *rest) for token, below in trie.items() for rest in (_paths(below) or [()])]


def test_joined_entries_go_on_where_each_of_them_ends() -> None:
    """A cycle seen once: every entry is one token long, and the candidates go round it."""
    cycle = {0: 1, 1: 2, 2: 3, 3: 1}
    run = Stepper(Ruled(lambda text: cycle[text[-1]]), PTD(text=False), [0])
    for _ in range(4):
        assert run.step().width == 1
    assert run.row.pending == 1
    chain_of = trie_of(run.step(), Role.CANDIDATE)
    assert levels(chain_of) == size(chain_of) >= 4
    assert chain_of == chain([2, 3, 1, 2, 3, 1, 2, 3, 1][: levels(chain_of)])
    alone = Stepper(Ruled(lambda text: cycle[text[-1]]), PTD(text=False, joined=False), [0])
    for _ in range(4):
        alone.step()
    assert trie_of(alone.step(), Role.CANDIDATE) == {2: {}}


def test_acceptance_learns_from_the_committed_tokens() -> None:
    acceptance = Acceptance(((0.5,),))
    offered = [Offer(7, 0, 0, 0, 0, 0.5, 0.5), Offer(8, 0, 0, 0, 1, 0.2, 0.2), Offer(9, 2, 0, 1, 0, 0.5, 0.1)]
    before = [acceptance.rate(0, 0, 0), acceptance.rate(0, 0, 1), acceptance.rate(0, 1, 0)]
    right = acceptance.observe(offered, [8, 3])
    assert right == [offered[1]]
    assert acceptance.rate(0, 0, 0) == pytest.approx(before[0] * 4 / 5)
    assert acceptance.rate(0, 0, 1) == pytest.approx((before[1] * 4 + 1) / 5)
    assert acceptance.rate(0, 1, 0) == pytest.approx(before[2] * 4 / 5)  # its parent was right, it was not


def test_a_budget_goes_to_likely_candidates_then_probes_then_the_rest() -> None:
    ranked = [Offer(1, 0, 0, 0, 0, p, p) for p in (0.5, 0.3, 0.03, 0.02)]
    assert split(ranked, 10, 8, 0.05) == (2, 6)
    assert split(ranked, 3, 8, 0.05) == (4, 3)
    assert split(ranked, 10, 1, 0.05) == (1, 0)
    assert split(ranked, 10, 3, 0.9) == (0, 3)


def test_probes_that_earn_nothing_get_cheap_and_recover() -> None:
    returns = Returns()
    start = returns.price
    for _ in range(100):
        returns.observe(0, 10)
    assert returns.price < start / 4
    for _ in range(1000):
        returns.observe(0, 0)
    assert returns.price == pytest.approx(start, rel=0.01)
    for _ in range(100):
        returns.observe(5, 10)
    assert returns.price > 0.3


@pytest.mark.parametrize("preset", ["auto", "paper"])
@settings(max_examples=12, deadline=None)
@given(most=st.integers(1, 40), seed=st.integers(0, 1000))
def test_a_ragged_batch_with_jumping_budgets_is_plain_decoding(preset: str, most: int, seed: int) -> None:
    target = ToyTarget(12, seed=seed)
    requests = ragged_requests()
    got, trees = run_batch(PTD(preset=preset), target, requests, most, seed)  # type: ignore[arg-type]
    assert got == [plain_tokens(target, request) for request in requests]
    assert max(int(tree.counts.max()) for tree in trees) <= most


def test_a_prompt_is_read_while_the_target_prefills_it() -> None:
    """Unless no draft is expected: then the first draft, if there is one, reads it."""
    prompt = [1, 2, 3, 1, 2]
    for nodes, read in ((8, prompt[:-1]), (1, [])):
        drafter = PTD()
        run = Stepper(ToyTarget(12), drafter, prompt, nodes=nodes)
        run.decoder._prefill()
        assert drafter._memories[run.row.id].text.text == read


def test_same_seed_same_trees_and_another_seed_others() -> None:
    prompt = list(range(1, 12))

    def trees(seed: int) -> list[list[int]]:
        run = Stepper(ToyTarget(12, seed=4), PTD(), prompt, nodes=16, seed=seed)
        return [run.step().tokens[0].tolist() for _ in range(6)]

    assert trees(1) == trees(1)
    assert trees(1) != trees(2)


def test_nothing_survives_a_request_unless_the_pool_is_shared() -> None:
    target = ToyTarget(12, seed=4)
    request = Request([1, 2, 3, 4, 5], stop=StopSettings(max_new_tokens=30, ignore_eos=True))
    for drafter, same in ((PTD(), True), (PTD(shared_pool=True), False)):
        _, first = run_batch(drafter, target, [request], 20)
        _, second = run_batch(drafter, target, [request], 20)
        told = [[tree.tokens.tolist() for tree in run] for run in (first, second)]
        assert (told[0] == told[1]) is same
        assert drafter.shares_state is not same
        assert drafter._memories == {}


def test_prompt_chains_stop_at_end_tokens_and_stay_in_the_prompt() -> None:
    run = Stepper(ToyTarget(12), PTD(), [3, 0, 4, 5, 0, 6])
    chains = prompt_chains(run.row, (1, 2), 200)
    assert {tuple(one) for one in chains} == {(3,), (4,), (4, 5), (5,), (6,)}
    assert prompt_chains(run.row, (1, 2), 200) == chains
    assert prompt_chains(run.row, (1, 2), 200, step=1) != chains


def test_wrong_settings_are_refused_with_a_reason() -> None:
    with pytest.raises(InputError, match="seeds must be at least 1"):
        PTD(seeds=0)
    with pytest.raises(InputError, match="context must be 1 to 4"):
        PTD(context=5)


@pytest.mark.parametrize("preset", ["auto", "paper"])
def test_conformance(preset: str) -> None:
    check_drafter(lambda: PTD(preset=preset), max_nodes=12)  # type: ignore[arg-type]
