"""Whole-answer methods with a target behind HTTP: text passes between the models, and requests stand for passes.

A prefix is judged by a request of one token whose alternatives are read; prefixes are judged side by side. Nothing of
the server's cache is ours, but what is judged and what is continued begins like what came before, so that a server
with a prefix cache reads it once.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import NamedTuple

from betoken.answers.account import Account
from betoken.answers.alone import DraftAlone, TargetAlone
from betoken.answers.boundaries import boundaries
from betoken.answers.drafting import Draft, drafted
from betoken.answers.judge import Judge, VerdictTokens
from betoken.answers.method import AnswerResult, Event, Method, Writing, check_settings
from betoken.answers.parse import Cascade, Parse
from betoken.answers.plan import UNKNOWN_MOST, UNKNOWN_PASSES, Plan
from betoken.engine import Engine
from betoken.errors import InputError
from betoken.models.chat_template import ChatTemplate, Prompt
from betoken.remote import RemoteModel
from betoken.remote.model import Asked
from betoken.remote.parallel import side_by_side
from betoken.remote.replies import Usage
from betoken.settings import GenerationSettings
from betoken.state import FinishReason
from betoken.text import StopFilter


@dataclass(frozen=True)
class RemoteQuestion:
    """What is asked, and who answers: a target behind HTTP, a draft model anywhere."""

    prompt: Prompt
    target: RemoteModel
    draft: Engine | RemoteModel | None
    settings: GenerationSettings
    raw: bool = False


def check(method: Method) -> None:
    """Raises InputError for a method or setting that needs the target on this machine."""
    if not isinstance(method, TargetAlone | DraftAlone | Cascade):
        raise InputError(f"method {method.name} needs --model on this machine: over HTTP use parse, cascade or target")
    if not isinstance(method, Cascade):
        return
    needs = {
        "likelihood": method.likelihood != 0.0,
        "config": method.config is not None,
        "rounds": isinstance(method, Parse) and method.rounds > 0,
    }
    for name, is_set in needs.items():
        if is_set:
            raise InputError(f"{method.name}: {name} needs --model on this machine: leave it out over HTTP")


def write(method: Method, question: RemoteQuestion) -> Writing:
    """Answer the question. Raises InputError for what cannot be asked, ServerError for what a server does."""
    desk = RemoteDesk(question, method)
    if isinstance(method, TargetAlone):
        return (yield from desk.write([]))
    draft = yield from desk.draft()
    if isinstance(method, Cascade) and not draft.pieces:
        return (yield from desk.write([]))
    kept = len(draft.pieces)
    if isinstance(method, Cascade):
        yield Event("judging", "")
        kept = _kept(method, desk, draft)
    desk.kept = kept
    text = "".join(draft.pieces[:kept])
    yield Event("kept", text)
    if kept == len(draft.pieces):
        return desk.result(text, draft.finish)
    return (yield from desk.write(draft.pieces[:kept]))


def _kept(method: Cascade, desk: RemoteDesk, draft: Draft) -> int:
    """How many pieces of the draft are kept."""
    whole = len(draft.pieces)
    ends: list[int] = []
    passes = "two"
    if isinstance(method, Parse):
        most = UNKNOWN_MOST if method.most == "auto" else method.most
        bits = [piece.encode() for piece in draft.pieces]
        ends = boundaries(bits, method.boundaries, every=method.every, most=most)
        passes = UNKNOWN_PASSES if method.passes == "auto" else method.passes
    desk.plan = Plan(
        "prompt" if method.layout == "prompt" else "suffix", "one" if passes == "one" else "two", tuple(ends)
    )
    if passes == "one":
        *found, desk.confidence = desk.confidences(method, draft.pieces, [*ends, whole])
    else:
        [desk.confidence] = desk.confidences(method, draft.pieces, [whole])
        if desk.confidence > method.threshold:
            return whole
        found = desk.confidences(method, draft.pieces, ends)
    desk.prefix_confidences = tuple(zip(ends, found, strict=True))
    if desk.confidence > method.threshold:
        return whole
    return method.longest(ends, found) if isinstance(method, Parse) else 0


class Verdicts(NamedTuple):
    """Texts of tokens, without the white space around them."""

    correct: set[str]
    incorrect: set[str]


@dataclass
class RemoteDesk(Account):
    """Writes parts of one answer and counts what they cost."""

    question: RemoteQuestion
    method: Method
    prompt_tokens: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Raises InputError for what this target cannot be asked."""
        question = self.question
        check(self.method)
        check_settings(question.settings)
        if question.draft is not None and question.settings.logit_bias:
            raise InputError("logit_bias has token ids, and the two models may have different tokens: leave it out")
        if isinstance(self.method, Parse) and not (question.raw or question.target.continues):
            raise InputError(
                f"{question.target.endpoint.url}: its chat endpoint may not go on from the middle of an answer: "
                "name its tokenizer with --tokenizer, or use method cascade"
            )
        question.target.ask(question.prompt, raw=question.raw)

    def draft(self) -> Generator[Event, None, Draft]:
        """The draft model's complete answer."""
        question = self.question
        if question.draft is None:
            raise InputError(f"method {self.method.name} needs a draft model: --draft-model")
        began = perf_counter()
        draft = yield from drafted(question.draft, question.prompt, question.settings, raw=question.raw)
        self.draft_tokens, self.drafted = draft.written, len(draft.pieces)
        self.draft_s += perf_counter() - began
        return draft

    def confidences(self, judge: Judge, draft: Sequence[str], ends: Sequence[int]) -> list[float]:
        """The judge's confidence in the first `ends[i]` pieces of the draft."""
        if not ends:
            return []
        began = perf_counter()
        target = self.question.target
        asked = [self._asked(judge, "".join(draft[:end])) for end in ends]
        found = side_by_side([partial(target.judge, one) for one in asked], target.concurrent)
        self.judge_forwards += len(found)
        self.judge_nodes += sum(_read(counts) for _, counts in found)
        self.judge_s += perf_counter() - began
        known = verdicts(target, judge)
        return [judge.confidence(log_odds(one, judge, known)) for one, _ in found]

    def _asked(self, judge: Judge, text: str) -> Asked:
        question = self.question
        target = question.target
        if target.template is None and not question.raw:
            return judge.turns(question.prompt, text)
        before, suffix = judge.texts(question.prompt, target.template or ChatTemplate(None), raw=question.raw)
        return (before if question.raw else before.removeprefix(target.begins)) + text + suffix

    def write(self, kept: Sequence[str]) -> Generator[Event, None, AnswerResult]:
        """The target goes on after what is kept of the draft, to its end."""
        question = self.question
        settings = question.settings
        text = StopFilter(settings.ending.stop)
        answer = text.push("".join(kept))
        shown = sum(map(len, kept))  # a stop text may begin in what the reader has seen already
        most = settings.max_new_tokens - len(kept)
        if most <= 0:
            return self.result(answer + text.finish(), "length")
        began = perf_counter()
        asked = question.target.ask(question.prompt, raw=question.raw, answer="".join(kept))
        reply = question.target.write(asked, settings, most)
        try:
            for piece in reply:
                answer += text.push(piece)
                if len(answer) > shown:
                    yield Event("text", answer[shown:])
                    shown = len(answer)
                if text.stopped:
                    break
        finally:
            reply.close()
        answer += text.finish()
        if len(answer) > shown:
            yield Event("text", answer[shown:])
        self.target_s += perf_counter() - began
        self.target_tokens += reply.written
        self.target_forwards += 1
        self.prompt_tokens = reply.usage.prompt or 0
        return self.result(answer, "stop" if text.stopped else reply.finish)

    def result(self, text: str, finish: FinishReason | None) -> AnswerResult:
        """The answer, and the account closed."""
        question = self.question
        stats = self.stats(self.method.name, question.target, question.draft, self.kept + self.target_tokens)
        return AnswerResult(text, [], self.prompt_tokens, finish, stats)


def verdicts(target: RemoteModel, judge: Judge) -> Verdicts | None:
    """Texts of the tokens that begin either verdict, by a tokenizer here or the server's word; None: nobody knows."""
    if target.tokenizer is not None:
        tokens = VerdictTokens.of(target.tokenizer, judge.correct, judge.incorrect)
        texts = [
            {target.tokenizer.token_bytes(one).decode("utf-8", "replace").strip() for one in side}
            for side in (tokens.correct, tokens.incorrect)
        ]
        return Verdicts(*texts)
    if not target.tokenizes:
        return None
    good, bad = target.first_tokens(judge.correct), target.first_tokens(judge.incorrect)
    return Verdicts(good - bad, bad - good)


def log_odds(found: Mapping[str, float], judge: Judge, known: Verdicts | None) -> float:
    """log P(Correct) - log P(Incorrect) from the alternatives that a server gives, minus infinity without a verdict.

    A verdict that is not among them has at most the probability of the least one and of what all leave over; that
    much is taken. Where nobody knows the tokens, all beginnings of a word count, single letters aside.
    """
    words = {token: token.strip() for token in found}
    if known is None:
        good, bad = _beginnings(words.values(), judge.correct), _beginnings(words.values(), judge.incorrect)
        known = Verdicts(good - bad, bad - good)
    masses = [_mass(found[token] for token, word in words.items() if word in side) for side in known]
    if masses == [-math.inf, -math.inf]:
        return -math.inf
    left = 1.0 - math.fsum(map(math.exp, found.values()))
    bound = min(*found.values(), math.log(max(left, 1e-12)))
    yes, no = (bound if mass == -math.inf else mass for mass in masses)
    return yes - no


def _beginnings(words: Iterable[str], word: str) -> set[str]:
    whole = word.strip().casefold()
    return {one for one in words if len(one) >= min(2, len(whole)) and whole.startswith(one.casefold())}


def _mass(logprobs: Iterable[float]) -> float:
    total = math.fsum(map(math.exp, logprobs))
    return math.log(total) if total > 0.0 else -math.inf


def _read(counts: Usage) -> int:
    """Tokens that a server read for a request, its cache left out, as far as it tells."""
    return max(0, (counts.prompt or 0) - (counts.cached or 0))
