"""`--drafter ptp` from the outside: the Python call and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import betoken
import students
import tiny_models
from betoken.bench.subject import Method, ModelSpec, load_subject
from betoken.decode import Request
from betoken.errors import InputError
from betoken.models.load import Backend, Loaded, load_target
from betoken.models.native.isa import isa
from betoken.models.native.target import NativeTarget
from betoken.models.tokenizer import byte_characters
from betoken.state import StopSettings
from cli_home import betoken as run
from cli_home import refused

LAW = {"temperature": 0.9, "top_k": 40}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model `tiny` and its student `student`."""
    folder = tmp_path_factory.mktemp("home")
    tiny_models.random_model(tiny_models.FAMILIES["llama"](), 0).save_pretrained(folder / "tiny")
    known = list(byte_characters().values())[: tiny_models.VOCAB]  # what is beyond them is ?
    core = Tokenizer(models.BPE({character: n for n, character in enumerate(known)}, [], unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.save(str(folder / "tiny" / "tokenizer.json"))
    students.save(folder / "student")
    return folder


def test_load_gives_the_tokens_of_plain_decoding(home: Path) -> None:
    answers = []
    for drafter, settings in (("none", {}), ("ptp", {"student": str(home / "student")})):
        engine = betoken.load(
            str(home / "tiny"), drafter=drafter, drafter_settings=settings, dtype="float32", nodes=12, threads=1
        )
        answers.append(engine.generate(["ab", "fox"], raw=True, max_new_tokens=20, ignore_eos=True, seed=5, **LAW))  # type: ignore[arg-type]
    assert [one.tokens for one in answers[1]] == [one.tokens for one in answers[0]]
    assert answers[1][0].stats.drafter == "ptp"
    assert answers[1][0].stats.nodes_per_forward > 6


@pytest.mark.skipif(isa() == "none", reason="without kernels float32 is the default")
def test_a_student_of_all_weights_is_refused_before_the_model_is_loaded(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("betoken.loading.load_target", lambda *_, **__: pytest.fail("loaded"))
    students.save(tmp_path / "full", weights="full")
    with pytest.raises(InputError, match="--dtype float32"):
        betoken.load(
            str(home / "tiny"), drafter="ptp", drafter_settings={"student": str(tmp_path / "full")}, cache_dir=tmp_path
        )


@pytest.mark.skipif(isa() == "none", reason="this processor has no native kernels")
@pytest.mark.parametrize("dtype", ["int8", "int4", "float32"])
@pytest.mark.parametrize("temperature", [0.9, 0.0])
def test_our_kernels_give_the_tokens_of_plain_decoding(
    home: Path, tmp_path: Path, dtype: str, temperature: float
) -> None:
    """Packed and equalised as for a user, several rows at once."""
    answers, law = [], {**LAW, "temperature": temperature}
    for drafter, settings in (("none", {}), ("ptp", {"student": str(home / "student")})):
        engine = betoken.load(
            str(home / "tiny"), drafter=drafter, drafter_settings=settings, dtype=dtype, nodes=12, cache_dir=tmp_path
        )
        assert isinstance(engine.target, NativeTarget)
        answers.append(engine.generate(["ab", "fox", "b"], raw=True, max_new_tokens=20, ignore_eos=True, seed=5, **law))  # type: ignore[arg-type]
    assert [one.tokens for one in answers[1]] == [one.tokens for one in answers[0]]
    assert answers[1][0].stats.nodes_per_forward > 6


def test_gumbel_is_refused(home: Path) -> None:
    with pytest.raises(InputError, match=r"leave verifier\.rule=gumbel out"):
        betoken.load(
            str(home / "tiny"),
            drafter="ptp",
            drafter_settings={"student": str(home / "student")},
            verifier_settings={"rule": "gumbel"},
        )


def test_the_command_line(home: Path) -> None:
    call = ["generate", "--model", "tiny", "--dtype", "float32", "--threads", "1", "--raw", "--prompt", "ab", "--json"]
    call += ["--drafter", "ptp", "--max-new-tokens", "8"]
    told = json.loads(run(home, *call, "--nodes", "10", "--set", "drafter.student=student").stdout)
    assert told["stats"]["drafter"] == "ptp"
    assert len(told["tokens"]) == told["stats"]["committed"]
    refused(run(home, *call, "--set", "drafter.student=nowhere"), "no ptp.json")


def test_bench_loads_a_model_that_takes_the_student(home: Path) -> None:
    ptp = Method("ptp", "ptp", {"student": str(home / "student")}, nodes=10)
    spec = ModelSpec(str(home / "tiny"), dtype="float32", threads=1)
    subject = load_subject(spec.fit_for([Method.plain(), ptp]))
    request = Request(subject.codec.encode("fox"), stop=StopSettings(max_new_tokens=8, ignore_eos=True))
    tokens = []
    for method in (Method.plain(), ptp):
        decoder = method.decoder(subject)
        row = decoder.admit(request)
        while row.finish_reason is None:
            decoder.step()
        tokens.append(row.new_tokens)
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 8
    assert spec.fit_for([Method.plain()]) == spec


@pytest.mark.parametrize(("weights", "backend"), [("full", "torch"), ("lora", "auto")])
def test_only_the_target_is_loaded_for_a_student(
    home: Path, tmp_path: Path, weights: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder that takes one of all weights knows no int4, which a draft model beside it may have."""
    asked = []

    def loading(name: str, *, dtype: str, device: str, threads: int, backend: Backend) -> Loaded:
        asked.append((dtype, backend))
        return load_target(name, dtype="float32", device=device, threads=threads)

    monkeypatch.setattr("betoken.models.load.load_target", loading)
    students.save(tmp_path / "student", weights=weights)
    methods = [Method("ptp", "ptp", {"student": str(tmp_path / "student")}), Method("draft-model", "draft-model")]
    tiny = str(home / "tiny")
    load_subject(ModelSpec(tiny, tiny, dtype="float32", threads=1, draft_dtype="int4").fit_for(methods))
    assert asked == [("float32", backend), ("int4", "auto")]
