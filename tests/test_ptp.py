"""PTP: exact whatever the student says, and as fast as a perfect student allows."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import students
import tiny_models
from betoken.decode import Decoder, Request
from betoken.drafters.ptp import PTP, in_turn
from betoken.errors import InputError
from betoken.state import Row, SamplingSettings, StopSettings
from betoken.testing import ToyTarget, check_drafter, plain_tokens
from betoken.testing.running import decode, finish, sample_requests
from betoken.tree import Role
from betoken.tuning.auto import AutoNodes
from betoken.tuning.cost import CostModel
from betoken.tuning.nodes import FixedNodes, StepTimes
from betoken.tuning.simulate import DraftCost, Machine, linear_curve
from betoken.verifiers import VERIFIERS
from betoken.verifiers.replay import Greedy, Replay
from growing_toys import JumpingNodes
from ptp_worlds import PerfectToy

DRAWN = SamplingSettings(temperature=0.9, top_k=5, top_p=0.95)
GREEDY = SamplingSettings()
MODES = ["partial", "full", "sequential"]
OBJECTIVES = ["o-ptp", "c-ptp", "scratch", "independent"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A student of each objective for tiny llama, window 5, trained for DRAWN's law."""
    root = tmp_path_factory.mktemp("students")
    return {
        one: students.save(root / one, objective=one, weights="same", law=DRAWN, runs=(0.9, 0.8, 0.7, 0.6)).folder
        for one in OBJECTIVES
    }


def perfect(folder: Path, sampling: SamplingSettings, **options: object) -> tuple[PerfectToy, PTP]:
    target, drafter = PerfectToy(sampling), PTP(str(folder), **options)  # type: ignore[arg-type]
    drafter.start(target)
    return target, drafter


def request(sampling: SamplingSettings, tokens: int = 41, prompt: int = 4) -> Request:
    return Request([1 + n % 3 for n in range(prompt)], sampling, StopSettings(max_new_tokens=tokens, ignore_eos=True))


def committed(target: PerfectToy, drafter: PTP, asked: Request, nodes: int) -> list[int]:
    """Tokens of each forward of decoding."""
    decoder = Decoder(target, drafter, Replay(), FixedNodes(nodes))
    row, counts = decoder.admit(asked), []
    while row.finish_reason is None:
        counts += [len(one.tokens) for one in decoder.step()]
    assert row.new_tokens == plain_tokens(target, asked)
    return counts


@pytest.mark.parametrize("objective", ["o-ptp", "c-ptp", "scratch"])
@pytest.mark.parametrize("sampling", [DRAWN, GREEDY], ids=["drawn", "greedy"])
def test_a_perfect_student_fills_every_step(
    folders: dict[str, Path], objective: str, sampling: SamplingSettings
) -> None:
    """Full: after a first step of one token, L - 1 drafts and the token behind them: L = 5 a step."""
    target, drafter = perfect(folders[objective], sampling, mode="full")
    assert committed(target, drafter, request(sampling), 30) == [1, *[5] * 8]
    target, drafter = perfect(folders[objective], sampling, mode="full", length=3)
    assert committed(target, drafter, request(sampling, 31), 12) == [1, *[3] * 10]


@pytest.mark.parametrize("objective", ["o-ptp", "c-ptp"])
def test_sequential_takes_a_forward_to_draft_and_one_to_verify(folders: dict[str, Path], objective: str) -> None:
    """Each of them commits a token of its own; the second the drafts too."""
    target, drafter = perfect(folders[objective], DRAWN, mode="sequential")
    assert committed(target, drafter, request(DRAWN, 42), 30) == [1, 5] * 7
    drafting = [(tree.roles == Role.PROBE).any() for tree in target.trees if tree.wanted[0, 0]][:14]
    assert drafting == [True, False] * 6 + [True, False]


def test_partial_needs_few_nodes_for_what_full_does_with_many(folders: dict[str, Path]) -> None:
    """An o-ptp student that is sure of itself: all nodes go to the branch behind the last draft."""
    target, drafter = perfect(folders["o-ptp"], DRAWN)
    assert committed(target, drafter, request(DRAWN), 10) == [1, *[5] * 8]
    sizes = [int(tree.counts[0]) for tree in target.trees if tree.inputs.shape[1] > 4]
    assert max(sizes) == 10


@pytest.mark.parametrize("nodes", range(1, 12))
def test_accepted_drafts_are_those_that_the_branch_held(folders: dict[str, Path], nodes: int) -> None:
    """With a perfect student each step's tokens are all it verified: its drafts and one more."""
    target, drafter = perfect(folders["o-ptp"], DRAWN)
    counts = committed(target, drafter, request(DRAWN, 30), nodes)
    trees = [tree for tree in target.trees if tree.wanted[0, 0]][: len(counts)]
    assert [int((tree.roles == Role.CANDIDATE).sum()) + 1 for tree in trees] == counts
    assert max(tree.counts[0] for tree in trees) <= nodes
    assert len(counts) < 30 or nodes < 4


@settings(max_examples=30, deadline=None)
@given(
    objective=st.sampled_from(OBJECTIVES),
    mode=st.sampled_from(MODES),
    accuracy=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    temperature=st.sampled_from([0.0, 0.9]),
    most=st.integers(1, 24),
    seed=st.integers(0, 1000),
)
def test_batches_with_jumping_budgets_are_plain_decoding(
    folders: dict[str, Path], objective: str, mode: str, accuracy: float, temperature: float, most: int, seed: int
) -> None:
    """Rows of their own lengths, seeds and samples beside each other, with a student that errs."""
    target = PerfectToy(DRAWN, accuracy=accuracy, seed=seed % 7)
    drafter = PTP(str(folders[objective]), mode)  # type: ignore[arg-type]
    drafter.start(target)
    law = {"temperature": temperature, "top_k": 5, "top_p": 0.95}
    asked = [
        Request([1] * (1 + 2 * n), SamplingSettings(seed=seed + n // 2, **law), StopSettings(9 + 5 * n), sample=n % 2)
        for n in range(4)
    ]
    decoder = Decoder(target, drafter, Replay(), JumpingNodes(most, seed), prefill_chunk=3)
    rows = [decoder.admit(one) for one in asked]
    finish(decoder, rows)
    assert [row.new_tokens for row in rows] == [plain_tokens(target, one) for one in asked]


def test_drafts_that_found_no_room_are_verified_later(folders: dict[str, Path]) -> None:
    target, drafter = perfect(folders["o-ptp"], DRAWN)
    decoder = Decoder(target, drafter, Replay(), FixedNodes(6))
    row = decoder.admit(request(DRAWN))
    decoder.step()
    decoder.policy = FixedNodes(1)
    decoder.step()
    decoder.policy = FixedNodes(4)
    [advance] = decoder.step()
    assert len(advance.tokens) == 4  # the branch of 5 nodes gave 4 drafts, a plain step confirmed one of them
    assert row.new_tokens == plain_tokens(target, request(DRAWN))[: row.generated]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("mode", MODES)
def test_conformance(folders: dict[str, Path], objective: str, mode: str) -> None:
    target = PerfectToy(DRAWN, accuracy=0.8, context=40)
    target.eos_ids = (0,)
    check_drafter(lambda: PTP(str(folders[objective]), mode), target=target, max_nodes=12)  # type: ignore[arg-type]


@pytest.mark.parametrize("weights", ["lora", "full", "same"])
@pytest.mark.parametrize(
    ("objective", "embedding"), [("o-ptp", "bits"), ("c-ptp", "digits"), ("scratch", "interpolated")]
)
def test_random_students_of_a_real_decoder_change_no_token(
    tmp_path: Path, weights: str, objective: str, embedding: str
) -> None:
    """Alone and in a batch, sampled and greedy; float64, so that no rounding can tip a pick."""
    target = tiny_models.pair("llama", dtype="float64").decoder
    saved = students.save(tmp_path, weights=weights, objective=objective, embedding=embedding)
    asked = sample_requests(target)[:5]
    expected = [plain_tokens(target, one) for one in asked]
    for mode in MODES:
        drafter = PTP(str(saved.folder), mode)  # type: ignore[arg-type]
        drafter.start(target)
        assert [row.new_tokens for row in decode(target, drafter, Replay(), asked, 14)] == expected
    alone = PTP(str(saved.folder))
    alone.start(target)
    assert [decode(target, alone, Replay(), [one], 14)[0].new_tokens for one in asked] == expected
    assert decode(target, alone, Greedy(), asked[:1], 14)[0].new_tokens == expected[0]


@pytest.mark.parametrize("objective", ["c-ptp", "scratch"])
def test_a_real_decoder_that_ignores_its_text_has_a_perfect_student_in_itself(tmp_path: Path, objective: str) -> None:
    """Without a last norm all logits are 0: every node says the uniform law, and the numbers alone pick."""
    pair = tiny_models.pair("llama")
    pair.decoder.final_norm = torch.zeros_like(pair.decoder.final_norm)
    law = SamplingSettings(temperature=1.0)
    saved = students.save(tmp_path, weights="same", objective=objective, law=law, runs=(0.99, 0.98, 0.97, 0.96))
    for mode, counts in (("full", [1, *[5] * 6]), ("partial", [1, *[5] * 6]), ("sequential", [1, 5] * 5 + [1])):
        drafter = PTP(str(saved.folder), mode)  # type: ignore[arg-type]
        drafter.start(pair.decoder)
        decoder = Decoder(pair.decoder, drafter, Replay(), FixedNodes(64))
        asked = Request([5, 6], SamplingSettings(temperature=1.0, seed=3), StopSettings(sum(counts), ignore_eos=True))
        row, got = decoder.admit(asked), []
        while row.finish_reason is None:
            got += [len(one.tokens) for one in decoder.step()]
        assert got == counts
        assert len(set(row.new_tokens)) > 15


class Clocked(AutoNodes):
    """`--nodes auto` by a clock that knows what a pass costs."""

    curve = staticmethod(linear_curve(0.04, flat=0.01, bend=12, steep=0.08))

    def observe(self, tree, verdict, state, times):  # type: ignore[no-untyped-def]
        nodes = int(tree.counts.sum())
        super().observe(tree, verdict, state, StepTimes(0.0004 if nodes > 1 else 0.0001, self.curve(nodes), 0.0))


@pytest.mark.parametrize(("accuracy", "least"), [(1.0, 2.5), (0.9, 1.7)])
def test_nodes_auto_finds_out_what_a_student_is_worth(folders: dict[str, Path], accuracy: float, least: float) -> None:
    target = PerfectToy(DRAWN, accuracy=accuracy)
    drafter = PTP(str(folders["o-ptp"]))
    drafter.start(target)
    policy = Clocked(CostModel(Machine(Clocked.curve, DraftCost(step=0.005)).timings()))
    decoder = Decoder(target, drafter, Replay(), policy)
    asked = request(DRAWN, 300)
    row, sizes = decoder.admit(asked), []
    while row.finish_reason is None:
        sizes += [one.nodes for one in decoder.step()]
    assert row.new_tokens == plain_tokens(target, asked)
    plain = 300 * Clocked.curve(1)
    assert plain / sum(Clocked.curve(nodes) for nodes in sizes) > least


def test_nodes_auto_leaves_a_useless_student_alone(folders: dict[str, Path]) -> None:
    target = PerfectToy(DRAWN, accuracy=0.0)
    drafter = PTP(str(folders["o-ptp"]))
    drafter.start(target)
    policy = Clocked(CostModel(Machine(Clocked.curve, DraftCost(step=0.005)).timings()))
    decoder = Decoder(target, drafter, Replay(), policy)
    row, sizes = decoder.admit(request(DRAWN, 300)), []
    while row.finish_reason is None:
        sizes += [one.nodes for one in decoder.step()]
    assert 300 * Clocked.curve(1) / sum(Clocked.curve(nodes) for nodes in sizes) > 0.96


def test_nothing_is_drafted_behind_an_end_token_or_beyond_the_room(folders: dict[str, Path]) -> None:
    target, drafter = perfect(folders["o-ptp"], DRAWN)
    plain = plain_tokens(target, request(DRAWN, 12))
    end = plain[8]
    target.trees.clear()
    decoder = Decoder(target, drafter, Replay(), FixedNodes(40))
    row = decoder.admit(Request([1, 2, 3, 1], DRAWN, StopSettings(12, stop_ids=(end,), ignore_eos=True)))
    finish(decoder, [row])
    assert row.new_tokens == plain[: plain.index(end) + 1]
    for tree in target.trees:
        drafts = tree.tokens[0][tree.roles[0] == Role.CANDIDATE].tolist()
        assert end not in drafts[:-1]
        if end in drafts:
            assert tree.parents[0].tolist().count(len(drafts)) == 0
    short = Decoder(target, drafter, Replay(), FixedNodes(40))
    target.trees.clear()
    row = short.admit(request(DRAWN, 4))
    finish(short, [row])
    assert max(int((tree.roles == Role.PROBE).sum()) for tree in target.trees) == 3  # of which two can be drafts


@pytest.mark.parametrize("name", [name for name in VERIFIERS if name not in ("replay", "greedy", "asd")])
def test_other_verifiers_take_the_drafts_as_they_are(folders: dict[str, Path], name: str) -> None:
    target, drafter = perfect(folders["o-ptp"], DRAWN)
    try:
        row = decode(target, drafter, VERIFIERS[name](), [request(DRAWN)], 10)[0]
    except InputError as error:
        pytest.skip(str(error))
    assert row.generated == 41


@pytest.mark.parametrize(
    "other", [GREEDY, SamplingSettings(1.0, 5, 0.95), SamplingSettings(0.9, 5, 0.95, presence_penalty=0.5)]
)
def test_a_request_outside_the_trained_law_is_exact_and_told_once(
    folders: dict[str, Path], other: SamplingSettings, caplog: pytest.LogCaptureFixture
) -> None:
    target, drafter = perfect(folders["o-ptp"], DRAWN)
    with caplog.at_level(logging.WARNING, "betoken"):
        decode(target, drafter, Replay(), [request(SamplingSettings(0.9, 5, 0.95, seed=n)) for n in range(2)], 8)
        assert not caplog.records
        for _ in range(2):
            row = decode(target, drafter, Replay(), [request(other)], 8)[0]
            assert row.new_tokens == plain_tokens(target, request(other))
    assert [record.getMessage() for record in caplog.records] == [
        "drafter ptp: the student was trained for temperature 0.9, top_k 5, top_p 0.95, min_p 0 and nothing else; "
        "other answers are exact too, but fewer drafts will be right"
    ]


def test_what_cannot_be_used_is_said_in_one_line(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"drafter\.student=FOLDER"):
        PTP()
    with pytest.raises(InputError, match=r"no ptp\.json"):
        PTP(str(tmp_path))
    with pytest.raises(InputError, match="--dtype float32"):
        PTP(str(folders["o-ptp"])).start(ToyTarget())
    for length in (1, 6):
        with pytest.raises(InputError, match=f"length must be from 2 to the student's window, 5, not {length}"):
            PTP(str(folders["o-ptp"]), length=length)
    with pytest.raises(InputError, match="intermediate_size"):
        PTP(str(folders["o-ptp"])).start(tiny_models.pair("llama-wide").decoder)


@pytest.mark.parametrize(
    "file", ["ptp.json", "u_embedding.safetensors", "adapter_model.safetensors", "model.safetensors"]
)
@pytest.mark.parametrize("damage", ["missing", "truncated", "corrupt"])
def test_a_damaged_student_is_refused_in_one_line(tmp_path: Path, file: str, damage: str) -> None:
    weights = {"adapter_model.safetensors": "lora", "model.safetensors": "full"}.get(file, "same")
    folder = students.save(tmp_path, weights=weights).folder
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: len(content) // 2] if damage == "truncated" else b"{" * len(content))
    if damage == "missing":
        (folder / file).unlink()
    with pytest.raises(InputError) as caught:
        PTP(str(folder)).start(tiny_models.pair("llama").decoder)
    assert file in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_card_with_other_fields_is_refused(tmp_path: Path) -> None:
    folder = students.save(tmp_path).folder
    card = json.loads((folder / "ptp.json").read_text())
    (folder / "ptp.json").write_text(json.dumps(card | {"window": "many"}))
    with pytest.raises(InputError, match="window must be a whole number"):
        PTP(str(folder)).start(tiny_models.pair("llama").decoder)


def test_the_numbers_are_those_of_replay(folders: dict[str, Path]) -> None:
    """The inputs of a first step against `noise.uniform`, in the order of each objective."""
    from betoken import noise

    own = [noise.uniform(9, 2, k) for k in range(6)]
    told = {"o-ptp": own[:5], "c-ptp": [-1.0, *own[:4]], "independent": [-1.0] * 5}
    for objective, inputs in told.items():
        target, drafter = perfect(folders[objective], DRAWN)
        decoder = Decoder(target, drafter, Replay(), FixedNodes(6))
        asked = request(SamplingSettings(0.9, 5, 0.95, seed=9))
        decoder.admit(Request(asked.prompt, asked.sampling, asked.stop, sample=2))
        decoder.step()
        tree = target.trees[-1]
        np.testing.assert_array_equal(tree.inputs[0, 1:], inputs)
        assert tree.wanted[0].tolist() == [True, False, True, True, True, True]
        assert isinstance(decoder.rows[0], Row)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_chances_are_those_of_guesses_that_go_wrong_together(confidence: list[float], seed: int) -> None:
    """Guess k is right where one number is below its confidence, so all of k are where it is below the least."""
    right = np.random.default_rng(seed).random(20_000)[:, None] < np.array(confidence)
    reached = right.cumprod(axis=1).mean(axis=0)
    np.testing.assert_allclose(in_turn(np.array(confidence)).cumprod(), reached, atol=0.02)


def test_a_certain_guess_behind_an_unsure_one_adds_no_doubt() -> None:
    np.testing.assert_allclose(in_turn(np.array([0.5, 0.9, 0.4, 0.4])), [0.5, 1.0, 0.8, 1.0])
    assert in_turn(np.array([1e-320, 1e-320])).max() <= 1.0
