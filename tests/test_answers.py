"""Answers of two models on tiny random ones: what is kept, who goes on, what it costs, what is left over: nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from answer_worlds import counted, idle, passes, plain, plain_logits, trio
from betoken.answers import METHODS, AnswerResult, answer, stream
from betoken.answers.boundaries import boundaries
from betoken.answers.desk import Desk
from betoken.answers.judge import Judge, VerdictTokens
from betoken.answers.method import Question
from betoken.answers.parse import Parse
from betoken.decode import Decoder, Request
from betoken.drafters.plain import Plain
from betoken.drafters.prompt_lookup import PromptLookup
from betoken.drafters.suffix import Suffix
from betoken.engine import Engine
from betoken.errors import InputError
from betoken.models.native.isa import isa
from betoken.settings import GenerationSettings
from betoken.testing import ToyTarget
from betoken.text import TextStream
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Replay

pytestmark = pytest.mark.skipif(isa() == "none", reason="this processor has no native kernels")
ASK = "def add(a, b): the fox"
LENGTH = 40
ALL_TOKENS = {"boundaries": "tokens", "every": 5, "most": 6}


WORDS = ("def add(a, b): the fox Correct Incorrect", "Reply with one word")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Engine, Engine]:
    """See `trio`."""
    return trio(tmp_path_factory.mktemp("models"), *WORDS)


@pytest.fixture
def target(models: tuple[Engine, Engine, Engine]) -> Engine:
    """Counts its forward passes."""
    return counted(models[0], 8)


@pytest.fixture
def draft(models: tuple[Engine, Engine, Engine]) -> Engine:
    return models[1]


def ask(target: Engine, draft: Engine | None, method: str = "parse", prompt: str = ASK, **own: object) -> AnswerResult:
    found = answer(
        prompt, method=method, target=target, draft=draft, method_settings=own, max_new_tokens=LENGTH, seed=3
    )
    assert idle(target)
    return found


def partly(target: Engine, draft: Engine, **own: object) -> tuple[dict[str, object], int]:
    """Settings that keep some prefix but not the whole draft, and how many tokens."""
    judged = ask(target, draft, threshold=1.0, **ALL_TOKENS, **own).stats.prefix_confidences
    bound = sorted(confidence for _, confidence in judged)[len(judged) // 2]
    kept = max(end for end, confidence in judged if confidence > bound)
    settings = {**ALL_TOKENS, **own, "threshold": 1.0, "prefix_threshold": bound, "rule": "last-pass"}
    return settings, kept


def test_target_alone_is_plain_decoding(target: Engine) -> None:
    found = ask(target, None, "target")
    expected = target.generate(ASK, max_new_tokens=LENGTH)[0]
    assert (found.text, found.tokens, found.finish_reason) == (expected.text, expected.tokens, "length")
    assert found.stats.lossless
    assert (found.stats.target_tokens, found.stats.draft_tokens, found.stats.kept_fraction) == (LENGTH, 0, 0.0)


@pytest.mark.parametrize("method", ["draft", "cascade", "parse"])
def test_an_accepted_draft_is_the_answer(target: Engine, draft: Engine, method: str) -> None:
    found = ask(target, draft, method, **({} if method == "draft" else {"threshold": 0.0}))
    expected = draft.generate(ASK, max_new_tokens=LENGTH)[0]
    assert (found.text, found.finish_reason) == (expected.text, "length")
    assert found.stats.accepted_whole and not found.stats.lossless
    assert (found.stats.kept_fraction, found.stats.target_tokens, found.stats.target_forwards) == (1.0, 0, 0)
    assert len(passes(target)) == found.stats.judge_forwards == (0 if method == "draft" else 1)


@pytest.mark.parametrize("method", ["cascade", "parse"])
def test_after_a_rejection_the_target_writes_without_prefill(target: Engine, draft: Engine, method: str) -> None:
    expected = ask(target, None, "target")
    passes(target).clear()
    found = ask(target, draft, method, threshold=1.0)
    assert found.tokens == expected.tokens
    assert not found.stats.accepted_whole and found.stats.kept_tokens == 0
    judging, writing = passes(target)[: found.stats.judge_forwards], passes(target)[found.stats.judge_forwards :]
    assert writing == [1] * LENGTH == [1] * found.stats.target_forwards
    assert sum(judging) == found.stats.judge_nodes + found.prompt_tokens


@pytest.mark.parametrize("passing", ["one", "two"])
def test_the_target_goes_on_after_the_kept_prefix_without_prefill(target: Engine, draft: Engine, passing: str) -> None:
    own, kept = partly(target, draft, passes=passing, chunk=2000)
    passes(target).clear()
    found = ask(target, draft, **own)
    drafted = draft.generate(ASK, max_new_tokens=LENGTH)[0].tokens
    assert 0 < found.stats.kept_tokens == kept < len(drafted)
    assert found.stats.kept_fraction == kept / len(drafted)
    assert found.tokens[:kept] == drafted[:kept]
    prompt = target.encode(ASK)
    scored = sum(passes(target))
    suffix = len(Judge().prompt(target.tokenizer, ASK).suffix)
    assert found.tokens[kept:] == plain(target, [*prompt, *drafted[:kept]], LENGTH - kept)
    copies = (1 + len(found.stats.prefix_confidences)) * suffix
    assert found.stats.judge_nodes == len(drafted) + copies
    assert scored == len(prompt) + len(drafted) + copies + (LENGTH - kept)
    assert found.stats.judge_forwards == (1 if passing == "one" else 2)


@pytest.mark.parametrize("layout", ["suffix", "prompt"])
@pytest.mark.parametrize("kind", ["sentence", "line", "tokens"])
@pytest.mark.parametrize("chunk", [512, 60])
def test_confidences_are_those_of_separate_plain_requests(
    target: Engine, draft: Engine, layout: str, kind: str, chunk: int
) -> None:
    own = {"layout": layout, "boundaries": kind, "every": 7, "chunk": chunk, "temperature": 2.0}
    found = ask(target, draft, threshold=1.0, **own).stats
    codec, judge = target.tokenizer, Judge(layout=layout, temperature=2.0)  # type: ignore[arg-type]
    asked, words = judge.prompt(codec, ASK), VerdictTokens.of(codec, "Correct", "Incorrect")
    drafted = draft.generate(ASK, max_new_tokens=LENGTH)[0].tokens
    ends = boundaries([codec.token_bytes(token) for token in drafted], kind, every=7)  # type: ignore[arg-type]
    assert [end for end, _ in found.prefix_confidences] == ends
    for end, confidence in [*found.prefix_confidences, (len(drafted), found.confidence)]:
        logits = plain_logits(target.target, [*asked.before, *drafted[:end], *asked.suffix])
        assert confidence == judge.confidence(words.log_odds(logits))


def test_mean_log_probability_is_a_second_signal(target: Engine, draft: Engine) -> None:
    one, two = (ask(target, draft, threshold=1.0, likelihood=weight, **ALL_TOKENS).stats for weight in (0.0, 0.5))
    assert one.judge_nodes == two.judge_nodes
    for (end, plain_one), (_, combined) in zip(one.prefix_confidences, two.prefix_confidences, strict=True):
        prompt = target.encode(ASK)
        drafted = draft.generate(ASK, max_new_tokens=LENGTH)[0].tokens
        mean = 0.0
        for place in range(end):
            logits = plain_logits(target.target, [*prompt, *drafted[:place]]).astype(float)
            mean += float(logits[drafted[place]] - np.logaddexp.reduce(logits)) / end
        assert combined == pytest.approx(
            1 / (1 + math.exp(-math.log(plain_one / (1 - plain_one)) - 0.5 * mean)), abs=1e-9
        )


def test_rules() -> None:
    ends, confidences = [3, 6, 9, 12], [0.9, 0.6, 0.2, 0.7]
    assert Parse().longest(ends, confidences) == 6
    assert Parse(rule="last-pass").longest(ends, confidences) == 12
    assert Parse(threshold=0.65).longest(ends, confidences) == 3
    assert Parse(threshold=0.95, prefix_threshold=0.5).longest(ends, confidences) == 6
    assert Parse(threshold=0.95).longest(ends, confidences) == 0
    assert Parse().longest([], []) == 0


def test_events_are_the_answer(target: Engine, draft: Engine) -> None:
    settings, _ = partly(target, draft)
    events = stream(ASK, target=target, draft=draft, method_settings=settings, max_new_tokens=LENGTH)
    seen = list(events)
    kinds = [event.kind for event in seen]
    assert kinds == sorted(kinds, key=["draft", "judging", "kept", "text"].index)
    assert kinds.count("kept") == 1
    drafted = "".join(event.text for event in seen if event.kind == "draft")
    assert drafted == draft.generate(ASK, max_new_tokens=LENGTH)[0].text
    assert "".join(event.text for event in seen if event.kind != "draft") == events.result.text
    assert events.result.text == target.tokenizer.decode(events.result.tokens)


def test_what_is_shown_of_a_kept_part_stays(target: Engine, draft: Engine) -> None:
    """Wherever it is cut: half a character waits for its other half, a beginning of a stop text for its end."""
    asked = GenerationSettings(max_new_tokens=LENGTH, stop=("ab",))
    desk = Desk(Question(ASK, target, draft, asked), "draft")
    words = [target.tokenizer.encode(text, add_special=False) for text in ("a", "b", "é", "日")]
    chance = np.random.default_rng(0)
    for _ in range(50):
        ids = [token for place in chance.integers(0, len(words), 12) for token in words[place]]
        whole = TextStream(target.tokenizer, ("ab",))
        text = "".join(whole.push(token) for token in ids) + whole.finish()
        shown = [desk.certain(ids[:end]) for end in range(len(ids) + 1)]
        assert all(text.startswith(part) for part in shown)


def test_an_answer_that_is_dropped_leaves_nothing_behind(target: Engine, draft: Engine) -> None:
    for stop_at in ("draft", "kept", "text"):
        events = stream(ASK, target=target, draft=draft, method_settings={"threshold": 1.0}, max_new_tokens=LENGTH)
        for event in events:
            if event.kind == stop_at:
                break
        events.close()
        assert idle(target) and idle(draft)


def test_a_stop_text_that_begins_in_the_kept_prefix(target: Engine, draft: Engine) -> None:
    own, kept = partly(target, draft)
    whole = ask(target, draft, **own)
    decode = target.tokenizer.decode
    at = len(decode(whole.tokens[:kept]))
    stop = whole.text[at - 1 : at + 2]
    if stop in draft.generate(ASK, max_new_tokens=LENGTH)[0].text:
        pytest.skip("the draft has the stop text itself")
    found = answer(ASK, target=target, draft=draft, method_settings=own, max_new_tokens=LENGTH, stop=stop)
    assert found.text == whole.text.split(stop)[0]
    assert found.finish_reason == "stop"


@pytest.mark.parametrize("drafter", [Suffix(), PromptLookup(), Suffix(tree=True)])
def test_the_rest_of_a_draft_is_copied_from(drafter: Suffix | PromptLookup) -> None:
    """A hint that holds what the target would write saves forward passes, and changes nothing."""
    toy = ToyTarget(50, seed=4, context=400)
    prompt = [3, 9, 4, 8]
    engine_free = Decoder(toy, Plain(), Replay(), FixedNodes(1))
    row = engine_free.admit(Request(prompt))
    while row.finish_reason is None and row.generated < 24:
        engine_free.step()
    expected = row.new_tokens
    steps = []
    for hint in ([], [*prompt, *expected], [7, 7, *prompt, *expected[:3], 49]):
        decoder = Decoder(toy, drafter, Replay(), FixedNodes(8))
        copied = decoder.admit(Request(prompt, hint=hint))
        while copied.finish_reason is None and copied.generated < len(expected):
            decoder.step()
        assert copied.new_tokens[: len(expected)] == expected
        steps.append(copied.steps)
        decoder.release(copied)
    assert steps[1] < steps[0]


def test_models_with_different_tokenizers(target: Engine, models: tuple[Engine, Engine, Engine]) -> None:
    """Text is what is handed over; boundaries are positions in it."""
    writer = models[2]
    own, _ = partly(target, writer)
    found = ask(target, writer, **own)
    drafted = writer.generate(ASK, max_new_tokens=LENGTH, seed=3)[0].text
    ids = target.tokenizer.encode(drafted, add_special=False)[:LENGTH]
    kept = found.stats.kept_tokens
    assert 0 < kept < len(ids)
    assert found.tokens[:kept] == ids[:kept]
    assert drafted.startswith(target.tokenizer.decode(ids[:kept]))
    assert found.tokens[kept:] == plain(target, [*target.encode(ASK), *ids[:kept]], LENGTH - kept)
    with pytest.raises(InputError, match="different tokens"):
        answer(ASK, target=target, draft=writer, stop_ids=[5])


def test_a_draft_that_the_context_cannot_judge_is_not_accepted(models: tuple[Engine, Engine, Engine]) -> None:
    target, draft, _ = models
    suffix = len(Judge().prompt(target.tokenizer, ASK).suffix)
    room = 1024 - len(target.encode(ASK)) - suffix
    own = {**ALL_TOKENS, "threshold": 0.0, "prefix_threshold": 0.0}
    found = answer(ASK, target=target, draft=draft, method_settings=own, max_new_tokens=room + 20)
    assert found.stats.confidence is None and not found.stats.accepted_whole
    assert 0 < found.stats.kept_tokens <= room
    assert len(found.tokens) == room + 20
    assert idle(target)


def test_settings_that_cannot_be_served(target: Engine, draft: Engine) -> None:
    for wrong in ({"boundaries": "word"}, {"threshold": 2.0}, {"rule": "best"}, {"tau": 1}, {"most": -1}, {"chunk": 0}):
        with pytest.raises(InputError):
            answer(ASK, target=target, draft=draft, method_settings=wrong)
    with pytest.raises(InputError, match="needs a draft model"):
        answer(ASK, target=target)
    with pytest.raises(InputError, match="unknown method"):
        answer(ASK, target=target, method="pars")
    with pytest.raises(InputError, match="logprobs"):
        answer(ASK, target=target, draft=draft, logprobs=2)
    assert set(METHODS) >= {"parse", "cascade", "draft", "target"}
