"""`betoken inspect`: what is recorded is what the decoder did, and all of it is drawn."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from betoken.decode import Decoder, Request
from betoken.drafters.prompt_lookup import PromptLookup
from betoken.drafters.ptd import PTD
from betoken.errors import InputError
from betoken.inspect import Recorder, SeenNode, Step, _layout, draw, label, rich_tree
from betoken.state import Row, SamplingSettings, StopSettings
from betoken.testing import ToyTarget
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Replay

PROMPT = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]


def recorded(drafter: PromptLookup | PTD, count: int = 2, most: int = 1000) -> tuple[Recorder, list[Row], ToyTarget]:
    target = ToyTarget(vocab_size=6, order=1, seed=5, sharpness=4.0)
    drafter.start(target)
    decoder = Decoder(target, drafter, Replay(), FixedNodes(12))
    recorder = Recorder(most)
    decoder.observer = recorder
    stop = StopSettings(30, ignore_eos=True)
    rows = [decoder.admit(Request(PROMPT, SamplingSettings(temperature=0.8 * n, seed=n), stop)) for n in range(count)]
    while any(row.finish_reason is None for row in rows):
        decoder.step()
    return recorder, rows, target


@pytest.mark.parametrize("drafter", [PromptLookup(), PTD()], ids=["prompt-lookup", "ptd"])
def test_the_accepted_paths_spell_the_answer(drafter: PromptLookup | PTD) -> None:
    recorder, rows, _ = recorded(drafter)
    for row in rows:
        mine = [step for step in recorder.steps if step.row == row.id]
        assert [step.step for step in mine] == list(range(1, row.steps + 1))
        told: list[int] = []
        for step in mine:
            told += [node.token for node in step.nodes if node.accepted and node.role == "candidate"] + [step.bonus]
        assert told[: len(row.new_tokens)] == row.new_tokens
        assert sum(step.committed for step in mine) == len(told)


def test_probabilities_are_the_targets() -> None:
    recorder, rows, target = recorded(PromptLookup(), count=1)
    text = list(PROMPT)
    seen = 0
    for step in recorder.steps:
        for node in step.nodes:
            path, at = [], node
            while at.parent >= 0:
                path.append(at.token)
                at = step.nodes[at.parent]
            if path:
                before = text + path[:0:-1]
                logits = target.next_logits(before).astype(np.float64)
                law = np.exp(logits) / np.exp(logits).sum()
                assert node.probability == pytest.approx(law[node.token], rel=1e-5)
                seen += 1
        text = PROMPT + rows[0].new_tokens[: len(text) - len(PROMPT) + step.committed]
    assert seen > 10


def test_probes_are_told_from_candidates() -> None:
    recorder, _, _ = recorded(PTD(), count=1)
    roles = {node.role for step in recorder.steps for node in step.nodes}
    assert {"pending", "seed", "probe"} <= roles
    assert not any(node.accepted for step in recorder.steps for node in step.nodes if node.role in ("seed", "probe"))


def test_seeds_stand_in_a_chain_and_what_grew_hangs_under_them() -> None:
    recorder, _, _ = recorded(PTD(preset="paper"), count=1)
    grown = 0
    for step in recorder.steps:
        roles = {node.index: node.role for node in step.nodes}
        for node in step.nodes:
            if node.role == "seed":
                assert roles[node.parent] in ("pending", "seed", "candidate")
            if node.role == "probe":
                assert roles[node.parent] in ("seed", "probe", "candidate")
                grown += roles[node.parent] != "candidate"
    assert grown > 5


def test_only_the_first_steps_are_kept() -> None:
    recorder, _, _ = recorded(PromptLookup(), count=2, most=2)
    assert sorted((step.row, step.step) for step in recorder.steps) == [(0, 1), (0, 2), (1, 1), (1, 2)]


def hand_made() -> Step:
    """pending -> (a accepted -> bonus; b -> c), and a PTP probe."""
    return Step(
        row=0,
        step=3,
        generated=5,
        nodes=(
            SeenNode(0, 9, -1, "pending", 0, True, 1.0, None, None),
            SeenNode(1, 11, 0, "candidate", 1, False, 0.25, 0.125, None),
            SeenNode(2, 12, 1, "candidate", 2, False, 0.5, 0.5, None),
            SeenNode(3, 10, 0, "candidate", 1, True, 0.75, 0.875, None),
            SeenNode(4, 0, 3, "probe", 2, False, 1.0, None, 0.375),
        ),
        bonus=13,
        bonus_probability=0.625,
    )


def spell(token: int) -> str:
    return {9: " pend", 10: "a\n", 11: "b$_", 12: "[c]", 13: "bonus!", 0: "never"}[token]


def test_every_node_is_in_the_terminal_tree() -> None:
    console = Console(record=True, width=100)
    console.print(rich_tree(hand_made(), spell))
    lines = [line.strip(" │├└─\xa0") for line in console.export_text().splitlines()]
    assert lines == [
        "row 0, step 3: 5 nodes, 2 committed",
        "·pend  pending",
        "b$_  candidate c=0.25 p=0.12",
        "[c]  candidate c=0.50 p=0.50",
        "a⏎  accepted c=0.75 p=0.88",
        "u = 0.375  probe",
        "bonus!  bonus p=0.62",
    ]


def test_control_characters_and_long_tokens_are_shown_safely() -> None:
    node = SeenNode(1, 0, 0, "candidate", 1, False, 0.5, None, None)
    assert label(node, lambda token: "\x1b[31m" + "x" * 40).startswith("?[31mxxx")
    assert len(label(node, lambda token: "x" * 400)) < 60
    assert label(node, lambda token: "").startswith("∅")


def test_no_two_boxes_share_a_place_and_the_kept_path_is_straight() -> None:
    recorder, _, _ = recorded(PTD())
    for step in [*recorder.steps, hand_made()]:
        place = _layout(step)
        assert len(set(place.values())) == len(step.nodes) + 1
        assert {place[node.index][1] for node in step.nodes if node.accepted} == {0.0}
        assert place[-2][1] == 0.0
        for node in step.nodes:
            assert place[node.index][0] == node.depth


def test_pictures_are_written_or_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw([hand_made()], tmp_path / "tree.png", spell, title="toy")
    assert (tmp_path / "tree.png").read_bytes().startswith(b"\x89PNG")
    draw([hand_made(), hand_made()], tmp_path / "tree.svg", spell)
    assert "<svg" in (tmp_path / "tree.svg").read_text()
    with pytest.raises(InputError, match="cannot be written"):
        draw([hand_made()], tmp_path / "none" / "tree.png", spell)
    with pytest.raises(InputError, match="no steps"):
        draw([], tmp_path / "tree.png", spell)
