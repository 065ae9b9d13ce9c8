"""SpecReason and Speculative Thinking on tiny random models, against the rules written out with plain requests."""

from __future__ import annotations

import numpy as np
import pytest

from answer_worlds import Counting, counted, idle, plain_logits, trio
from betoken.answers import AnswerResult, answer, stream
from betoken.answers.judge import Judge
from betoken.answers.specreason import GRADE, digit_tokens, grade_of
from betoken.answers.thinking import CHECK, cue_of
from betoken.answers.turns import step_ends
from betoken.engine import Engine
from betoken.errors import InputError
from betoken.models.native.isa import isa
from betoken.models.target import Target

pytestmark = pytest.mark.skipif(isa() == "none", reason="this processor has no native kernels")
ASK = "def add(a, b): the fox"
LENGTH, STEP = 30, 6
WORDS = ("def add(a, b): the fox", "so wait for it, and wait, and wait")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Engine, Engine]:
    """See `trio`."""
    return trio(tmp_path_factory.mktemp("models"), *WORDS)


@pytest.fixture
def target(models: tuple[Engine, Engine, Engine]) -> Engine:
    """Counts its forward passes."""
    return counted(models[0], 1)


@pytest.fixture
def draft(models: tuple[Engine, Engine, Engine]) -> Engine:
    return models[1]


def ask(target: Engine, draft: Engine, method: str = "specreason", **own: object) -> AnswerResult:
    own = {"step_tokens": STEP, **own}
    found = answer(ASK, method=method, target=target, draft=draft, method_settings=own, max_new_tokens=LENGTH)
    assert idle(target) and idle(draft)
    return found


def greedy(target: Target, text: list[int], most: int) -> list[int]:
    """Tokens of plain greedy decoding, each by a request of its own."""
    found: list[int] = []
    while len(found) < most:
        found.append(int(plain_logits(target, [*text, *found]).argmax()))
    return found


def test_a_step_ends_at_a_blank_line_behind_text() -> None:
    assert step_ends("a\n\n") and step_ends("\n\na\n\nb")
    assert not step_ends("\n\n\n") and not step_ends("\n\nabc\n")


@pytest.mark.parametrize(("threshold", "winner"), [(0.0, 1), (9.0, 0)])
def test_one_model_writes_all_if_every_step_passes_or_fails(
    target: Engine, models: tuple[Engine, Engine, Engine], threshold: float, winner: int
) -> None:
    """Steps are seamless: the text is what the one model writes alone."""
    found = ask(target, models[1], threshold=threshold, score="average")
    assert found.tokens == models[winner].generate(ASK, max_new_tokens=LENGTH)[0].tokens
    assert found.finish_reason == "length"
    assert found.stats.accepted_whole == (winner == 1)
    assert found.stats.kept_fraction == winner


@pytest.mark.parametrize("score", ["greedy", "average"])
def test_steps_are_graded_and_rewritten_by_the_rule(target: Engine, draft: Engine, score: str) -> None:
    probe = ask(target, draft, threshold=0.0, score=score).stats.prefix_confidences
    threshold = 9 * sorted(grade for _, grade in probe)[len(probe) // 2]
    counting = target.target
    assert isinstance(counting, Counting)
    counting.passes.clear()
    found = ask(target, draft, threshold=threshold, score=score)
    scored = sum(counting.passes)

    judge = Judge(instruction=GRADE)
    prompt, suffix = target.encode(ASK), list(judge.prompt(target.tokenizer, ASK).suffix)
    digits = digit_tokens(target.tokenizer)
    text: list[int] = []
    nodes, grades, rejected = len(prompt), 0, 0
    while len(text) < LENGTH:
        step = greedy(draft.target, [*prompt, *text], STEP)
        logits = plain_logits(counting.inner, [*prompt, *text, *step, *suffix])
        grades += 1
        nodes += len(step) + len(suffix)
        if grade_of(logits, digits, score) < threshold:  # type: ignore[arg-type]
            rejected += 1
            step = greedy(counting.inner, [*prompt, *text], STEP)
            nodes += STEP + (len(text) + STEP < LENGTH)  # its last token is scored with the next step
        text += step
    assert found.tokens == text
    assert rejected > 0 or score == "greedy"
    assert found.stats.kept_fraction == 1 - rejected / grades
    assert found.stats.judge_forwards == grades
    assert found.stats.judge_nodes == grades * (STEP + len(suffix))
    assert scored == nodes  # nothing is computed twice


def test_models_with_different_tokenizers_take_turns(target: Engine, models: tuple[Engine, Engine, Engine]) -> None:
    probe = ask(target, models[2], threshold=0.0, score="average").stats.prefix_confidences
    threshold = 9 * sorted(grade for _, grade in probe)[len(probe) // 2]
    found = ask(target, models[2], threshold=threshold, score="average")
    assert 0 < found.stats.kept_fraction < 1
    assert len(found.tokens) <= LENGTH


def test_events_are_the_answer(target: Engine, draft: Engine) -> None:
    own = {"step_tokens": STEP, "threshold": 4.0, "score": "average"}
    events = stream(ASK, method="specreason", target=target, draft=draft, method_settings=own, max_new_tokens=LENGTH)
    text = "".join(event.text for event in events if event.kind != "draft")
    assert events.result.text.startswith(text)  # half a character at the end waits for its other half


def test_grades() -> None:
    logits = np.full(30, -20.0, dtype=np.float32)
    digits = [[n, n + 10] for n in range(10)]
    logits[7], logits[13] = 1.0, 1.0
    logits[3] = 0.0
    assert grade_of(logits, digits, "greedy") == 3.0
    e = np.e
    assert grade_of(logits, digits, "average") == pytest.approx((7 * e + 3 * (e + 1)) / (2 * e + 1), abs=1e-6)


@pytest.mark.parametrize(
    ("text", "cue"),
    [
        ("Wait, that is", "negative"),
        ("Let me check this, but wait", "verify"),
        ("Yes, so", "positive"),
        ("We await the checker", "none"),
        ("hold on. Yes", "negative"),
    ],
)
def test_cues(text: str, cue: str) -> None:
    assert cue_of(text) == cue


def test_thinking_without_cues_is_the_draft_alone(target: Engine, draft: Engine) -> None:
    found = ask(target, draft, "speculative-thinking")
    assert found.tokens == draft.generate(ASK, max_new_tokens=LENGTH)[0].tokens
    assert found.stats.target_tokens == 0


def test_thinking_hands_over_at_cues_and_checks_after_doubts(target: Engine, draft: Engine) -> None:
    [doubt] = target.tokenizer.encode(" wait", add_special=False)
    own = {"step_tokens": 3, "probe": 4, "takeover": 2, "check": 5, "doubts": 2, "doubts_growth": 0}
    found = answer(
        ASK,
        method="speculative-thinking",
        target=target,
        draft=draft,
        method_settings=own,
        max_new_tokens=200,
        logit_bias={doubt: 1000.0},
    )
    opening = len(target.tokenizer.encode(CHECK, add_special=False))
    turns = [3, 2, 3, opening + 5]  # step, doubt 1; step, doubt 2: check
    expected = " wait" * 3 + " wait" * 2 + " wait" * 3 + CHECK + " wait" * 5
    assert found.text.startswith(expected + " wait" * 3 + " wait" * 2)
    assert len(found.tokens) == 200 > sum(turns)
    assert idle(target) and idle(draft)


def test_settings_that_cannot_be_used(target: Engine, draft: Engine) -> None:
    for method, wrong in (
        ("specreason", {"threshold": 10.0}),
        ("specreason", {"step_tokens": 0}),
        ("speculative-thinking", {"probe": 0}),
        ("speculative-thinking", {"check_growth": -1}),
    ):
        with pytest.raises(InputError):
            answer(ASK, method=method, target=target, draft=draft, method_settings=wrong)
