"""Several answers at once: the same answers as one by one, in shared passes; and answers in rounds."""

from __future__ import annotations

from itertools import product

import pytest

from answer_worlds import Counting, counted, idle, passes, plain, trio
from betoken.answers import answer, answer_all, stream, stream_all
from betoken.answers.boundaries import boundaries
from betoken.answers.packed import Docket, PackedPass, run
from betoken.drafters.plain import Plain
from betoken.engine import Engine
from betoken.errors import BetokenError, InputError
from betoken.models.native.isa import isa
from betoken.remote import RemoteModel
from betoken.tuning.cost import CostModel
from betoken.tuning.nodes import FixedNodes
from betoken.tuning.timings import Timings
from betoken.verifiers.replay import Replay
from scripted_server import scripted, writes
from tiny_models import prefill

pytestmark = pytest.mark.skipif(isa() == "none", reason="this processor has no native kernels")
WORDS = ("def add(a, b): the fox Correct Incorrect", "Reply with one word")
ASKED = ["def add(a, b): the fox", "the one word", "add the fox with one word, a b"]
EVERY = {"boundaries": "tokens", "every": 5}
LENGTH = 30


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Engine, Engine]:
    """See `trio`."""
    return trio(tmp_path_factory.mktemp("models"), *WORDS)


@pytest.fixture
def target(models: tuple[Engine, Engine, Engine]) -> Engine:
    """Counts its forward passes."""
    return counted(models[0], 8)


def middle(target: Engine, draft: Engine, prompt: str, **own: object) -> float:
    """A threshold that some prefixes of the draft pass and some do not."""
    judged = answer(
        prompt, target=target, draft=draft, method_settings={**EVERY, "threshold": 1.0, **own}, max_new_tokens=LENGTH
    ).stats.prefix_confidences
    return sorted(confidence for _, confidence in judged)[len(judged) // 2]


def test_passes_share_forwards_and_change_nothing(models: tuple[Engine, Engine, Engine]) -> None:
    texts, suffix = [[5, 9, 6, 2, 7, 3, 8], [4, 4, 1, 9, 30, 31, 32, 33, 34, 35, 36], [8, 8, 8]], [11, 12, 13]
    ends = [[1, 4, 7], [2, 10], [3]]
    counting = Counting(models[0].target)
    cache = counting.new_cache()

    def work(text: list[int]) -> PackedPass:
        return PackedPass(counting, cache, prefill(counting, cache, text[:1]), suffix, chunk=24)

    alone = [work(text).score(text, end) for text, end in zip(texts, ends, strict=True)]
    together = [work(text) for text in texts]
    counting.passes.clear()
    for one, text, end in zip(together, texts, ends, strict=True):
        one.ask(text, end)
    run(together)
    assert [[row.tobytes() for row in one.logits] for one in together] == [[x.tobytes() for x in one] for one in alone]
    assert sum(counting.passes) == sum(one.nodes for one in together)
    assert len(counting.passes) == 2 and max(counting.passes) <= 24
    assert all(one.forwards == 1 and one.seconds > 0 for one in together)
    docket = Docket([together[0]])
    docket.drop(together[0])
    assert not docket.waiting


@pytest.mark.parametrize("method", ["parse", "cascade", "specreason", "speculative-thinking", "draft", "target"])
def test_the_answers_are_those_of_one_by_one(
    target: Engine, models: tuple[Engine, Engine, Engine], method: str
) -> None:
    own = {**EVERY, "threshold": middle(target, models[1], ASKED[0])} if method == "parse" else {}
    alone = [
        answer(one, method=method, target=target, draft=models[1], method_settings=own, max_new_tokens=LENGTH, seed=4)
        for one in ASKED
    ]
    one_by_one = len(passes(target))
    passes(target).clear()
    found = target.answer(
        ASKED, method=method, draft=models[1], method_settings=own, max_new_tokens=LENGTH, seed=4, batch=2
    )
    assert [(one.text, one.tokens, one.finish_reason) for one in found] == [
        (one.text, one.tokens, one.finish_reason) for one in alone
    ]
    assert [one.stats.prefix_confidences for one in found] == [one.stats.prefix_confidences for one in alone]
    assert [one.stats.judge_nodes for one in found] == [one.stats.judge_nodes for one in alone]
    assert idle(target) and idle(models[1])
    if method in ("parse", "target"):
        assert len(passes(target)) < one_by_one


def test_all_that_wait_are_judged_in_the_same_passes(target: Engine, models: tuple[Engine, Engine, Engine]) -> None:
    """Drafts of different lengths; the judge reads all three at once, and the target writes all three side by side."""
    own = {"threshold": 1.0, "most": 0, "chunk": 4096}
    events = stream_all(ASKED, target=target, draft=models[1], method_settings=own, max_new_tokens=LENGTH)
    seen: dict[int, str] = {}
    for place, event in events:
        if event.kind == "kept":
            assert set(seen) == {0, 1, 2} and "draft" not in seen.values()
        seen[place] = event.kind
    stats = [one.stats for one in events.results]
    judging = passes(target)[0]
    assert judging == sum(
        one.judge_nodes + result.prompt_tokens for one, result in zip(stats, events.results, strict=True)
    )
    assert passes(target)[1:] == [3] * LENGTH
    assert [one.text for one in events.results] == [one.text for one in target.generate(ASKED, max_new_tokens=LENGTH)]


def test_events_of_all_and_an_early_end(target: Engine, models: tuple[Engine, Engine, Engine]) -> None:
    events = stream_all(ASKED, target=target, draft=models[1], max_new_tokens=LENGTH, batch=2)
    texts = ["", "", ""]
    for place, event in events:
        texts[place] += event.text if event.kind != "draft" else ""
    assert texts == [one.text for one in events.results]
    for stage in ("draft", "judging", "kept"):
        events = stream_all(
            ASKED, target=target, draft=models[1], method_settings={"threshold": 1.0}, max_new_tokens=LENGTH
        )
        next(place for place, event in events if event.kind == stage)
        with pytest.raises(BetokenError, match="not finished"):
            _ = events.results
        events.close()
        assert list(events) == [] and idle(target) and idle(models[1])
    with pytest.raises(InputError, match="batch"):
        answer_all(ASKED, target=target, draft=models[1], batch=0)
    with pytest.raises(InputError, match="3 prompts"):
        answer_all(ASKED, target=target, draft=models[1], settings=[])


def test_a_draft_model_behind_http_drafts_for_several_questions(target: Engine) -> None:
    with scripted(writes("the fox", " says", finish="length")) as server:
        draft = RemoteModel.open(server.url)
        try:
            found = target.answer(ASKED, draft=draft, method="cascade", method_settings={"threshold": 0.0}, batch=2)
            shown = target.stream_answer(ASKED[0], draft=draft, method_settings={"threshold": 0.0})
            events = list(shown)
        finally:
            draft.close()
    assert [one.text for one in found] == ["the fox says"] * 3
    assert all(one.stats.accepted_whole and one.stats.draft_model == draft.name for one in found)
    assert [event.text for event in events if event.kind == "draft"] == ["the fox", " says"]
    assert shown.result.text == "the fox says" and len(server.asked) == 4
    with pytest.raises(TypeError, match="methd"):
        target.answer(ASKED, draft=draft, methd="cascade")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="temprature"):
        target.answer(ASKED, draft=draft, temprature=1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize("layout", ["suffix", "prompt"])
@pytest.mark.parametrize("rounds", [1, 2, 9])
def test_in_rounds_the_draft_model_goes_on_after_the_target(
    target: Engine, models: tuple[Engine, Engine, Engine], layout: str, rounds: int
) -> None:
    """Replayed by plain decoding of both models, and by confidences from answers without rounds."""
    draft, prompt = models[1], ASKED[0]
    own = {**EVERY, "layout": layout, "rule": "last-pass", "threshold": 1.0}
    bound = middle(target, draft, prompt, layout=layout)
    found = answer(
        prompt,
        target=target,
        draft=draft,
        method_settings={**own, "prefix_threshold": bound, "rounds": rounds},
        max_new_tokens=LENGTH,
    )
    assert idle(target) and idle(draft)
    asked, drafting = target.encode(prompt), draft.encode(prompt)
    judged = iter(found.stats.prefix_confidences)
    tokens: list[int] = []
    for turn in range(rounds + 1):
        written = plain(draft, [*drafting, *tokens], LENGTH - len(tokens))
        pieces = [target.tokenizer.token_bytes(token) for token in written]
        ends = boundaries(pieces, "tokens", every=5)
        confidences = [next(judged) for _ in ends]
        assert [end for end, _ in confidences] == [len(tokens) + end for end in ends]
        tokens += written[: max([end - len(tokens) for end, one in confidences if one > bound], default=0)]
        room = LENGTH - len(tokens)
        tokens += plain(target, [*asked, *tokens], room if turn == rounds else min(5, room))
        if len(tokens) == LENGTH:
            break
    assert found.tokens == tokens
    assert 0 < found.stats.resumed <= rounds
    assert found.stats.kept_tokens + found.stats.target_tokens == LENGTH
    assert (found.finish_reason, found.text) == ("length", target.tokenizer.decode(tokens))


def test_rounds_end_where_the_judge_is_content(target: Engine, models: tuple[Engine, Engine, Engine]) -> None:
    for draft in models[1:]:
        written = draft.generate(ASKED[0], max_new_tokens=LENGTH)[0]
        own = {"threshold": 0.0, "rounds": 3}
        found = answer(ASKED[0], target=target, draft=draft, method_settings=own, max_new_tokens=LENGTH)
        assert found.stats.accepted_whole and found.stats.resumed == 0 and found.stats.target_tokens == 0
        assert written.text.startswith(found.text.rstrip("\ufffd")) and found.finish_reason == "length"


def test_rounds_with_other_tokens_and_stop_texts(target: Engine, models: tuple[Engine, Engine, Engine]) -> None:
    own = {**EVERY, "boundaries": "sentence", "threshold": 1.0, "prefix_threshold": 0.0, "rounds": 2}
    whole = answer(ASKED[0], target=target, draft=models[2], method_settings=own, max_new_tokens=LENGTH)
    assert idle(target) and idle(models[2])
    assert whole.text == target.tokenizer.decode(whole.tokens)
    stop = whole.text[8:10]
    cut = answer(ASKED[0], target=target, draft=models[2], method_settings=own, max_new_tokens=LENGTH, stop=stop)
    assert cut.text == whole.text.split(stop)[0] and cut.finish_reason == "stop"


@pytest.mark.parametrize("every", [1, 4, 5])
def test_what_rounds_show_is_their_answer(target: Engine, models: tuple[Engine, Engine, Engine], every: int) -> None:
    """Wherever a draft is cut: half a character is shown with its other half, or not at all."""
    own = {"boundaries": "tokens", "every": every, "threshold": 1.0, "prefix_threshold": 0.0, "rounds": 3}
    for draft, prompt in product(models[1:], ASKED):
        events = stream(prompt, target=target, draft=draft, method_settings=own, max_new_tokens=LENGTH)
        shown = "".join([event.text for event in events if event.kind != "draft"])
        assert events.result.text.startswith(shown)
        assert len(events.result.text) <= len(shown) + 1, "all but the half of a character with which it ends"


@pytest.mark.parametrize(("slope", "many"), [(1e-9, True), (1e-2, False)])
def test_the_plan_follows_measured_costs(models: tuple[Engine, Engine, Engine], slope: float, many: bool) -> None:
    timings = Timings((1, 64), (0.02, 0.02 + 63 * slope), 64)
    engine = Engine(
        models[0].target,
        models[0].tokenizer,
        Plain(),
        Replay(),
        FixedNodes(8),
        measure=lambda: CostModel(timings),
    )
    own = {**EVERY, "threshold": 1.0, "chunk": 1024}
    plan = answer(ASKED[0], target=engine, draft=models[1], method_settings=own, max_new_tokens=LENGTH).stats.plan
    assert plan is not None and plan.expected_s is not None and plan.expected_s > 0
    assert (plan.passes, len(plan.ends)) == (("one", 5) if many else ("two", 0))
    own["layout"] = "auto"
    layout = answer(ASKED[0], target=engine, draft=models[1], method_settings=own, max_new_tokens=LENGTH).stats.plan
    assert layout is not None and layout.expected_s is not None and layout.expected_s <= plan.expected_s
    cascade = answer(
        ASKED[0], method="cascade", target=engine, draft=models[1], method_settings={"layout": "auto"}, max_new_tokens=9
    ).stats.plan
    assert cascade is not None and cascade.ends == ()
