"""The reproduction on Python source, at a size that says nothing about the claim, and what it decodes with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from betoken.bench.subject import ModelSpec, Subject, load_subject
from betoken.cli import main
from betoken.errors import InputError
from betoken.models.student import StudentCard
from betoken.models.target import Cache, Scores
from betoken.models.tokenizer import Tokenizer
from betoken.training.fit import Tell
from betoken.training.objectives import PLAIN
from betoken.training.reproduce.corpus import read_corpus
from betoken.training.reproduce.decoding import Answers, decode, decoding_table, draft_model_way, ptp_ways
from betoken.training.reproduce.python import PythonFindings, PythonSettings, reproduce_python
from betoken.tree import Role, TokenTree

OPTIONS = (
    "--vocabulary 270 --context 48 --hidden 16 --layers 1 --drafter-hidden 8 --drafter-layers 1 --batch 4 --window 6 "
    "--cuts 2 --teacher-steps 3 --drafter-steps 2 --student-steps 2 --prompts 3 --prompt-tokens 8 --max-new-tokens 12 "
    "--nodes 8 --temperature 0.8 --top-k 250 --top-p 0.99 --validation-share 0.3 --validation-rows 6 --threads 1"
)
MODES = ("partial quadratic", "full quadratic", "sequential")


def tiny(source: Path) -> PythonSettings:
    """The settings of `OPTIONS`."""
    return PythonSettings(
        source=str(source),
        vocabulary=270,
        context=48,
        hidden_size=16,
        num_hidden_layers=1,
        drafter_hidden_size=8,
        drafter_layers=1,
        batch=4,
        window=6,
        cuts=2,
        teacher_steps=3,
        drafter_steps=2,
        student_steps=2,
        prompts=3,
        prompt_tokens=8,
        max_new_tokens=12,
        nodes=8,
        temperature=0.8,
        top_k=250,
        top_p=0.99,
        validation_share=0.3,
        validation_rows=6,
    )


def quiet(resume: str | None) -> AbstractContextManager[Tell]:
    return nullcontext(lambda done, total, what: None)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty small modules."""
    folder = tmp_path_factory.mktemp("lib")
    for n in range(40):
        place = folder / ("pkg" if n % 3 else "") / f"module{n}.py"
        place.parent.mkdir(exist_ok=True)
        place.write_text(f'"""Number {n}."""\n\n\ndef f{n}(x):\n    return x + {n * n}\n' * 3)
    return folder


@pytest.fixture(scope="module")
def made(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PythonFindings]:
    """A finished run of seed 1, and its folder."""
    out = tmp_path_factory.mktemp("python")
    return out, reproduce_python(tiny(source), 1, out, quiet)


def test_the_split_is_disjoint_stable_and_by_path_alone(source: Path, tmp_path: Path) -> None:
    first = read_corpus(source, 0.3)
    assert not first.training.keys() & first.validation.keys()
    assert len(first.training) + len(first.validation) == 40
    assert 4 <= len(first.validation) <= 20
    assert list(first.training) == sorted(first.training)
    for n in range(0, 40, 2):  # half of the files, with other texts: each stays where it was
        name = f"pkg/module{n}.py" if n % 3 else f"module{n}.py"
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"x = {n}\n")
    second = read_corpus(tmp_path, 0.3)
    assert second.validation.keys() == {name for name in first.validation if (tmp_path / name).is_file()}
    assert second.training.keys() == {name for name in first.training if (tmp_path / name).is_file()}
    smaller = read_corpus(source, 0.15).validation
    assert list(first.validation)[: len(smaller)] == list(smaller)


def test_tests_tables_and_what_is_no_text_are_left_out(source: Path, tmp_path: Path) -> None:
    for n in range(20):
        (tmp_path / f"m{n}.py").write_text("x = 1\n")
    for folder in ("test", "pkg/tests", "site-packages", "encodings"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "m.py").write_text("x = 1\n")
    (tmp_path / "long.py").write_text("x = 1\n" * 50_000)
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9\n")
    (tmp_path / "empty.py").write_text("\n")
    (tmp_path / "notes.txt").write_text("x = 1\n")
    found = read_corpus(tmp_path, 0.5)
    assert sorted([*found.training, *found.validation]) == sorted(f"m{n}.py" for n in range(20))


def test_everything_is_measured(made: tuple[Path, PythonFindings], source: Path) -> None:
    out, found = made
    assert set(found.perplexity) == {"teacher", "ar-drafter"}
    assert all(1.0 < value < 300.0 for value in found.perplexity.values())
    assert set(found.right_in_a_row) == {"ar-drafter", "o-ptp", "independent"}
    assert all(0.0 <= run <= 6.0 for run in found.right_in_a_row.values())
    assert {(one.drafter, one.mode) for one in found.decoded} == {
        *((name, mode) for name in ("O-PTP", "independent") for mode in MODES),
        ("AR drafter", "chain"),
    }
    for one in found.decoded:
        assert (one.answers, one.equal, one.nodes) == (3, 3, 8)
        assert one.forwards <= one.tokens <= min(36, one.forwards + one.accepted)
    corpus = read_corpus(source, 0.3)
    lines = (out / "validation.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == list(corpus.validation.values())
    assert Tokenizer.from_folder(out / "tokenizer").core.get_vocab_size() <= 270
    vocabularies = [Tokenizer.from_folder(out / "seed-1" / name).vocabulary for name in ("teacher", "ar-drafter")]
    assert vocabularies[0] == vocabularies[1] == Tokenizer.from_folder(out / "tokenizer").vocabulary


def test_a_run_that_was_killed_goes_on(made: tuple[Path, PythonFindings], source: Path, tmp_path: Path) -> None:
    """Killed while it trains, then in the middle of writing an answer: the findings are those of a whole run."""
    _, whole = made
    left = 8

    @contextmanager
    def killing(resume: str | None) -> Iterator[Tell]:
        def tell(done: int, total: int, what: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise KeyboardInterrupt

        yield tell

    with pytest.raises(KeyboardInterrupt):
        reproduce_python(tiny(source), 1, tmp_path, killing)
    assert (tmp_path / "seed-1" / "teacher" / "model.safetensors").is_file()
    assert not (tmp_path / "seed-1" / "findings.json").exists()
    assert reproduce_python(tiny(source), 1, tmp_path, quiet) == whole
    answers = tmp_path / "seed-1" / "decoding.jsonl"
    content = answers.read_bytes()
    answers.write_bytes(content[: len(content) // 2])
    assert reproduce_python(tiny(source), 1, tmp_path, quiet) == whole
    assert answers.read_bytes() == content
    with pytest.raises(InputError, match=r"settings.json: was made with vocabulary 270, not 300"):
        reproduce_python(replace(tiny(source), vocabulary=300), 1, tmp_path, quiet)


def test_the_command_line_finds_it_done(
    made: tuple[Path, PythonFindings], source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its options are the settings of the finished run: nothing is trained or decoded again, and all is published."""
    pytest.importorskip("matplotlib")
    out = made[0]
    names = ("teacher/model.safetensors", "ar-drafter/model.safetensors", "o-ptp/model.safetensors", "decoding.jsonl")
    before = [(out / "seed-1" / name).read_bytes() for name in names]
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "python", "--out", str(out), "--source", str(source), *OPTIONS.split()])
    assert ended.value.code == 0
    assert [(out / "seed-1" / name).read_bytes() for name in names] == before
    told = capsys.readouterr().out
    assert (out / "python.md").read_text() == told
    assert "| 1 | AR drafter |" in told
    assert "All 21 answers are plain sampling's" in told
    assert (out / "python.png").read_bytes().startswith(b"\x89PNG")
    settings = json.loads((out / "python.provenance.json").read_text())["settings"]
    assert PythonSettings(**settings) == tiny(source)


def test_too_little_source_is_said_before_training(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"prompts are wanted, and .* validation files are longer"):
        reproduce_python(replace(tiny(source), prompts=30), 1, tmp_path / "out", quiet)
    assert not (tmp_path / "out" / "seed-1" / "teacher").exists()
    (tmp_path / "one.py").write_text("x = 1\n")
    with pytest.raises(InputError, match="give more source"):
        reproduce_python(tiny(tmp_path), 1, tmp_path / "out", quiet)


def test_a_drafter_that_is_the_target_is_always_right(made: tuple[Path, PythonFindings], tmp_path: Path) -> None:
    """The same model with the same numbers guesses all: 4 nodes make 4 tokens a forward."""
    teacher = made[0] / "seed-1" / "teacher"
    spec = ModelSpec(str(teacher), str(teacher), dtype="float32", in_torch=True)
    prompt = Tokenizer.from_folder(teacher).encode("def f(x):")
    [found] = decode(
        spec, [draft_model_way("itself", 4)], Answers([prompt] * 2, 12, PLAIN), tmp_path / "answers.jsonl", quiet
    )
    assert (found.answers, found.equal) == (2, 2)
    assert found.accepted == 3 * found.verifications
    assert found.tokens_per_forward == 4.0 if found.tokens == 24 else found.tokens_per_forward > 3.0


def test_answers_that_are_not_plain_samplings_are_told(made: tuple[Path, PythonFindings], tmp_path: Path) -> None:
    """A broken target, whose auxiliary nodes disturb the others: its answers differ, and the table says so."""

    def broken(spec: ModelSpec) -> Subject:
        subject = load_subject(spec)
        forward = subject.target.forward

        def disturbed(tree: TokenTree, cache: Cache, slots: Sequence[int], hidden: Sequence[int] = ()) -> Scores:
            scores = forward(tree, cache, slots, hidden)
            if not (tree.roles == Role.PROBE).any():
                return scores
            logits = torch.zeros(scores.host.shape)
            logits[:, 70] = 50.0
            return Scores(logits, scores.index)

        subject.target.forward = disturbed  # type: ignore[method-assign]
        return subject

    folder = made[0] / "seed-1"
    spec = ModelSpec(str(folder / "teacher"), dtype="float32", in_torch=True)
    ways = ptp_ways({"O-PTP": folder / "o-ptp"}, [8])
    prompt = Tokenizer.from_folder(folder / "teacher").encode("def f(x):")
    found = decode(spec, ways, Answers([prompt] * 2, 12, PLAIN), tmp_path / "answers.jsonl", quiet, broken)
    assert [one.answers for one in found] == [2, 2, 2]
    assert all(one.equal == 0 for one in found)
    table = decoding_table([found])
    assert table.count("| **0 of 2** |") == 3
    assert table.endswith("**6 of 6 answers are NOT plain sampling's with the same seeds.**")


def test_answers_of_other_weights_are_not_continued(made: tuple[Path, PythonFindings], tmp_path: Path) -> None:
    folder = made[0] / "seed-1"
    prompt = Tokenizer.from_folder(folder / "teacher").encode("x = 1")
    answers = tmp_path / "answers.jsonl"
    decode(ModelSpec(str(folder / "teacher"), dtype="float32"), [], Answers([prompt], 4, PLAIN), answers, quiet)
    with pytest.raises(InputError, match=r"other settings \(model, weights\)"):
        decode(ModelSpec(str(folder / "ar-drafter"), dtype="float32"), [], Answers([prompt], 4, PLAIN), answers, quiet)


def test_one_law_for_students_numbers_and_answers(made: tuple[Path, PythonFindings], tmp_path: Path) -> None:
    folder, settings = made[0] / "seed-1", tiny(tmp_path)
    assert (
        StudentCard.load(folder / "o-ptp").law == settings.law == replace(PLAIN, temperature=0.8, top_k=250, top_p=0.99)
    )
    prompt = Tokenizer.from_folder(folder / "teacher").encode("x = 1")
    spec, told = ModelSpec(str(folder / "teacher"), dtype="float32"), []
    for name, law in (("first", settings.law), ("second", replace(settings.law, top_k=1))):
        decode(spec, [], Answers([prompt] * 2, 8, law), tmp_path / name, quiet)
        told.append([json.loads(line)["sha256"] for line in (tmp_path / name).read_text().splitlines()[1:]])
    assert told[0][0] != told[0][1]
    assert told[1][0] == told[1][1]
    with pytest.raises(InputError, match=r"other settings \(law\)"):
        decode(spec, [], Answers([prompt] * 2, 8, PLAIN), tmp_path / "first", quiet)
    with pytest.raises(InputError, match="above 0"):
        replace(settings, temperature=0.0)


def test_seeds_of_numbers_are_those_of_the_prompts(made: tuple[Path, PythonFindings], tmp_path: Path) -> None:
    """The same prompt gives other answers under other seeds: comparing with plain sampling compares something."""
    folder = made[0] / "seed-1"
    prompt = Tokenizer.from_folder(folder / "teacher").encode("x = 1")
    answers = tmp_path / "answers.jsonl"
    decode(ModelSpec(str(folder / "teacher"), dtype="float32"), [], Answers([prompt] * 3, 8, PLAIN), answers, quiet)
    told = [json.loads(line) for line in answers.read_text().splitlines()[1:]]
    assert len({record["sha256"] for record in told}) == 3
    assert np.array_equal([record["forwards"] for record in told], [record["tokens"] for record in told])
