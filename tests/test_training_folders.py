"""Data in, folders out: documents, teacher samples, student folders that betoken and PEFT read, the command line."""

from __future__ import annotations

import json
import re
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import betoken
from betoken.cli import main
from betoken.errors import InputError
from betoken.models.config import DecoderConfig
from betoken.models.native.isa import isa
from betoken.models.student import StudentCard, read_student, sizes_of
from betoken.models.target import Scores
from betoken.noise import uniform
from betoken.sampling import law, pick_inverse_cdf
from betoken.state import Row, SamplingSettings, State, StopSettings
from betoken.training.build import load_base
from betoken.training.collect import CollectSettings, Recorder, collect, read_samples
from betoken.training.data import read_documents, rows_of
from betoken.training.ptp import PtpTask
from betoken.training.vocabulary import begin_id, end_id, make_tokenizer
from betoken.tree import RowTree, TokenTree
from betoken.verifiers.verifier import RowVerdict, Verdict
from training_toys import TEXT, config_file, quiet, saved_base, tiny_base


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and error of a command line."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    said = capsys.readouterr()
    return int(stopped.value.code or 0), said.out, said.err


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny model."""
    return saved_base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text(TEXT)
    return str(tmp_path / "texts")


@pytest.mark.parametrize("name", ["bytes", "characters", "bpe:300"])
def test_tokenizers_spell_every_text(name: str, tmp_path: Path) -> None:
    texts = ["def f(x):\n    return 'a' * x  # é☃", "another line"]
    tokenizer = make_tokenizer(name, texts)
    begin, end = begin_id(tokenizer), end_id(tokenizer)
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids[0] == begin
        assert tokenizer.decode(ids) == text
        assert b"".join(tokenizer.token_bytes(i) for i in ids[1:]) == text.encode()
    assert sorted(tokenizer.vocabulary.values()) == list(range(tokenizer.core.get_vocab_size()))
    assert end is not None and end < tokenizer.core.get_vocab_size()
    if name == "bytes":
        assert tokenizer.core.get_vocab_size() == 258


def test_rows(tmp_path: Path) -> None:
    tokenizer = make_tokenizer("bytes", ())
    begin, end = begin_id(tokenizer), end_id(tokenizer)
    a, b = ord("a"), ord("b")
    base = tiny_base(tmp_path)
    ids = {character: tokenizer.encode(character)[1] for character in "ab"}
    packed = rows_of(["aaa", "bb", [a, b]], tokenizer, 4, vocab_size=base.config.vocab_size)
    x, y = ids["a"], ids["b"]
    assert packed.tokens.tolist() == [[begin, x, x, x], [end, begin, y, y], [end, a, b, 0]]
    assert packed.lengths.tolist() == [4, 4, 3]
    apart = rows_of(["aaa", "bb"], tokenizer, 4, vocab_size=258, pack=False)
    assert apart.tokens.tolist() == [[begin, x, x, x], [begin, y, y, end]]  # the lone end token predicts nothing
    training, held = packed.split(0.3)
    assert (len(training), len(held)) == (2, 1)
    assert training.digest != packed.digest


@pytest.mark.parametrize(
    ("files", "source", "told"),
    [
        ({}, "missing", "missing: no such file or folder"),
        ({"d/a.md": "x"}, "d", r"d: no file \*.txt in this folder; choose others with --files"),
        ({"d/a.txt": ""}, "d", "every document in it is empty"),
        ({"d/a.txt": b"\xff\xfe"}, "d", r"a.txt: not UTF-8 text \(byte 0\)"),
        ({"a.jsonl": '{"text": "x"}\n{"txt": "y"}'}, "a.jsonl", 'line 2: an object with "text" or "tokens"'),
        ({"a.jsonl": "{"}, "a.jsonl", "line 1: no valid JSON"),
        ({}, "owner/name", "pip install datasets"),
    ],
)
def test_data_that_cannot_be_used(
    files: dict[str, str | bytes], source: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=told):
        read_documents(source)


def test_token_ids_outside_the_vocabulary() -> None:
    with pytest.raises(InputError, match="a token id outside the vocabulary of 258"):
        rows_of([[1, 258]], make_tokenizer("bytes", ()), 8, vocab_size=258)


def test_new_models_are_made_of_known_sizes(tmp_path: Path) -> None:
    first, again = tiny_base(tmp_path), tiny_base(tmp_path)
    other = tiny_base(tmp_path, seed=1)
    for name, weight in first.tensors().items():
        assert torch.equal(weight, again.tensors()[name])
    assert not torch.equal(first.tensors()["lm_head.weight"], other.tensors()["lm_head.weight"])
    with pytest.raises(InputError, match="unknown name 'hiden_size'"):
        tiny_base(tmp_path, hiden_size=8)
    with pytest.raises(InputError, match="vocab_size 100 is below the tokenizer's 258"):
        tiny_base(tmp_path, vocab_size=100)
    with pytest.raises(InputError, match="hidden_size 33 is no multiple of num_attention_heads"):
        tiny_base(tmp_path, hidden_size=33)


def collected(base: str, out: Path, drafter: str = "none", **settings: Any) -> Path:
    engine = betoken.load(base, drafter=drafter, dtype="float32", nodes=4)
    options = {"law": SamplingSettings(temperature=0.8, top_k=20), "samples": 2, "max_new_tokens": 9, "shard": 3}
    prompts = [[256, 20, 21], [256], [256, 70, 71, 72]]
    collect(engine, prompts, CollectSettings(**options | settings), out, {"model": "tiny"}, quiet)
    return out


def test_samples_tell_exact_intervals(base: str, tmp_path: Path) -> None:
    """Each new token, by transformers: its u is the request's, and the interval of its law holds it."""
    out = collected(base, tmp_path / "samples")
    rows = read_samples(out, 64, vocab_size=258)
    assert len(rows) == 6
    assert rows.low is not None and rows.high is not None
    model = load_base(base).model
    for row in range(6):
        length, first = int(rows.lengths[row]), int(rows.first[row])
        tokens = torch.from_numpy(rows.tokens[row : row + 1, :length])
        with torch.no_grad():
            logits = model(input_ids=tokens).logits[0].numpy()
        assert np.isnan(rows.low[row, :first]).all() and np.isnan(rows.low[row, length:]).all()
        for k in range(first, length):
            own = law(logits[k - 1], SamplingSettings(temperature=0.8, top_k=20))
            low, high = rows.low[row, k], rows.high[row, k]
            token = int(tokens[0, k])
            assert high - low == pytest.approx(own[token], abs=1e-4)
            assert pick_inverse_cdf(own, (low + high) / 2) == token
    from safetensors.torch import load_file

    shard = load_file(out / "shard-00000.safetensors")
    assert ((shard["low"] <= shard["u"]) & (shard["u"] < shard["high"])).all()
    assert shard["u"][0] != uniform(0, 0, 0)  # prompts have seeds of their own


def test_samples_do_not_depend_on_drafter_or_interruption(base: str, tmp_path: Path) -> None:
    whole = collected(base, tmp_path / "whole")
    drafted = collected(base, tmp_path / "drafted", drafter="prompt-lookup")
    broken = collected(base, tmp_path / "broken")
    (broken / "shard-00001.safetensors").unlink()
    kept = (broken / "shard-00000.safetensors").stat().st_mtime_ns
    collected(base, broken)
    assert (broken / "shard-00000.safetensors").stat().st_mtime_ns == kept
    for name in ("shard-00000.safetensors", "shard-00001.safetensors"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()
    for one, other in zip(
        vars(read_samples(whole, 64, vocab_size=258)).values(),
        vars(read_samples(drafted, 64, vocab_size=258)).values(),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)
    with pytest.raises(InputError, match="was made with max_new_tokens 9, not 8"):
        collected(base, whole, max_new_tokens=8)
    short = read_samples(whole, 4, vocab_size=258)
    assert len(short) == 4 and short.lengths.max() == 4  # two prompts fill their rows
    with pytest.raises(InputError, match=r"the shortest prompt has \d+ tokens, so raise --sequence"):
        read_samples(whole, 1, vocab_size=258)


def test_only_committed_tokens_are_recorded() -> None:
    """A path whose second token ends the row: what was accepted behind it is no part of the sample."""
    row = Row(0, 0, np.array([3]), SamplingSettings(temperature=1.0), StopSettings(), frozenset({2}), 64)
    tree = TokenTree.stack([RowTree.chain(3, [1, 2, 0])])
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.125, 0.125]])).repeat(4, 1)
    verdict = Verdict((RowVerdict((0, 1, 2, 3), 1),))
    recorder = Recorder()
    row.commit(verdict.tokens(tree, 0))
    recorder(tree, Scores(logits, np.arange(4)[None], {}), verdict, State((row,)))
    sample = recorder.sample(row)
    assert (sample.tokens, sample.prompt) == ([3, 1, 2], 1)
    np.testing.assert_allclose(sample.intervals, [(0.5, 0.75), (0.75, 0.875)], atol=1e-7)
    assert sample.u == [uniform(0, 0, 0), uniform(0, 0, 1)]


PTP = ("--sequence", "40", "--window", "4", "--cuts", "3", "--batch", "2", "--warmup", "2", "--threads", "1")


def test_train_continue_load(
    base: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty steps, the same command again, the folder: what CI runs."""
    out = tmp_path / "student"
    command = ("train", "ptp", "--model", base, "--data", text, "--objective", "o-ptp", "--embedding", "digits")
    command += ("--rank", "4", "--steps", "20", "--lr", "1e-2", "--checkpoint-every", "10", *PTP, "--out", str(out))
    code, said, error = run(capsys, *command, "--json")
    assert (code, error) == (0, "")
    found = json.loads(said)
    assert len(found["first_runs"]) == 4 and len(found["runs"]) == 3
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix in (".safetensors", ".json")}
    assert run(capsys, *command)[0] == 0
    for name, content in before.items():
        assert (out / name).read_bytes() == content, name
    assert {"ptp.json", "adapter_config.json", "adapter_model.safetensors", "README.md", "loss.png"} <= {
        path.name for path in out.iterdir()
    }
    [shown] = re.findall(r"^    betoken (.* --prompt) TEXT$", (out / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    asked = shown.replace("\\\n", "").replace("FOLDER", str(out)).split()
    code, _, error = run(capsys, *asked, "ab", "--raw", "--max-new-tokens", "4", "--nodes", "4", "--threads", "1")
    assert code == 0 and f"ptp + replay, {'lossless' if isa() == 'none' else 'exact'}" in error
    assert not any("was trained for" in record.getMessage() for record in caplog.records)
    student = read_student(out)
    assert student.card.law == SamplingSettings(temperature=1.0)
    assert student.card.first_runs == tuple(found["first_runs"])
    assert set(student.adapters) == {name for name in load_base(base).config.tensor_shapes if "_proj" in name}
    code, _, error = run(capsys, *command[:-1], str(out), "--lr", "0.5")
    assert code == 2 and "was made with lr 0.01, not 0.5" in error


def test_adapters_are_pefts(base: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PEFT reads the folder; its logits are those of our low-rank changes put into the weights."""
    import peft

    out = tmp_path / "student"
    command = ("train", "ptp", "--model", base, "--data", text, "--rank", "4", "--steps", "3", "--lr", "0.1", *PTP)
    assert run(capsys, *command, "--out", str(out))[0] == 0
    tokens = torch.randint(0, 258, (1, 12), generator=torch.Generator().manual_seed(0))
    plain, merged = load_base(base).model, load_base(base).model
    with torch.no_grad():
        alone = plain(input_ids=tokens).logits
        for name, change in read_student(out).adapters.items():
            merged.get_parameter(name).add_(change.scale * change.up @ change.down)
        expected = merged(input_ids=tokens).logits
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft reads names that transformers is giving up
            found = peft.PeftModel.from_pretrained(plain, str(out))(input_ids=tokens).logits
    assert (expected - alone).abs().max() > 1e-2
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("weights", ["full", "same"])
def test_other_students(weights: str, base: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "student"
    command = ["train", "ptp", "--model", base, "--weights", weights, "--objective", "c-ptp", "--data", text, *PTP]
    assert run(capsys, *command, "--divergence", "reverse-kl", "--steps", "2", "--out", str(out))[0] == 0
    student = read_student(out)
    student.card.check_base(DecoderConfig.from_folder(Path(base)), base)
    assert student.start.abs().max() > 0
    if weights == "full":
        assert set(student.tensors) == set(load_base(base).config.tensor_shapes)
        assert student.card.base == base
    else:
        assert student.card.base == "." and not student.tensors
        assert betoken.load(str(out), drafter="none", dtype="float32").generate("ab", raw=True, max_new_tokens=3)


def test_a_model_of_ones_own(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A teacher, samples of it, a student of another size that learns from them, and one without a teacher."""
    sizes = str(config_file(tmp_path))
    teacher, samples, student, own = (str(tmp_path / name) for name in ("teacher", "samples", "student", "own"))
    new = ("--config", sizes, "--tokenizer")
    short = ("--steps", "3", "--sequence", "40", "--batch", "2", "--threads", "1")
    code, said, _ = run(capsys, "train", "lm", *new, "bytes", "--data", text, *short, "--out", teacher)
    assert code == 0 and "perplexity" in said
    drawing = ("--prompt-tokens", "4", "--max-new-tokens", "12", "--samples", "1", "--top-k", "9", "--limit", "20")
    command = ("train", "collect", "--model", teacher, "--prompts", text, *drawing, "--dtype", "float32")
    code, said, _ = run(capsys, *command, "--out", samples)
    assert (code, said) == (0, f"{samples}: 20 samples of 20 prompts\n")
    code, said, error = run(capsys, *command, "--temperature", "0", "--samples", "2", "--out", str(tmp_path / "twice"))
    assert (code, said, error.count("\n")) == (2, "", 1) and "all 2 samples of a prompt would be the same" in error
    once = ("train", "collect", "--model", teacher, "--prompts", text, "--prompt-tokens", "4", "--max-new-tokens", "3")
    code, said, _ = run(
        capsys, *once, "--limit", "2", "--dtype", "float32", "--temperature", "0", "--out", str(tmp_path / "once")
    )
    assert code == 0 and "2 samples of 2 prompts" in said
    ptp = ("train", "ptp", "--window", "4", "--cuts", "2", *short)
    code, said, error = run(capsys, *ptp, *new, teacher, "--data", samples, "--out", student)
    assert (code, error) == (0, "")
    card = StudentCard.load(Path(student))
    assert (card.weights, card.base, card.law.top_k) == ("same", ".", 9)
    code, said, _ = run(capsys, *ptp, *new, "characters", "--objective", "scratch", "--data", text, "--out", own)
    assert code == 0 and "text perplexity" in said
    code, _, error = run(capsys, *ptp, "--model", teacher, "--data", samples, "--top-k", "8", "--out", own)
    assert code == 2 and "the samples were drawn with top_k 9, not 8" in error


def test_ctrl_c_leaves_a_checkpoint(
    base: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "student"
    command = ("train", "ptp", "--model", base, "--data", text, "--rank", "4", "--steps", "5", *PTP, "--out", str(out))
    loss = PtpTask.loss

    def interrupted(task: PtpTask, rows: np.ndarray, step: int, part: int) -> Any:
        if step == 2:
            signal.raise_signal(signal.SIGINT)
        return loss(task, rows, step, part)

    with monkeypatch.context() as patched:
        patched.setattr(PtpTask, "loss", interrupted)
        code, _, error = run(capsys, *command)
    assert code == 130
    assert f"3 of 5 done and kept; the same command continues {out}" in error
    assert [path.name for path in out.iterdir()] == ["checkpoint.safetensors"]
    assert run(capsys, *command)[0] == 0
    assert (out / "ptp.json").is_file()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--objective", "x"], "unknown objective 'x'"),
        (["--weights", "x"], "unknown --weights 'x'"),
        (["--embedding", "none"], "--embedding none goes with --objective independent"),
        (["--window", "40"], "a window of 40 does not fit into rows of 40 tokens"),
        (["--sequence", "400"], "--sequence 400 is longer than the model's context of 256"),
        (["--steps", "0"], "steps must be at least 1"),
        (["--schedule", "x"], "unknown schedule 'x'"),
        (["--tokenizer", "bytes"], "--tokenizer is"),
        (["--held-out", "0"], "--held-out must lie between 0 and 1"),
        (["--weight-decay", "nan"], "weight_decay must be finite"),
        (["--lr", "inf"], "lr must be finite"),
        (["--device", "tpu"], "unknown device 'tpu'; choose cpu, cuda or cuda:N"),
    ],
)
def test_options_that_cannot_be_used(
    options: list[str], told: str, base: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "ptp", "--model", base, "--data", text, *PTP, "--out", str(tmp_path / "out")]
    code, said, error = run(capsys, *command, *options)
    assert (code, said, error.count("\n")) == (2, "", 1)
    assert told in error


def test_without_peft(
    base: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    command = ("train", "ptp", "--model", base, "--data", text, *PTP, "--out", str(tmp_path / "out"))
    code, _, error = run(capsys, *command)
    assert code == 2 and "pip install 'betoken[train]'" in error


def test_another_base_is_refused(base: str, tmp_path: Path) -> None:
    config = DecoderConfig.from_folder(Path(base))
    card = StudentCard(
        "o-ptp", "lora", 4, "bits", SamplingSettings(temperature=1.0), "big", sizes_of(config) | {"hidden_size": 64}
    )
    with pytest.raises(InputError, match="was trained on big with hidden_size 64, tiny has 32"):
        card.check_base(config, "tiny")
    card.save(tmp_path)
    assert StudentCard.load(tmp_path) == card
    for change, told in (
        ({"window": 0}, "window must be a whole number above 0"),
        ({"objective": "x"}, "objective must be one of"),
        ({"format": 2}, "format 1 is expected"),
        ({"extra": 1}, "missing or unknown fields: extra"),
        ({"first_runs": [2.0]}, "first_runs must be a list of probabilities"),
        ({"law": {}}, "law must have exactly"),
    ):
        content = json.loads((tmp_path / "ptp.json").read_text()) | change
        other = tmp_path / "other"
        other.mkdir(exist_ok=True)
        (other / "ptp.json").write_text(json.dumps(content))
        with pytest.raises(InputError, match=told):
            StudentCard.load(other)
