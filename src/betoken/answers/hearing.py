"""One draft before the judge: confidences in prefixes of it, from the packed pass, over the target's own cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from betoken.answers.desk import Desk
from betoken.answers.judge import Judge, JudgePrompt, VerdictTokens
from betoken.answers.packed import PackedPass
from betoken.errors import InputError


@dataclass
class Hearing:
    """Use it in a `with` block: its slot of the cache is given back at the end, unless `hand_over` passed it on."""

    desk: Desk
    judge: Judge
    draft: Sequence[int]
    """Target's tokens, at least one."""
    chunk: int = 512
    """Most nodes of a forward pass."""
    asked: JudgePrompt = field(init=False)
    text: list[int] = field(init=False)
    """What the judge reads: its prompt and as much of the draft as the context holds."""
    _words: VerdictTokens = field(init=False)
    _pass: PackedPass = field(init=False)
    _logprobs: NDArray[np.float64] | None = field(default=None, init=False)
    """Cumulative, of the draft's tokens; None before they were scored."""
    _owns: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        """Raises InputError where the judge's prompt and suffix leave no room for a draft."""
        question, engine = self.desk.question, self.desk.target
        self.asked = self.judge.prompt(engine.tokenizer, question.prompt, raw=question.raw)
        self._words = VerdictTokens.of(engine.tokenizer, self.judge.correct, self.judge.incorrect)
        room = engine.target.context - len(self.asked.before) - len(self.asked.suffix)
        if room < 1:
            raise InputError(
                f"the question and the judge's suffix fill the context of {engine.target.context}: shorten"
            )
        self.text = [*self.asked.before, *self.draft[:room]]
        cache = engine.decoder.cache
        self._pass = PackedPass(engine.target, cache, cache.open(), self.asked.suffix, chunk=self.chunk)

    @property
    def judged(self) -> int:
        """How many tokens of the draft the judge can read."""
        return len(self.text) - len(self.asked.before)

    @property
    def complete(self) -> bool:
        """Whether that is all of it."""
        return self.judged == len(self.draft)

    def confidences(self, ends: Sequence[int]) -> list[float]:
        """The judge's confidence in the first `ends[i]` tokens of the draft, each in 1..judged, rising."""
        began = perf_counter()
        before = len(self.asked.before)
        behind = [before + end for end in ends]
        if self.judge.likelihood and self._logprobs is None:
            logits, logprobs = self._pass.score_with_text(self.text, behind, before)
            self._logprobs = logprobs.cumsum()
        else:
            logits = self._pass.score(self.text, behind)
        found = [
            self.judge.confidence(self._words.log_odds(one), self._mean(end))
            for one, end in zip(logits, ends, strict=True)
        ]
        self.desk.judge_s += perf_counter() - began
        self.desk.judge_forwards = self._pass.forwards
        self.desk.judge_nodes = self._pass.nodes - (before if self.judge.layout == "suffix" else 0)
        return found

    def hand_over(self, kept: int) -> int | None:
        """A slot with the keys and values of the target's prompt and the first `kept` tokens, now the caller's.

        None in layout prompt, where the judge has read another prompt.
        """
        if self.judge.layout != "suffix":
            return None
        self._pass.cache.truncate(self._pass.slot, len(self.asked.before) + kept)
        self._owns = False
        return self._pass.slot

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owns:
            self._pass.cache.close(self._pass.slot)

    def _mean(self, end: int) -> float:
        return 0.0 if self._logprobs is None else float(self._logprobs[end - 1]) / end
