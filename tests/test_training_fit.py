"""The loop: the same result after a kill, clear errors, and what the scratch objective learns."""

from __future__ import annotations

import errno
import math
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from betoken.errors import InputError
from betoken.models.student import EmbeddingKind, Objective, WeightKind
from betoken.sampling import law, pick_inverse_cdf
from betoken.state import SamplingSettings
from betoken.training import checkpoint, lm
from betoken.training.build import new_base, new_student
from betoken.training.data import Rows
from betoken.training.fit import FitSettings, Fitted, Loss, fit
from betoken.training.intervals import interval, laws
from betoken.training.objectives import PLAIN, input_vectors, node_loss
from betoken.training.ptp import PtpSettings, PtpTask
from betoken.training.validate import _count, _survival, validate
from betoken.training.vocabulary import make_tokenizer
from betoken.training.windows import Windows
from training_toys import config_file, quiet, text_rows, tiny_base, tiny_task, weights_of

SETTINGS = FitSettings(steps=7, batch=2, lr=1e-2, warmup=3, schedule="cosine", checkpoint_every=3, seed=5)


class KilledError(Exception):
    """The process is gone."""


class Watched:
    """A task that does something in the middle of one of its steps."""

    def __init__(self, task: Any, at: int, act: Any) -> None:
        self.task, self.at, self.act = task, at, act
        self.metrics: tuple[str, ...] = task.metrics
        self.rows, self.device = task.rows, task.device

    def parameters(self) -> Mapping[str, nn.Parameter]:
        return self.task.parameters()

    def loss(self, rows: np.ndarray, step: int, part: int) -> Loss:
        if step == self.at and part == 1:
            self.act()
        return self.task.loss(rows, step, part)


def kill() -> None:
    raise KilledError


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def same(one: Fitted, other: Fitted) -> bool:
    return one.columns == other.columns and np.array_equal(one.history, other.history, equal_nan=True)


CASES: list[tuple[Objective, WeightKind, EmbeddingKind]] = [
    ("o-ptp", "lora", "bits"),
    ("c-ptp", "full", "digits"),
    ("scratch", "same", "interpolated"),
    ("independent", "lora", "none"),
]


@pytest.mark.parametrize(("objective", "weights", "embedding"), CASES)
@pytest.mark.parametrize("act", [kill, interrupt])
def test_a_continued_run_is_bit_identical(
    objective: Objective, weights: WeightKind, embedding: EmbeddingKind, act: Any, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, accumulate=2)

    def task() -> PtpTask:
        return tiny_task(tiny_base(tmp_path, spread=1.0), objective, weights, embedding, beta=0.5)

    whole = task()
    expected = fit(whole, settings, tmp_path / "whole", {}, quiet)
    state = torch.random.get_rng_state()
    with pytest.raises(KilledError if act is kill else KeyboardInterrupt):
        fit(Watched(task(), 4, act), settings, tmp_path / "broken", {}, quiet)
    continued = task()
    began: list[int] = []
    found = fit(continued, settings, tmp_path / "broken", {}, lambda done, total, what: began.append(done))
    assert began[0] == (4 if act is kill else 6)  # from the last checkpoint; Ctrl-C ends its step and writes one
    assert same(found, expected)
    for name, weight in weights_of(whole).items():
        np.testing.assert_array_equal(weights_of(continued)[name], weight)
    assert torch.equal(state, torch.random.get_rng_state())  # nothing drew from the global generator
    assert any(
        (weight != before).any()
        for weight, before in zip(weights_of(whole).values(), weights_of(task()).values(), strict=True)
    )


def test_signals_are_the_users_again_afterwards(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    fit(tiny_task(tiny_base(tmp_path), "o-ptp"), replace(SETTINGS, steps=1), tmp_path / "out", {}, quiet)
    assert signal.getsignal(signal.SIGINT) is before


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    task = tiny_task(tiny_base(tmp_path), "o-ptp")
    fit(task, replace(SETTINGS, steps=1), tmp_path / "out", {"data": "a"}, quiet)
    with pytest.raises(InputError, match=r"was made with lr 0.01, not 0.5: use the same settings"):
        fit(task, replace(SETTINGS, steps=1, lr=0.5), tmp_path / "out", {"data": "a"}, quiet)
    with pytest.raises(InputError, match=r"was made with data a, not b"):
        fit(task, replace(SETTINGS, steps=1), tmp_path / "out", {"data": "b"}, quiet)
    fit(task, replace(SETTINGS, steps=1, checkpoint_every=9), tmp_path / "out", {"data": "a"}, quiet)


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    task = tiny_task(tiny_base(tmp_path), "o-ptp")
    fit(task, replace(SETTINGS, steps=2), out, {}, quiet)
    before = (out / checkpoint.NAME).read_bytes()
    (out / checkpoint.NAME).rename(tmp_path / "kept")
    (tmp_path / "kept").rename(out / checkpoint.NAME)

    def full(path: Path, *args: Any, **kwargs: Any) -> None:
        path.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("betoken.training.checkpoint.write_safetensors", full)
    weights = task.parameters()
    optimizer = torch.optim.AdamW(weights.values())
    with pytest.raises(InputError, match=r"the disk is full; free some space or choose another place with --out"):
        checkpoint.save(out, checkpoint.Progress(0, []), ("loss",), weights, optimizer, {})
    assert (out / checkpoint.NAME).read_bytes() == before
    assert [path.name for path in out.iterdir()] == [checkpoint.NAME]


def test_a_broken_checkpoint_is_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / checkpoint.NAME).write_bytes(b"\x08\x00")
    with pytest.raises(InputError, match=r"cannot be read .*remove it to start again"):
        fit(tiny_task(tiny_base(tmp_path), "o-ptp"), SETTINGS, out, {}, quiet)


class Hopeless(Watched):
    """Its loss is no number from the given step on."""

    def loss(self, rows: np.ndarray, step: int, part: int) -> Loss:
        found = self.task.loss(rows, step, part)
        return found if step < self.at else Loss(found.value * float("nan"), found.metrics)


def test_a_loss_that_is_no_number_is_told_and_never_learnt(tmp_path: Path) -> None:
    task = tiny_task(tiny_base(tmp_path), "o-ptp")
    with pytest.raises(InputError, match="the loss is nan at step 4: lower --lr or raise --warmup"):
        fit(Hopeless(task, 3, None), SETTINGS, tmp_path / "out", {}, quiet)
    assert all(np.isfinite(weight).all() for weight in weights_of(task).values())
    fit(task, SETTINGS, tmp_path / "out", {}, quiet)  # the checkpoint of step 3 is sound


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"objective": "x"}, "unknown objective 'x'; choose one of o-ptp, c-ptp, scratch, independent"),
        ({"objective": "o-ptp", "divergence": "js"}, "unknown divergence 'js'"),
        ({"objective": "scratch", "law": replace(PLAIN, top_k=3)}, "temperature 1 without top-k"),
        ({"objective": "c-ptp", "law": replace(PLAIN, temperature=0.0)}, "temperature 0 has none"),
        ({"objective": "o-ptp", "window": 0}, "window and cuts must be at least 1"),
        ({"objective": "scratch", "text_weight": math.nan}, "text_weight not negative, and both finite"),
        ({"objective": "o-ptp", "beta": math.inf}, "beta must be above 0"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        PtpSettings(**settings)


def test_a_window_longer_than_a_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a window of 40 does not fit into rows of 40 tokens: lower --window"):
        tiny_task(tiny_base(tmp_path), "o-ptp", window=40)


def test_losses_against_their_formulas() -> None:
    numbers = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(6, 5, generator=numbers, dtype=torch.float64) for _ in range(2))
    labels = torch.arange(6) % 5
    tempered = replace(PLAIN, temperature=0.5)
    p, q = (np.exp(2 * part.numpy()) / np.exp(2 * part.numpy()).sum(1, keepdims=True) for part in (theirs, ours))
    for divergence, expected in (("kl", p * np.log(p / q)), ("reverse-kl", q * np.log(q / p))):
        found = node_loss("c-ptp", ours, labels, theirs, tempered, divergence)  # type: ignore[arg-type]
        assert float(found) == pytest.approx(expected.sum(1).mean())
    plain = np.exp(ours.numpy()) / np.exp(ours.numpy()).sum(1, keepdims=True)
    for objective in ("o-ptp", "scratch", "independent"):
        found = node_loss(objective, ours, labels, None, tempered)  # type: ignore[arg-type]
        assert float(found) == pytest.approx(-np.log(plain[np.arange(6), labels.numpy()]).mean())


def test_teachers_of_plain_text(tmp_path: Path) -> None:
    """Intervals and logits of the labels, token by token from transformers' logits one position before."""
    base = tiny_base(tmp_path)
    task = tiny_task(base, "c-ptp", "full", law=SamplingSettings(temperature=0.7, top_k=40))
    batch = task.data.take(slice(0, 2))
    tokens = torch.from_numpy(batch.tokens)
    windows = Windows.over(np.array([[1, 20, 34], [2, 3, 37]]), 4, batch.lengths, 40, task.device)
    labels = windows.of_text(tokens)
    teacher = task.taught(tokens, task.model.read(tokens))
    found = task.intervals(batch, windows, labels, teacher)
    said = task._said(teacher, windows.index, windows.inside).numpy()
    with torch.no_grad():
        logits = base.model(input_ids=tokens).logits.numpy()
    number = 0
    for row, q, cut in np.ndindex(2, 4, 3):
        place = int(windows.starts[row, cut]) + q
        low, high = float(found.low[row, q, cut]), float(found.high[row, q, cut])
        if place >= 40:
            assert (low, high) == (0.0, 0.0)
            continue
        own = law(logits[row, place - 1], task.settings.law)
        assert (low, high) == pytest.approx(interval(own, int(tokens[row, place])), abs=1e-5)
        np.testing.assert_allclose(said[number], logits[row, place - 1], atol=1e-4)
        number += 1
    assert number == len(said) == 23


def test_only_the_students_weights_learn(tmp_path: Path) -> None:
    base = tiny_base(tmp_path)
    before = {name: weight.clone() for name, weight in base.model.state_dict().items()}
    task = tiny_task(base, "c-ptp", "full")
    fit(task, replace(SETTINGS, steps=2), tmp_path / "out", {}, quiet)
    assert all(torch.equal(weight, before[name]) for name, weight in base.model.state_dict().items())
    own = task.model.student.model.state_dict()
    assert not torch.equal(own["model.layers.0.mlp.up_proj.weight"], before["model.layers.0.mlp.up_proj.weight"])


def test_language_models_learn(tmp_path: Path) -> None:
    base = tiny_base(tmp_path, spread=1.0)
    task = lm.LanguageTask(base, text_rows(base))
    before = lm.perplexity(task.model, task.data)
    fit(task, FitSettings(steps=40, batch=8, lr=1e-2, warmup=4), tmp_path / "out", {}, quiet)
    after = lm.perplexity(task.model, task.data)
    assert before > 200
    assert after < 12
    with torch.no_grad():  # the loss against transformers' own
        tokens = torch.from_numpy(task.data.tokens[:1])
        expected = base.model(input_ids=tokens, labels=tokens).loss
    assert lm.perplexity(task.model, task.data.take(slice(0, 1))) == pytest.approx(float(expected.exp()), rel=1e-4)


def test_runs_of_branches_that_are_cut_off() -> None:
    """Four branches of three nodes: all right; wrong at the second; cut off after the first; right, right, wrong."""
    right = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1], [1, 1, 0]], dtype=bool).T[None]
    alive = np.array([[1, 1, 1], [1, 1, 1], [1, 0, 0], [1, 1, 1]], dtype=bool).T[None]
    tally = np.zeros((2, 3))
    _count(tally, right, alive)
    assert tally.tolist() == [[4, 3, 2], [4, 2, 1]]
    assert _survival(tally) == pytest.approx((1.0, 2 / 3, 1 / 3))
    assert _survival(np.zeros((2, 2))) == (0.0, 0.0)


def hop_rows(count: int, length: int) -> tuple[Rows, np.ndarray]:
    """Texts over 3 words whose next word is mostly the last one plus 1, and the table [3, 3] of that law."""
    table = np.full((3, 3), 0.1)
    table[np.arange(3), (np.arange(3) + 1) % 3] = 0.8
    numbers = np.random.default_rng(0)
    tokens = np.zeros((count, length), dtype=np.int64)
    for k in range(1, length):
        cumulative = table[tokens[:, k - 1]].cumsum(1)
        tokens[:, k] = (cumulative > numbers.random((count, 1))).argmax(1)
    return Rows(tokens, np.full(count, length), np.ones(count, dtype=np.int64)), table


def test_scratch_learns_the_law_given_the_numbers(tmp_path: Path) -> None:
    """Without a teacher, a student's law given u's comes close to the law given the words that those u's pick.

    The law given no u's (what independent prediction could learn) is far away: that is what the test must tell apart.
    """
    rows, table = hop_rows(400, 8)
    tokenizer = make_tokenizer("characters", ["abc"])
    base = new_base(config_file(tmp_path), tokenizer, 0, context=16)
    model = new_student(base, "same", "interpolated", seed=0)
    task = PtpTask(model, rows, PtpSettings(objective="scratch", window=4, cuts=3))
    settings = FitSettings(steps=300, batch=16, lr=4e-3, warmup=20, schedule="cosine", checkpoint_every=1000)
    fit(task, settings, tmp_path / "out", {}, quiet)
    errors, blind = [], []
    numbers = np.random.default_rng(1)
    for past in ((0, 0), (0, 1), (0, 2)):
        u = numbers.random((100, 3))
        found = student_laws(model, past, u)
        for sample in range(len(u)):
            word = past[-1]
            for q in range(3):
                errors.append(0.5 * np.abs(found[sample, q, :3] - table[word]).sum())
                marginal = np.linalg.matrix_power(table, q + 1)[past[-1]]
                blind += [] if q == 0 else [0.5 * np.abs(marginal - table[word]).sum()]
                word = pick_inverse_cdf(table[word], u[sample, q])
    assert np.mean(blind) > 0.25
    assert np.mean(errors) < 0.08
    measured = validate(task, rows.take(slice(0, 40)), tell=quiet)
    entropy = np.exp(-(table[0] * np.log(table[0])).sum())
    assert measured.perplexity == pytest.approx(entropy, rel=0.08)
    assert measured.mean_run > 3.0


@torch.no_grad()
def student_laws(model: Any, past: tuple[int, ...], u: np.ndarray) -> np.ndarray:
    """[S, L, V] the student's laws after a past, given numbers [S, L] of a branch that starts there."""
    samples, window = u.shape
    tokens = torch.tensor([past]).expand(samples, -1)
    starts = np.full((samples, 1), len(past))
    windows = Windows.over(starts, window, np.full(samples, len(past) + window), len(past), torch.device("cpu"))
    text = model.read(tokens)
    vectors = input_vectors(model, "scratch", torch.from_numpy(u)[:, :, None], windows)
    states = model.branch(vectors, windows.mask, windows.positions, text.keys)
    return laws(model.student.head(states), PLAIN).numpy()
