"""One draft before the judge: confidences in prefixes of it, from the packed pass, over the target's own cache."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from betoken.answers.desk import Desk
from betoken.answers.judge import Judge, JudgePrompt, VerdictTokens
from betoken.answers.method import Event
from betoken.answers.packed import PackedPass
from betoken.errors import InputError


@dataclass
class Hearing:
    """Use it in a `with` block: a slot of its own is given back at the end, unless `hand_over` passed it on."""

    desk: Desk
    judge: Judge
    draft: Sequence[int]
    """Target's tokens, at least one."""
    chunk: int = 512
    """Most nodes of a forward pass."""
    answer: Sequence[int] = ()
    """Tokens that stand already, in front of the draft."""
    slot: int | None = None
    """Of the target's cache, with a prefix of the judge's text; None opens one."""
    asked: JudgePrompt = field(init=False)
    text: list[int] = field(init=False)
    """What the judge reads: its prompt, the answer so far and as much of the draft as the context holds."""
    evidence: list[tuple[float, float]] = field(default_factory=list, init=False)
    """Of each prefix that was judged last: log-odds of the verdicts, and mean log-probability of the draft's tokens
    (0 unless the judge weighs it)."""
    _words: VerdictTokens = field(init=False)
    _pass: PackedPass = field(init=False)
    _logprobs: NDArray[np.float64] | None = field(default=None, init=False)
    """Cumulative, of the draft's tokens; None before they were scored."""
    _owns: bool = field(init=False)

    def __post_init__(self) -> None:
        """Raises InputError where the judge's prompt and suffix leave no room for a draft."""
        question, engine = self.desk.question, self.desk.target
        self.asked = self.judge.prompt(engine.tokenizer, question.prompt, raw=question.raw)
        self._words = VerdictTokens.of(engine.tokenizer, self.judge.correct, self.judge.incorrect)
        room = engine.target.context - len(self.asked.before) - len(self.answer) - len(self.asked.suffix)
        if room < 1:
            raise InputError(
                f"the question and the judge's suffix fill the context of {engine.target.context}: shorten"
            )
        self.text = [*self.asked.before, *self.answer, *self.draft[:room]]
        cache, self._owns = engine.decoder.cache, self.slot is None
        slot = cache.open() if self.slot is None else self.slot
        if self.judge.likelihood:  # the first token of the draft is scored at the one before it
            cache.truncate(slot, min(cache.length(slot), self._before - 1))
        self._pass = PackedPass(engine.target, cache, slot, self.asked.suffix, chunk=self.chunk)

    @property
    def _before(self) -> int:
        return len(self.asked.before) + len(self.answer)

    @property
    def judged(self) -> int:
        """How many tokens of the draft the judge can read."""
        return len(self.text) - self._before

    @property
    def complete(self) -> bool:
        """Whether that is all of it."""
        return self.judged == len(self.draft)

    def confidences(self, ends: Sequence[int]) -> Generator[Event, None, list[float]]:
        """The judge's confidence in the first `ends[i]` tokens of the draft, each in 1..judged, rising.

        Waits for one event: whoever goes on first runs the passes of all questions that wait.
        """
        work, docket, desk = self._pass, self.desk.question.docket, self.desk
        own = max(0, self._before - work.cache.length(work.slot)) if self.judge.layout == "suffix" else 0
        seconds, forwards, nodes = work.seconds, work.forwards, work.nodes
        scores_text = bool(self.judge.likelihood) and self._logprobs is None
        work.ask(self.text, [self._before + end for end in ends], self._before if scores_text else None)
        docket.waiting.append(work)
        yield Event("judging", "")
        if work.open:
            docket.clear()
        if scores_text:
            self._logprobs = work.logprobs.cumsum()
        desk.judge_s += work.seconds - seconds
        desk.judge_forwards += work.forwards - forwards
        desk.judge_nodes += work.nodes - nodes - own
        odds = (self._words.log_odds(one) for one in work.logits)
        self.evidence = [(one, self._mean(end)) for one, end in zip(odds, ends, strict=True)]
        return [self.judge.confidence(*one) for one in self.evidence]

    def hand_over(self, kept: int) -> int | None:
        """A slot with the keys and values of the target's prompt and the first `kept` tokens, now the caller's.

        None in layout prompt, where the judge has read another prompt.
        """
        if self.judge.layout != "suffix":
            return None
        self._pass.cache.truncate(self._pass.slot, self._before + kept)
        self._owns = False
        return self._pass.slot

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.desk.question.docket.drop(self._pass)
        if self._owns:
            self._pass.cache.close(self._pass.slot)

    def _mean(self, end: int) -> float:
        return 0.0 if self._logprobs is None else float(self._logprobs[end - 1]) / end
