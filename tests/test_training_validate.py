"""What held-out rows say of students and draft models, against one number and one token at a time."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from betoken.sampling import law, pick_inverse_cdf
from betoken.training.draws import Purpose, generator
from betoken.training.intervals import interval, place
from betoken.training.model import CausalModel
from betoken.training.objectives import PLAIN
from betoken.training.ptp import PtpSettings, PtpTask
from betoken.training.validate import validate, validate_draft_model
from betoken.training.windows import cut_points
from training_toys import quiet, text_rows, tiny_base, tiny_task

SETTINGS = PtpSettings(objective="o-ptp", window=4, cuts=3, seed=2)


def test_a_draft_model_is_measured_as_if_it_guessed_token_by_token(tmp_path: Path) -> None:
    base = tiny_base(tmp_path)
    rows = text_rows(base).take(slice(0, 5))
    other = copy.deepcopy(base.model)
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn(weight.shape, generator=noise) * 0.04)
        logits = [model(torch.from_numpy(rows.tokens)).logits.numpy() for model in (base.model, other)]
    runs, losses = [], []
    for at in (0, 2, 4):
        part = rows.take(slice(at, at + 2))
        numbers = generator(2, Purpose.VALIDATION, at)
        starts = cut_points(numbers, part.first, part.lengths, 4, 3)
        v = numbers.random((len(part), 4, 3))
        for b, c in np.ndindex(starts.shape):
            said = []
            for q in range(4):
                index = int(starts[b, c]) + q
                true, guessed = (law(one[at + b, index - 1], PLAIN) for one in logits)
                token = int(part.tokens[b, index])
                said.append(pick_inverse_cdf(guessed, place(interval(true, token), float(v[b, q, c]))) == token)
                losses.append(-math.log(guessed[token]))
            runs.append([*said, False].index(False))
    found = validate_draft_model(CausalModel(base.model), CausalModel(other), rows, SETTINGS, batch=2)
    assert 0.0 < found.mean_run < 4.0
    assert found.mean_run == pytest.approx(np.mean(runs))
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-4)
    assert found.node_losses == pytest.approx(np.reshape(losses, (-1, 4)).mean(0), rel=1e-4)
    assert found.branches == len(runs) == 15


def test_a_draft_model_that_is_the_teacher_is_always_right(tmp_path: Path) -> None:
    base = tiny_base(tmp_path)
    model = CausalModel(base.model)
    found = validate_draft_model(model, model, text_rows(base), SETTINGS)
    assert found.first_runs == (1.0,) * 4
    assert found.runs == (1.0,) * 3


def test_the_loss_of_a_student_that_knows_nothing_is_that_of_a_uniform_guess(tmp_path: Path) -> None:
    base = tiny_base(tmp_path)
    task = tiny_task(base, "o-ptp", "full")
    with torch.no_grad():
        task.model.student.model.get_output_embeddings().weight.zero_()
    found = validate(task, text_rows(base).take(slice(0, 4)), tell=quiet)
    assert found.loss == pytest.approx(math.log(base.config.vocab_size))
    assert found.node_losses == pytest.approx([found.loss] * 4)
    assert found.perplexity is None


def test_one_model_of_text_and_numbers_has_a_perplexity_however_it_learnt(tmp_path: Path) -> None:
    """Under numbers of its own law; what learns by a temperature, or for another model, is no such model."""
    base = tiny_base(tmp_path)
    rows, found = text_rows(base).take(slice(0, 4)), {}
    model = tiny_task(base, "scratch", "same").model
    for objective in ("scratch", "c-ptp"):
        task = PtpTask(model, rows, replace(SETTINGS, objective=objective))
        found[objective] = validate(task, rows, tell=quiet)
    assert found["c-ptp"].perplexity == found["scratch"].perplexity == pytest.approx(math.exp(found["scratch"].loss))
    warm = replace(SETTINGS, objective="c-ptp", law=replace(PLAIN, temperature=0.5))
    assert validate(PtpTask(model, rows, warm), rows, tell=quiet).perplexity is None
    assert validate(tiny_task(base, "c-ptp", "full"), rows, tell=quiet).perplexity is None
