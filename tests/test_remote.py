"""Models behind HTTP: what a scripted server is asked, what is made of its answers, and every way it can fail."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Barrier
from time import perf_counter, sleep
from typing import Any

import pytest

from betoken.answers import AnswerResult, answer, answer_all, stream
from betoken.answers.judge import Judge
from betoken.answers.remote import Verdicts, log_odds
from betoken.cli import main
from betoken.errors import InputError, ServerError
from betoken.models.chat_template import ChatTemplate
from betoken.remote import Patience, RemoteModel
from betoken.remote.parallel import side_by_side
from betoken.remote.replies import alternatives
from scripted_server import Act, Handler, Scripted, events, said, scripted, status, verdict, writes
from scripted_server import answer as reply

QUICK = Patience(connect=1.0, silence=0.5, retries=2, backoff=0.0)
DRAFT = ("One is odd.", " Two is", " even. ", "Three is even.", " Four")


def ask(server: Scripted, method: str, draft: Scripted | None = None, raw: bool = False, **own: object) -> AnswerResult:
    with opened(server) as target, opened(draft or server) as other:
        return answer(
            "Count.", method=method, target=target, draft=other, raw=raw, method_settings=own, max_new_tokens=50
        )


@contextmanager
def opened(server: Scripted) -> Iterator[RemoteModel]:
    """Its model, closed again."""
    model = RemoteModel.open(server.url, patience=QUICK)
    try:
        yield model
    finally:
        model.close()


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and error of a command line."""
    with pytest.raises(SystemExit) as ended:
        main(["answer", *arguments, "--prompt", "Count."])
    assert isinstance(ended.value.code, int)
    told = capsys.readouterr()
    return ended.value.code, told.out, told.err


# What is asked, and what is made of the answers


def test_the_whole_draft_where_the_judge_is_confident() -> None:
    with scripted(verdict(-0.1, -4.0)) as target, scripted(writes(*DRAFT)) as draft:
        found = ask(target, "parse", draft)
    assert (found.text, found.finish_reason) == ("".join(DRAFT), "stop")
    assert found.stats.accepted_whole and found.stats.judge_forwards == 1
    assert found.stats.confidence == pytest.approx(1 / (1 + math.exp(-3.9)))
    [(path, body)] = target.asked
    assert path == "/v1/chat/completions" and body["logprobs"] is True and body["max_tokens"] == 1
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"] == "".join(DRAFT)


def test_the_longest_valid_prefix_and_what_the_target_goes_on_with() -> None:
    """The judge doubts every text with the word Three, so the first two sentences stand."""

    def judge_or_write(handler: Handler, body: dict[str, Any]) -> None:
        if body.get("stream"):
            writes("Three", " is odd.")(handler, body)
        else:
            doubts = "Three" in body["messages"][1]["content"]
            verdict(-5.0 if doubts else -0.1, -0.1 if doubts else -5.0)(handler, body)

    with (
        scripted(judge_or_write) as target,
        scripted(writes(*DRAFT)) as draft,
        opened(target) as model,
        opened(draft) as other,
    ):
        shown = stream("Count.", target=model, draft=other, max_new_tokens=50)
        seen = list(shown)
    kept = "".join(DRAFT[:3])
    assert shown.result.text == kept + "Three is odd."
    assert [event.text for event in seen if event.kind == "draft"] == list(DRAFT)
    assert "".join(event.text for event in seen if event.kind in ("kept", "text")) == shown.result.text
    assert [end for end, _ in shown.result.stats.prefix_confidences] == [1, 3, 4]
    assert shown.result.stats.kept_tokens == 3
    body = target.asked[-1][1]
    assert body["messages"][-1] == {"role": "assistant", "content": kept}
    assert body["continue_final_message"] is True and body["add_generation_prompt"] is False
    assert body["max_tokens"] == 47


def test_several_questions_to_servers() -> None:
    def judge_or_write(handler: Handler, body: dict[str, Any]) -> None:
        if body.get("stream"):
            writes("no")(handler, body)
        else:
            right = body["messages"][0]["content"] == "Count."
            verdict(*((-0.1, -5.0) if right else (-5.0, -0.1)))(handler, body)

    with (
        scripted(judge_or_write) as target,
        scripted(writes(*DRAFT)) as draft,
        opened(target) as model,
        opened(draft) as other,
    ):
        found = answer_all(["Count.", "Lie.", "Count."], target=model, draft=other, method="cascade", batch=2)
    assert [one.text for one in found] == ["".join(DRAFT), "no", "".join(DRAFT)]
    assert [one.stats.accepted_whole for one in found] == [True, False, True]


def test_prefixes_are_judged_side_by_side() -> None:
    together = Barrier(3)

    def act(handler: Handler, body: dict[str, Any]) -> None:
        if "Four" not in body["prompt"]:
            together.wait(timeout=5)  # passes only if three requests are here at a time
        verdict(-5.0, -0.1)(handler, body)

    with scripted(act, act, act, act, writes("x")) as target, scripted(writes(*DRAFT)) as draft:
        found = ask(target, "parse", draft, raw=True)
    assert found.text == "x"
    assert found.stats.judge_forwards == 4
    assert all(path == "/v1/completions" for path, _ in target.asked)


def test_one_pass_asks_for_the_whole_and_its_prefixes_at_once() -> None:
    together = Barrier(4)

    def act(handler: Handler, body: dict[str, Any]) -> None:
        together.wait(timeout=5)
        verdict(-0.1, -5.0)(handler, body)

    with scripted(act) as target, scripted(writes(*DRAFT)) as draft:
        assert ask(target, "parse", draft, raw=True, passes="one").stats.accepted_whole


def test_a_template_makes_the_prompt_and_the_kept_text_its_end() -> None:
    template = ChatTemplate("<s>{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]")
    with scripted(verdict(-0.1, -5.0)) as server, opened(server) as model:
        own = RemoteModel(model.endpoint, model.served, "vllm", template, "<s>")
        assert own.ask("Hi", answer="Hel") == "[user]Hi[assistant]Hel"
        own.judge(own.ask("Hi"))
        body = server.asked[0][1]
        assert body["prompt"] == "[user]Hi[assistant]" and body["add_special_tokens"] is False


def test_a_stop_text_ends_the_answer_and_hangs_up() -> None:
    with scripted(writes("a", "b|", "|c", "d")) as server, opened(server) as model:
        found = answer("Count.", method="target", target=model, stop=["||"])
    assert (found.text, found.finish_reason) == ("ab", "stop")


def test_settings_are_sent_in_words_that_servers_know() -> None:
    with scripted(writes("a"), owner="llamacpp", models=None) as server, opened(server) as model:
        answer("x", method="target", target=model, raw=True, temperature=0.5, top_k=7, seed=3, repetition_penalty=1.1)
        body = server.asked[-1][1]
    assert (body["temperature"], body["top_k"], body["min_p"], body["seed"]) == (0.5, 7, 0.0, 3)
    assert body["repeat_penalty"] == body["repetition_penalty"] == 1.1
    with scripted(writes("a"), owner="openai") as server, opened(server) as model:
        answer("x", method="target", target=model)
        assert not {"top_k", "min_p", "repeat_penalty"} & set(server.asked[-1][1])


@pytest.mark.parametrize(
    "document",
    [
        {"choices": [{"logprobs": {"content": [{"token": "a", "top_logprobs": [
            {"token": "a", "logprob": -0.5}, {"token": "token", "logprob": -2.0}]}]}}]},
        {"choices": [{"logprobs": {"tokens": ["a"], "top_logprobs": [{"a": -0.5, "token": -2.0}]}}]},
        {"completion_probabilities": [{"token": "a", "top_logprobs": [
            {"token": "a", "logprob": -0.5}, {"token": "token", "logprob": -2.0}]}]},
        {"completion_probabilities": [{"content": "a", "probs": [
            {"tok_str": "a", "prob": math.exp(-0.5)}, {"tok_str": "token", "prob": math.exp(-2.0)}]}]},
    ],
    ids=["chat and llama.cpp", "completions of OpenAI, vLLM, llama-cpp-python", "llama.cpp", "older llama.cpp"],
)  # fmt: skip
def test_alternatives_in_every_form(document: dict[str, Any]) -> None:
    assert alternatives(document) == pytest.approx({"a": -0.5, "token": -2.0})


def test_log_odds_from_what_is_there() -> None:
    judge = Judge()
    found = {"Correct": math.log(0.5), " correct": math.log(0.1), "Inc": math.log(0.2), "In": math.log(0.1), "I": -4.0}
    assert log_odds(found, judge, None) == pytest.approx(math.log(0.6 / 0.3))
    assert log_odds(found, judge, Verdicts({"Correct"}, {"In"})) == pytest.approx(math.log(0.5 / 0.1))
    # What is missing has at most the least probability that is there, and what all leave over.
    assert log_odds({"Correct": math.log(0.9), "x": math.log(0.04)}, judge, None) == pytest.approx(math.log(0.9 / 0.04))
    assert log_odds({"Correct": math.log(0.9)}, judge, None) == pytest.approx(math.log(9))
    assert log_odds({"Incorrect": math.log(0.9)}, judge, None) == pytest.approx(-math.log(9))
    assert log_odds({"Yes": -0.1}, judge, None) == -math.inf
    assert judge.confidence(-math.inf) == 0.0


def test_the_first_error_of_many_is_raised_at_once() -> None:
    def slow() -> int:
        sleep(2)
        return 1

    def bad() -> int:
        raise ServerError("bad")

    began = perf_counter()
    with pytest.raises(ServerError, match="bad"):
        side_by_side([slow, bad], 2)
    assert perf_counter() - began < 1
    assert side_by_side([lambda place=place: place for place in range(9)], 3) == list(range(9))


# What cannot be used


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--method", "specreason"), "method specreason needs --model on this machine"),
        (("--set", "answer.likelihood=1"), "likelihood needs --model on this machine"),
        (("--set", "answer.rounds=1"), "rounds needs --model on this machine"),
        (("--verifier", "asd"), "--verifier: is for a --model on this machine"),
        (("--dtype", "int8"), "--dtype: is for models on this machine"),
        (("--timeout", "0"), "above 0"),
    ],
)
def test_what_a_server_cannot_do_is_refused_before_it_is_asked(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    nowhere = ("--model", "http://127.0.0.1:9/v1", "--draft-model", "http://127.0.0.1:9/v1")
    code, out, error = command(capsys, *nowhere, *arguments)
    assert (code, out, len(error.splitlines())) == (2, "", 1)
    assert told in error


def test_options_of_servers_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    for option in (("--timeout", "3"), ("--tokenizer", "tiny")):
        code, _, error = command(capsys, "--method", "target", "--model", "smollm2-135m", *option)
        assert code == 2 and "behind HTTP" in error


def test_a_server_of_several_models_must_be_told_which() -> None:
    with scripted(writes("a"), names=("a", "b")) as server:
        with pytest.raises(InputError, match=r"serves a, b: name the model, as http://127.0.0.1:\d+/v1#NAME"):
            RemoteModel.open(server.url, patience=QUICK)
        model = RemoteModel.open(f"{server.url}#b", patience=QUICK)
        assert (model.served, model.name) == ("b", f"{server.url}#b")
        model.close()


def test_a_chat_endpoint_that_may_not_continue_is_refused_before_anything_is_drafted() -> None:
    with scripted(writes("a"), owner="someone") as server:
        with pytest.raises(InputError, match="name its tokenizer with --tokenizer"):
            ask(server, "parse")
        assert server.asked == []
        assert ask(server, "draft").text == "a"


# Every way to fail: one line with the URL, exit code 2, nothing printed beyond what was streamed


def dies(handler: Handler, body: dict[str, Any]) -> None:
    events(handler, said(handler, "Hello"), end=False)


def hangs(handler: Handler, body: dict[str, Any]) -> None:
    events(handler, said(handler, "Hello"), end=False)
    sleep(2)


FAULTS: list[tuple[Act, str, str]] = [
    (status(500, retry_after="0"), "status 500 (3 times), busy", ""),
    (status(503, b"<html>down</html>", retry_after="0"), "status 503 (3 times), <html>down</html>", ""),
    (status(400), "refuses the request with status 400, busy", ""),
    (status(401, {"error": {"message": "bad key sk-secret"}}), "status 401, bad key ***: give its key", ""),
    (lambda handler, body: sleep(2), "silent for 0.4 s", ""),
    (hangs, "silent for 0.4 s", "Hello\n"),
    (dies, "the connection broke off", "Hello\n"),
    (lambda handler, body: events(handler, said(handler, "Hello")), "the answer broke off before its end", "Hello\n"),
    (lambda handler, body: events(handler, said(handler, "Hello"), "{garb"), "is no JSON: '{garb'", "Hello\n"),
    (lambda handler, body: events(handler, "[1]"), "answered with a list", ""),
    (lambda handler, body: events(handler, '{"choices": [7]}'), "a form that is not understood", ""),
    (lambda handler, body: events(handler, '{"error": {"message": "boom"}}'), "reports an error: boom", ""),
    (lambda handler, body: reply(handler, {"choices": []}), "not with a stream of events", ""),
    (lambda handler, body: handler.connection.shutdown(socket.SHUT_RDWR), "the connection broke off", ""),
]


@pytest.mark.parametrize(("act", "told", "printed"), FAULTS)
def test_a_fault_is_one_line(capsys: pytest.CaptureFixture[str], act: Act, told: str, printed: str) -> None:
    with scripted(act) as server:
        arguments = ("--model", server.url, "--timeout", "0.4", "--retries", "2", "--api-key", "sk-secret")
        code, out, error = command(capsys, "--method", "target", *arguments)
        assert (code, out) == (2, printed)
        assert len(error.splitlines()) == 1
        assert error.startswith(f"betoken: {server.url}: ") and told in error
        assert "sk-secret" not in error
        assert server.keys[0] == "Bearer sk-secret"


def test_a_busy_server_is_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(status(429, retry_after="0"), status(500, retry_after="0"), writes("Hel", "lo")) as server:
        code, out, _ = command(capsys, "--method", "target", "--model", server.url)
        assert (code, out, len(server.asked)) == (0, "Hello\n", 3)


def test_a_dead_server_is_told_at_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the model on this machine is loaded."""
    monkeypatch.setattr("betoken.loading.load", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, out, error = command(capsys, "--model", "smollm2-135m", "--draft-model", f"http://u:pw@127.0.0.1:{port}")
    assert (code, out, len(error.splitlines())) == (2, "", 1)
    assert f"http://127.0.0.1:{port}/v1: cannot be reached" in error and "pw" not in error


def test_a_server_that_does_not_accept_connections_is_waited_for_only_so_long() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(ServerError, match=r"silent for|no connection within"):
            RemoteModel.open(url, patience=QUICK)


@pytest.mark.parametrize(
    ("models", "told"),
    [
        (lambda handler, body: reply(handler, b"<html>"), "is no JSON"),
        (lambda handler, body: reply(handler, {"hello": 1}), "is it an OpenAI-compatible server"),
        (status(404), "does not say what it serves"),
    ],
)
def test_something_else_than_such_a_server(models: Act, told: str) -> None:
    with scripted(writes("a"), models=models) as server, pytest.raises(InputError, match=told):
        RemoteModel.open(server.url, patience=QUICK)


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (status(500, retry_after="0"), "status 500"),
        (lambda handler, body: reply(handler, {"choices": [{"text": "Correct", "logprobs": None}]}), "no log-prob"),
        (lambda handler, body: reply(handler, b"{garb"), "no JSON"),
        (lambda handler, body: sleep(2), "silent"),
    ],
)
def test_a_judge_that_fails_after_a_good_draft(act: Act, told: str) -> None:
    with scripted(act) as target, scripted(writes(*DRAFT)) as draft, pytest.raises(ServerError, match=told):
        ask(target, "parse", draft)


@pytest.mark.parametrize("url", ["http://", "http://x?y=1", "http://[", "http://x:port"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InputError):
        RemoteModel.open(url)


def test_a_key_that_cannot_be_sent_is_not_shown() -> None:
    with pytest.raises(InputError) as told:
        RemoteModel.open("http://127.0.0.1:9", key="sk-se\ncret")
    assert "cret" not in str(told.value)
