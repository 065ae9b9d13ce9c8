"""PTP on real weights, from a teacher's samples to exact answers: collect, train a LoRA student, decode with it."""

from __future__ import annotations

from pathlib import Path

import pytest

import betoken
from betoken.cli import main
from betoken.models.student import StudentCard

LAW = {"temperature": 0.7, "top_k": 50, "top_p": 0.95}
OPTIONS = [part for name, value in LAW.items() for part in (f"--{name.replace('_', '-')}", str(value))]
PROMPTS = ["The capital of France is", "def add(a, b):\n    return"]


def call(*arguments: str) -> None:
    """Run a command, which must end well."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


@pytest.fixture(scope="module")
def student(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student of a few steps: it has learnt little, and decoding with it is exact all the same."""
    home = tmp_path_factory.mktemp("ptp")
    (home / "prompts.txt").write_text("Once upon a time\nThe largest planet is\nimport os\n1, 2, 3, 4,\n")
    collect = ["train", "collect", "--model", str(smollm2), "--prompts", str(home / "prompts.txt"), "--raw"]
    call(*collect, *OPTIONS, "--samples", "1", "--max-new-tokens", "24", "--out", str(home / "samples"))
    train = ["train", "ptp", "--model", str(smollm2), "--data", str(home / "samples"), "--sequence", "32"]
    train += ["--window", "4", "--cuts", "4", "--batch", "2", "--rank", "4", "--lr", "1e-3", "--warmup", "2"]
    call(*train, "--steps", "4", "--held-out", "0.3", "--out", str(home / "student"))
    return home / "student"


def test_the_student_learns_the_law_of_its_samples(student: Path) -> None:
    card = StudentCard.load(student)
    assert {name: getattr(card.law, name) for name in LAW} == LAW
    assert "dtype" not in (student / "README.md").read_text(), "its kernels are the default's"
    assert (card.weights, card.window, len(card.first_runs)) == ("lora", 4, 4)


@pytest.mark.parametrize("mode", ["partial", "sequential"])
@pytest.mark.parametrize("temperature", [0.7, 0.0])
def test_answers_are_those_of_plain_decoding(smollm2: Path, student: Path, mode: str, temperature: float) -> None:
    found = []
    for drafter, settings, nodes in (("none", {}, 1), ("ptp", {"student": str(student), "mode": mode}, 10)):
        engine = betoken.load(str(smollm2), drafter=drafter, drafter_settings=settings, nodes=nodes)
        law = {**LAW, "temperature": temperature}
        found.append(engine.generate(PROMPTS, raw=True, max_new_tokens=24, ignore_eos=True, seed=4, **law))  # type: ignore[arg-type]
    plain, drafted = found
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert drafted[0].stats.drafter == "ptp"
    assert drafted[0].stats.nodes_per_forward > 3.0
