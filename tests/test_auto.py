"""`--nodes auto` never loses to plain decoding and comes near the best fixed node count."""

from collections.abc import Callable
from time import sleep

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from betoken.decode import Decoder, Request
from betoken.drafters.prompt_lookup import PromptLookup
from betoken.errors import InputError
from betoken.state import Row, SamplingSettings, State, StopSettings
from betoken.testing import ToyTarget
from betoken.tree import Role, RowTree, TokenTree
from betoken.tuning.acceptance import Acceptance
from betoken.tuning.account import Account, Proposed
from betoken.tuning.auto import AutoNodes
from betoken.tuning.cost import CostModel, Prices
from betoken.tuning.gains import LIMITS, DraftTimes, Gains, arm_below
from betoken.tuning.nodes import FixedNodes, StepTimes
from betoken.tuning.simulate import (
    DraftCost,
    Machine,
    Text,
    best_fixed,
    bursty,
    iid,
    informed,
    linear_curve,
    plain,
    simulate,
    switch,
)
from betoken.tuning.subtree import may_trim, subtree
from betoken.tuning.trimming import select
from betoken.verifiers.replay import Replay
from betoken.verifiers.verifier import RowVerdict, Verdict

FLAT = linear_curve(flat=0.045, bend=16, steep=0.06)
STEEP = linear_curve(flat=0.15, bend=64)
CHEAP = DraftCost(step=0.005)
MODEL = DraftCost(step=0.01, node=0.15, resume=0.02)
MACHINES = {
    "flat, text matcher": Machine(FLAT, CHEAP),
    "flat, draft model": Machine(FLAT, MODEL),
    "steep, text matcher": Machine(STEEP, CHEAP),
    "steep, draft model": Machine(STEEP, MODEL),
    "flat, probes": Machine(FLAT, CHEAP, probes=6),
}
MAKERS: dict[str, Callable[[int, int], Text]] = {
    "never": lambda n, seed: iid(n, 0.0, seed=seed),
    "hardly": lambda n, seed: iid(n, 0.1, seed=seed),
    "confident and wrong": lambda n, seed: iid(n, 0.02, seed=seed, claim=0.99),
    "good, then never": lambda n, seed: switch(n, at=n // 2, before=0.9, after=0.0, seed=seed),
    "never, then good": lambda n, seed: switch(n, at=n // 2, before=0.0, after=0.9, seed=seed),
    "bursts": lambda n, seed: bursty(n, seed=seed),
    "unlike its start": lambda n, seed: switch(n, at=4, before=1.0, after=0.0, seed=seed),
}


def auto(machine: Machine) -> AutoNodes:
    return AutoNodes(CostModel(machine.timings()))


@pytest.mark.parametrize("text", MAKERS)
@pytest.mark.parametrize("machine", MACHINES)
def test_never_slower_than_plain(machine: str, text: str) -> None:
    """Every request alone, through timings that are off by 20% and sometimes tenfold."""
    setup = MACHINES[machine]
    warm = auto(setup)
    for seed in range(2):
        made = MAKERS[text](96, seed)
        floor = 0.97 * plain(setup, 96).speed
        assert simulate(auto(setup), setup, made, 96, seed=seed).speed >= floor, f"cold, seed {seed}"
        assert simulate(warm, setup, made, 96, seed=seed, row_id=seed).speed >= floor, f"warm, seed {seed}"


def test_a_policy_that_learned_from_good_requests_still_bounds_a_bad_one() -> None:
    setup = MACHINES["flat, draft model"]
    policy = auto(setup)
    for seed in range(3):
        simulate(policy, setup, iid(96, 0.95, seed=seed), 96, seed=seed, row_id=seed)
    assert simulate(policy, setup, iid(96, 0.0), 96, row_id=9).speed >= 0.97 * plain(setup, 96).speed


def next_row(prompt: int = 1000) -> Row:
    stop = StopSettings(96)
    return Row(99, -1, np.zeros(prompt, np.int64), SamplingSettings(), stop, frozenset(), 1 << 20)


def test_a_draft_model_that_does_not_pay_is_not_made_to_read_prompts() -> None:
    """But for the first requests, and one in some later: it may have become better."""
    setup = MACHINES["flat, draft model"]
    policy = auto(setup)
    assert policy.expects(next_row())
    policy.release([next_row()])
    for seed in range(6):
        run = simulate(policy, setup, iid(96, 0.1, seed=seed), 96, seed=seed, row_id=seed, prompt=1000)
        assert run.speed >= 0.97 * plain(setup, 96).speed, "unread prompts are never caught up with"
    told = []
    for _ in range(16):
        told.append(policy.expects(next_row()))
        policy.release([next_row()])
    assert told.count(True) == 2
    good = auto(setup)
    for seed in range(6):
        simulate(good, setup, iid(96, 0.9, seed=seed), 96, seed=seed, row_id=seed)
    assert all(good.expects(next_row()) for _ in range(16))
    assert [FixedNodes(n).expects(next_row()) for n in (1, 2)] == [False, True]


@pytest.mark.parametrize(
    ("machine", "text"),
    [
        ("flat, text matcher", lambda n, seed: iid(n, 0.5, seed=seed)),
        ("flat, text matcher", lambda n, seed: iid(n, 0.9, seed=seed)),
        ("flat, text matcher", lambda n, seed: bursty(n, seed=seed)),
        ("steep, text matcher", lambda n, seed: iid(n, 0.8, seed=seed)),
        ("flat, draft model", lambda n, seed: iid(n, 0.8, seed=seed)),
        ("flat, draft model", lambda n, seed: iid(n, 0.95, seed=seed)),
        ("steep, draft model", lambda n, seed: informed(n, seed=seed)),
    ],
)
def test_near_the_best_fixed_limit(machine: str, text: Callable[[int, int], Text]) -> None:
    setup = MACHINES[machine]
    ours, best = 0.0, 0.0
    for seed in range(2):
        made = text(600, seed)
        ours += simulate(auto(setup), setup, made, 600, seed=seed).seconds
        best += best_fixed(setup, made, 600, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32))[1].seconds
    assert ours <= best / 0.93


def small(nodes: int) -> float:
    """t(n) of SmolLM2-135M in int8 on two cores, in ms."""
    return float(np.interp(nodes, [1, 4, 8, 16, 32, 64], [5.5, 5.9, 6.9, 12.0, 20.0, 38.0]))


def large(nodes: int) -> float:
    """t(n) of a target of 50 ms whose draft model takes 30 ms a token."""
    return float(np.interp(nodes, [1, 4, 8, 16, 32, 64], [50.0, 51.5, 53.5, 80.0, 150.0, 300.0]))


REAL = {
    "suffix": Machine(small, DraftCost(ask=0.1, always=0.02)),
    "draft model": Machine(large, DraftCost(node=30.0, resume=0.5, always=0.02)),
}
SILENT = Text(np.zeros(400, np.bool_), np.ones(400), np.zeros(400, np.bool_))


@pytest.mark.parametrize("tokens", [96, 400])
@pytest.mark.parametrize("text", [iid(400, 0.0), SILENT], ids=["wrong", "silent"])
@pytest.mark.parametrize("machine", REAL)
def test_a_drafter_that_never_helps_costs_three_percent_at_most(machine: str, text: Text, tokens: int) -> None:
    """Asking a drafter that has nothing to offer costs time too: in every step, that alone would be 2% here."""
    setup = REAL[machine]
    warm = auto(setup)
    for seed in range(6):
        for policy in (auto(setup), warm):
            run = simulate(policy, setup, text, tokens, seed=seed, row_id=seed)
            assert run.seconds <= 1.03 * plain(setup, tokens).seconds


def test_a_silent_drafter_is_asked_for_one_percent_of_the_time() -> None:
    setup = REAL["suffix"]
    base = 400 * setup.draft.always + plain(setup, 400).seconds
    for seed in range(6):
        run = simulate(auto(setup), setup, SILENT, 400, seed=seed)
        assert run.seconds - base <= 0.015 * base


@pytest.mark.parametrize(("machine", "gain"), [("suffix", 1.3), ("draft model", 1.0)])
def test_good_phases_pay_although_bad_ones_lie_between(machine: str, gain: float) -> None:
    """A look at the draft model takes 0.6 plain steps, so phases of 50 tokens are half over before it is trusted."""
    setup = REAL[machine]
    right = np.arange(800) // 50 % 2 == 0
    text = Text(right & (np.random.default_rng(0).random(800) < 0.95), np.full(800, 0.95), np.ones(800, np.bool_))
    for seed in range(3):
        assert simulate(auto(setup), setup, text, 800, seed=seed).speed >= gain * plain(setup, 800).speed


@pytest.mark.parametrize("text", MAKERS)
@pytest.mark.parametrize("machine", REAL)
def test_the_floor_holds_with_seeds_that_nothing_was_tuned_on(machine: str, text: str) -> None:
    setup = REAL[machine]
    warm = auto(setup)
    for seed in range(1000, 1004):
        made, floor = MAKERS[text](96, seed), 0.97 * plain(setup, 96).speed
        assert simulate(auto(setup), setup, made, 96, seed=seed).speed >= floor, f"cold, seed {seed}"
        assert simulate(warm, setup, made, 96, seed=seed, row_id=seed).speed >= floor, f"warm, seed {seed}"


def measured(nodes: int) -> float:
    """t(n) of a 1.5B model in int8 on two cores, in ms: 8 nodes are nearly free."""
    return float(np.interp(nodes, [1, 4, 8, 16, 32, 64], [49.0, 50.5, 52.5, 80.0, 150.0, 300.0]))


GROWING = Machine(measured, DraftCost(step=0.2), probes=16, ramp=200)
"""A drafter that has nothing to offer before some 200 probes were scored: 30 to 60 steps at nearly no cost."""


@pytest.mark.parametrize("length", [48, 96, 256])
def test_an_investment_that_never_pays_costs_no_more_than_the_floor(length: int) -> None:
    warm = auto(GROWING)
    for seed in range(6):
        text, floor = iid(length, 0.0, seed=seed), (0.955 if length < 96 else 0.97) * plain(GROWING, length).speed
        assert simulate(auto(GROWING), GROWING, text, length, seed=seed).speed >= floor
        assert simulate(warm, GROWING, text, length, seed=seed, row_id=seed).speed >= floor
    last = simulate(warm, GROWING, iid(length, 0.0), length, row_id=9)
    assert last.speed > 0.98 * plain(GROWING, length).speed, "four requests without a return: no more than looks"


@pytest.mark.parametrize("acceptance", [0.2, 0.35, 0.5, 0.8])
def test_an_investment_that_pays_is_made_from_the_first_step(acceptance: float) -> None:
    ours, best = 0.0, 0.0
    for seed in range(6):
        made = iid(256, acceptance, seed=seed)
        ours += simulate(auto(GROWING), GROWING, made, 256, seed=seed).seconds
        best += best_fixed(GROWING, made, 256, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32))[1].seconds
    assert ours <= best / 0.9, f"{best / ours:.3f} of the best"


def test_an_investment_that_paid_before_gets_more_credit_within_the_floor() -> None:
    policy = auto(GROWING)
    for seed in range(4):
        simulate(policy, GROWING, iid(256, 0.8, seed=seed), 256, seed=seed, row_id=seed)
    bad = simulate(policy, GROWING, iid(96, 0.0), 96, row_id=9)
    assert bad.speed >= 0.97 * plain(GROWING, 96).speed


def test_a_drafter_that_knows_when_it_is_right_beats_every_fixed_limit() -> None:
    """Positions are certain or hopeless, and the drafter says which: no fixed limit can follow that."""
    right = np.random.default_rng(0).random(600).round() > 0
    text = Text(right, np.where(right, 0.99, 0.01), np.ones(600, np.bool_))
    setup = Machine(STEEP, CHEAP)
    _, best = best_fixed(setup, text, 600, LIMITS)
    assert simulate(auto(setup), setup, text, 600).speed > 1.05 * best.speed


def test_without_noise_the_simulator_adds_up() -> None:
    """Fixed limits against the sum done by hand: 4 tokens in forwards of 3, 2 and 1 nodes."""
    text = Text(np.array([True, False, True, True]), np.ones(4), np.ones(4, np.bool_))
    setup = Machine(lambda n: 1.0 + n, DraftCost(step=0.5, node=0.25, always=0.125), noise=0.0, outliers=0.0)
    run = simulate(FixedNodes(3), setup, text, 4)
    # Step 1 accepts position 0 and commits 2; step 2 has room for 2, accepts position 2 and commits 2.
    assert run.policy_steps == (3, 2)
    assert run.tokens == 4
    assert run.seconds == pytest.approx((0.125 + 0.5 + 2 * 0.25 + 4.0) + (0.125 + 0.5 + 0.25 + 3.0))


def test_output_is_that_of_plain_decoding_and_released_rows_leave_nothing() -> None:
    target = ToyTarget(vocab_size=6, seed=2, sharpness=4.0)
    setup = Machine(FLAT)
    policy = auto(setup)
    drafter = PromptLookup()
    drafter.start(target)
    decoder = Decoder(target, drafter, Replay(), policy)
    stop = StopSettings(40, ignore_eos=True)
    settings = [SamplingSettings(), SamplingSettings(temperature=0.7, seed=3), SamplingSettings(temperature=1.2)]
    rows = [decoder.admit(Request([1, 2, 3, 1, 2], one, stop)) for one in settings]
    while any(row.finish_reason is None for row in rows):
        decoder.step()
    for row, one in zip(rows, settings, strict=True):
        alone = Decoder(target, drafter, Replay(), FixedNodes(1))
        plainly = alone.admit(Request([1, 2, 3, 1, 2], one, stop))
        while plainly.finish_reason is None:
            alone.step()
        assert row.new_tokens == plainly.new_tokens
    for row in rows:
        decoder.release(row)
    assert policy._accounts == {}


def drafted_steps(policy: AutoNodes, machine: Machine, rows: tuple[Row, ...], steps: int, *, right: bool) -> list[int]:
    """Most nodes of a row in each step of a batch whose drafts are all right, or all wrong."""
    state, most = State(rows), []
    for _ in range(steps):
        limits = policy.limits(state)
        drafts = [RowTree.chain(1, [2] * (limit - 1), [0.5] * (limit - 1)) for limit in limits]
        tree = policy.trim(TokenTree.stack(drafts), state)
        counts = tree.counts.tolist()
        paths = [tuple(range(count)) if right else (0,) for count in counts]
        for row, path in zip(rows, paths, strict=True):
            row.commit([0] * len(path))
            row.steps += 1
        seconds = machine.forward(sum(counts))
        drafting = machine.draft.step if max(limits) > 1 else 0.0
        verdict = Verdict(tuple(RowVerdict(path, 0) for path in paths))
        policy.observe(tree, verdict, state, StepTimes(drafting, seconds, 0.0))
        most.append(max(limits))
    return most


class Slow(FixedNodes):
    """Takes its time to learn from a step."""

    def observe(self, tree: TokenTree, verdict: Verdict, state: State, times: StepTimes) -> None:
        sleep(0.02)


def test_what_a_policy_takes_after_a_step_counts_in_the_next() -> None:
    decoder = Decoder(ToyTarget(), PromptLookup(), Replay(), Slow(1))
    decoder.admit(Request([1, 2, 3], stop=StopSettings(3, ignore_eos=True)))
    drafting = [one.times.draft for _ in range(3) for one in decoder.step()]
    assert len(drafting) == 3 and min(drafting[1:]) >= 0.02


def rows_of(batch: int) -> tuple[Row, ...]:
    return tuple(
        Row(b, b, np.ones(1, np.int64), SamplingSettings(), StopSettings(10_000), frozenset(), 100_000)
        for b in range(batch)
    )


def test_rows_of_a_batch_rest_and_come_back() -> None:
    setup = Machine(STEEP, DraftCost(step=0.05))
    policy = auto(setup)
    rows = rows_of(4)
    vain = drafted_steps(policy, setup, rows, 300, right=False)[100:]
    assert 0 < sum(limit > 1 for limit in vain) < 0.05 * len(vain), "looks, now and then, and none in vain"
    back = drafted_steps(policy, setup, rows, 100, right=True)[-50:]
    assert sum(limit > 1 for limit in back) > 40, "a drafter that pays again is used again"


def test_a_batch_in_which_little_can_be_won_is_left_alone() -> None:
    """In 24 of 25 steps nothing is decided for any row; in the others rows are judged together."""
    setup = Machine(small, DraftCost(step=0.2))
    policy = auto(setup)
    rows = rows_of(16)
    drafted_steps(policy, setup, rows, 32, right=False)
    decided = []
    for _ in range(200):
        most = drafted_steps(policy, setup, rows, 1, right=False)
        decided.append(len(policy._awake))
        assert policy._awake or most == [1]
    assert sum(count > 0 for count in decided) <= 0.08 * len(decided)
    assert {count for count in decided if count} == {16}


def test_rows_that_come_to_rest_one_after_the_other_wake_together() -> None:
    """Else something would be decided for one row or another in most steps."""
    setup = Machine(small, DraftCost(step=0.2))
    policy, rows = auto(setup), rows_of(16)
    for joined in range(1, 17):
        drafted_steps(policy, setup, rows[:joined], 1, right=False)
    drafted_steps(policy, setup, rows, 32, right=False)
    decided = 0
    for _ in range(200):
        drafted_steps(policy, setup, rows, 1, right=False)
        decided += len(policy._awake) > 0
    assert 200 / 16 <= decided <= 200 / 5


def test_plain_steps_are_accounted_for_when_something_is_decided_again() -> None:
    account = Account(moods=(Gains(), Gains(), Gains()), acceptance=Acceptance(), credit=0.25, purse=0.5, prize=0.5)
    account.resume(7, 0.5)  # its first step
    account.tokens, account.cost, account.rest = 3.0, 1.5, 9
    account.sleep(7, 8)
    assert account.wake == 24, "a rest ends at a multiple of 8"
    account.resume(24, 0.5)
    assert account.missed == 17, "steps 7 to 23"
    assert account.credit == pytest.approx(0.25 + 17 * 0.5 * account.allowance)
    assert account.purse == pytest.approx(0.5 + 17 * 0.01)
    assert account.tokens == pytest.approx(1 + 2 * 0.95**17)
    assert account.cost == pytest.approx(1 + 0.5 * 0.95**17)


def test_what_can_be_won_is_what_a_right_node_a_row_would_bring() -> None:
    curve = np.arange(1025.0) + 4.0  # 4 rows take 8, with a node more each 12
    assert Prices(curve, curve, 4, 64).prize == pytest.approx(2 / (12 / 8) - 1)
    assert Prices(curve, curve, 1, 64).prize == 1.0
    assert Prices(curve, curve, 400, 64).prize == 0.05, "never nothing: text may turn"
    assert Prices(curve, curve, 4, 64).share == pytest.approx(8 / 4), "the batch waits for one row's draft"


def test_the_rows_that_were_asked_share_what_drafting_took() -> None:
    times = DraftTimes()
    for _ in range(5):
        times.learn(0, 0.1)
    assert times.each(0.5, 4) == pytest.approx(0.1 + 0.4 / 4)
    assert times.each(0.5, 1) == 0.5


def test_what_a_row_starts_with_goes_by_the_batch_it_decodes_in() -> None:
    """Not by the one before it, nor by that which it was admitted in."""
    policy = auto(Machine(small))
    together = rows_of(16)
    for row in together:
        policy.expects(row)
    policy.limits(State(together))
    prize = Prices(policy.cost.curve(0.0), policy.cost.measured_curve, 16, 64).prize
    assert prize < 0.5
    head_start = 32 * 0.5 * (1 / policy.floor - 1)
    assert [account.credit for account in policy._accounts.values()] == pytest.approx([head_start * prize] * 16)
    policy.release(together)
    [alone] = rows_of(1)
    policy.expects(alone)
    policy.limits(State((alone,)))
    assert policy._accounts[alone.id].credit == pytest.approx(head_start)


def test_time_is_worth_what_the_rows_of_the_batch_make_of_it_now() -> None:
    """Those that rest decode plainly, and one that comes back has been doing so since its last draft."""
    policy = auto(Machine(FLAT))
    rows = rows_of(4)
    policy.limits(State(rows))
    for account in policy._present:
        account.settled, account.wake = 0, 99
    back = policy._present[2]
    back.tokens, back.wake, policy._wake, policy._step = 3.0, 21, 21, 20
    rates = []
    policy._arms.choose = lambda account, prices, others, rate: rates.append(rate) or 0  # type: ignore[method-assign]
    policy.limits(State(rows))
    assert rates == [pytest.approx((3 + (1 + 2 * 0.95**20)) / 4)]


def test_nodes_of_one_row_are_paid_at_the_rate_of_all_rows() -> None:
    curve = np.arange(1025.0) + 4.0  # for each of 4 rows a node more takes half a plain step
    account = Account(moods=(Gains(), Gains(), Gains()), acceptance=Acceptance(), credit=9.0, tokens=3.0)
    proposed = Proposed(2, [0, 1], True, [0.9])
    select([account], [proposed], 4, Prices(curve, curve, 4, 64))
    assert proposed.keep == [0, 1], "0.9 tokens for half a step at 1.5 tokens a step; the row alone makes 3"


def test_a_drafter_that_invests_and_has_nothing_to_send_is_left_alone() -> None:
    account = Account(moods=(Gains(), Gains(), Gains()), acceptance=Acceptance(), credit=5.0, invests=True, arm=1)
    account.allowance = 0.015
    rests = []
    for _ in range(14):
        account.rest = 0
        account.settle(1, 0.01)
        rests.append(account.rest)
    assert rests == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8]
    account.nodes = 2
    account.rest = 0
    account.settle(2, 0.02)
    assert account.rest == 0 and account.empty == 0


def test_probes_and_drawn_candidates_are_not_trimmed() -> None:
    probing = RowTree.under(1)
    probing.add(2, 0, confidence=0.001)
    probing.add(3, 0, Role.PROBE)
    drawn = RowTree.chain(1, [2, 3], [0.001, 0.001])
    drawn.laws[0] = np.full(8, 0.125)
    plainly = RowTree.chain(1, [2, 3], [0.001, 0.001])
    tree = TokenTree.stack([probing, drawn, plainly])
    assert [may_trim(tree, row) for row in range(3)] == [False, False, True]
    rows = tuple(
        Row(b, b, np.ones(1, np.int64), SamplingSettings(), StopSettings(), frozenset(), 100) for b in range(3)
    )
    state = State(rows)
    policy = auto(Machine(STEEP))
    policy.limits(state)
    assert policy.trim(tree, state).counts.tolist() == [3, 3, 1]


@st.composite
def trees(draw: st.DrawFn) -> tuple[TokenTree, list[list[int]]]:
    """A batch of trees and, for each, some of its nodes with all their ancestors."""
    rows, keeps = [], []
    for _ in range(draw(st.integers(1, 3))):
        row = RowTree.under(draw(st.integers(0, 50)))
        keep = [0]
        for _ in range(draw(st.integers(0, 12))):
            parent = draw(st.integers(0, len(row) - 1))
            node = row.add(draw(st.integers(0, 50)), parent, confidence=draw(st.floats(0, 1)))
            if parent in keep and draw(st.booleans()):
                keep.append(node)
        rows.append(row)
        keeps.append(keep)
    return TokenTree.stack(rows), keeps


@given(trees())
def test_a_part_of_a_tree_keeps_tokens_paths_and_positions(drawn: tuple[TokenTree, list[list[int]]]) -> None:
    tree, keeps = drawn
    part = subtree(tree, keeps)
    lengths = np.full(tree.batch, 7, dtype=np.int64)
    assert part.counts.tolist() == [len(keep) for keep in keeps]
    for b, keep in enumerate(keeps):
        for new, old in enumerate(keep):
            assert [int(part.tokens[b, n]) for n in part.path(b, new)] == [
                int(tree.tokens[b, n]) for n in tree.path(b, old)
            ]
            assert part.positions(lengths)[b, new] == tree.positions(lengths)[b, old]
            assert part.confidence[b, new] == tree.confidence[b, old]


def test_claims_are_corrected_by_what_happens() -> None:
    acceptance = Acceptance()
    cell = acceptance.cell(0.99, 1, acceptance.mood(0, 4))
    assert acceptance.estimate(cell) > 0.6
    for _ in range(60):
        acceptance.learn(cell, False)
    assert acceptance.estimate(cell) < 0.05
    for _ in range(60):
        acceptance.learn(cell, True)
    assert acceptance.estimate(cell) > 0.6, "old trials fade"


def test_gains_of_smaller_limits_follow_from_larger_ones() -> None:
    gains = Gains()
    arm = arm_below(8)
    for _ in range(40):
        gains.learn(arm, [1, 2, 3], list(range(1, 8)), nested=True)
    accepted, scored = gains.expected()
    for limit, expected in ((1, 0.0), (2, 1.0), (3, 2.0), (4, 3.0), (8, 3.0)):
        assert accepted[arm_below(limit)] == pytest.approx(expected, abs=0.35)
        assert scored[arm_below(limit)] == pytest.approx(limit - 1, abs=0.35)


def test_drafting_is_not_afforded_at_limits_that_nothing_is_known_of() -> None:
    times = DraftTimes()
    assert np.isinf(times.extra()[2:]).all()
    for _ in range(2):
        times.learn(0, 0.25)
    times.learn(arm_below(4), 1.75)
    extra = times.extra()
    assert extra[arm_below(4)] == pytest.approx(1.5)
    assert extra[arm_below(2)] == pytest.approx(0.5)
    assert extra[arm_below(16)] == pytest.approx(7.5)


def test_one_slow_step_without_a_draft_does_not_make_drafting_free() -> None:
    """Where drafting looked free there was a draft in every step, and nothing told any more what other steps take."""
    times = DraftTimes()
    times.learn(arm_below(2), 0.1)
    times.learn(0, 1.0)
    assert times.extra()[1] == pytest.approx(0.1)
    times.learn(0, 0.02)
    assert times.extra()[1] == pytest.approx(0.08)


@pytest.mark.parametrize("floor", [0.0, 1.0, -1.0, float("nan")])
def test_a_floor_that_cannot_be_kept_is_refused(floor: float) -> None:
    with pytest.raises(InputError, match="floor"):
        AutoNodes(CostModel(Machine(FLAT).timings()), floor=floor)
