"""A judge: what the target is asked about a draft, and how its one-token verdict becomes a confidence.

The verdict is read where the target would write its next token after [before | draft | suffix]. Everything is made
of token ids once: the packed pass and separate requests then score the very same ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from betoken.errors import InputError
from betoken.models.chat_template import ChatTemplate, Message, Prompt, messages_of
from betoken.models.tokenizer import Tokenizer

Layout = Literal["suffix", "prompt", "auto"]
"""Where the judging instruction stands. `suffix`: behind the draft, which is an ordinary turn of the conversation, so
that its keys and values serve the continuation. `prompt`: before question and draft, so that the suffix is short.
`auto`: the cheaper one, where a method knows prices; else suffix."""

LAYOUTS: tuple[Literal["suffix", "prompt"], ...] = ("suffix", "prompt")
_MARK = "ANSWER-UNDER-REVIEW"
"""Stands for the draft while a chat template is rendered."""
_AFTER = "You are a strict grader. Is the answer free of mistakes? Reply with one word: {} or {}."
"""docs/results/parse.md compares wordings."""
_BEFORE = (
    "You check answers. Below are a question and the beginning of an answer, which may be unfinished: judge only what "
    "is there. Reply with one word: {} or {}."
)


@dataclass(frozen=True)
class JudgePrompt:
    """The token ids around a draft."""

    before: tuple[int, ...]
    suffix: tuple[int, ...]
    """Follows every prefix that is judged; at least one token."""


@dataclass(frozen=True)
class Judge:
    """How drafts are judged."""

    layout: Layout = "suffix"
    instruction: str = ""
    """What the judge is asked; "" is a general question about correctness."""
    correct: str = "Correct"
    incorrect: str = "Incorrect"
    temperature: float = 1.0
    """Divides the log-odds of the two verdicts."""
    likelihood: float = 0.0
    """Weight of the target's mean log-probability of the judged tokens, added to the log-odds; 0 leaves it out."""
    bias: float = 0.0
    """Added to the log-odds after the temperature."""

    def __post_init__(self) -> None:
        """Raises InputError for settings that give no verdict."""
        if not self.correct.strip() or not self.incorrect.strip():
            raise InputError("judge: the words for correct and incorrect must not be empty")
        if not 0.0 < self.temperature < np.inf:
            raise InputError(f"judge: temperature must be above 0, not {self.temperature:g}")
        for name in ("likelihood", "bias"):
            if not np.isfinite(getattr(self, name)):
                raise InputError(f"judge: {name} must be a finite number, not {getattr(self, name):g}")

    def prompt(self, tokenizer: Tokenizer, prompt: Prompt, *, raw: bool = False) -> JudgePrompt:
        """The ids around the draft of an answer to `prompt`.

        In layout `suffix`, `before` is what the target itself is prompted with. `raw`: without the chat template.
        Raises InputError for a model without a template unless `raw`, and for a template that hides the answer.
        """
        before, suffix = self.texts(prompt, tokenizer.template, raw=raw)
        ids = tokenizer.encode(before, add_special=raw), tokenizer.encode(suffix, add_special=False)
        if not ids[0] or not ids[1]:
            raise InputError("the judging prompt is empty: write a question, and an instruction if you set one")
        return JudgePrompt(tuple(ids[0]), tuple(ids[1]))

    def texts(self, prompt: Prompt, template: ChatTemplate, *, raw: bool = False) -> tuple[str, str]:
        """What stands before and behind the draft, as text; errors as of `prompt`."""
        if raw:
            return self._plain(prompt)
        before, suffix = _around_mark(template, self.turns(prompt, _MARK))
        if self.layout != "prompt":
            before = template.apply(messages_of(prompt))
        return before, suffix

    def turns(self, prompt: Prompt, draft: str) -> list[Message]:
        """The conversation whose next word is the verdict on `draft`."""
        if self.layout == "prompt":
            return _review(messages_of(prompt), draft, self.asks)
        answered: list[Message] = [{"role": "assistant", "content": draft}]
        return [*messages_of(prompt), *answered, {"role": "user", "content": self.asks}]

    @property
    def asks(self) -> str:
        """The judging instruction: its own, or the general one of its layout."""
        general = _BEFORE if self.layout == "prompt" else _AFTER
        return self.instruction or general.format(self.correct, self.incorrect)

    def _plain(self, prompt: Prompt) -> tuple[str, str]:
        if not isinstance(prompt, str):
            raise InputError("a raw prompt is a text, not chat messages")
        if self.layout != "prompt":
            return prompt, f"\n\n{self.asks}\nVerdict:"
        return f"{self.asks}\n\nQuestion:\n{prompt}\n\nAnswer:\n", "\n\nVerdict:"

    def confidence(self, log_odds: float, mean_logprob: float = 0.0) -> float:
        """Probability of Correct, between 0 and 1."""
        return certainty(log_odds, mean_logprob, self.temperature, self.likelihood, self.bias)


def certainty(log_odds: float, mean_logprob: float, temperature: float, likelihood: float, bias: float) -> float:
    """sigmoid(log-odds / temperature + likelihood * mean log-probability + bias)."""
    return float(0.5 * (1.0 + np.tanh(0.5 * (log_odds / temperature + likelihood * mean_logprob + bias))))


@dataclass(frozen=True)
class VerdictTokens:
    """Which tokens begin the one verdict, and which the other."""

    correct: tuple[int, ...]
    incorrect: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer, correct: str, incorrect: str) -> VerdictTokens:
        """First tokens of both words, with and without a space in front, as written, lower and upper case.

        Tokens that begin both words tell nothing and are left out. Raises InputError where no token is left.
        """
        good, bad = _first_tokens(tokenizer, correct), _first_tokens(tokenizer, incorrect)
        found = cls(tuple(sorted(good - bad)), tuple(sorted(bad - good)))
        if not found.correct or not found.incorrect:
            raise InputError(f"this tokenizer begins {correct!r} and {incorrect!r} alike: choose other judging words")
        return found

    def log_odds(self, logits: NDArray[np.float32]) -> float:
        """log P(one of `correct`) - log P(one of `incorrect`) under logits [V]."""
        return _log_sum(logits[list(self.correct)]) - _log_sum(logits[list(self.incorrect)])


def _log_sum(logits: NDArray[np.float32]) -> float:
    values = logits.astype(np.float64)
    top = values.max()
    return float(top + np.log(np.exp(values - top).sum()))


def _first_tokens(tokenizer: Tokenizer, word: str) -> set[int]:
    """The first token that is more than white space, after nothing, a space and a line break."""
    found = set()
    for spelled in {word, word.lower(), word.upper()}:
        for ahead in ("", " ", "\n"):
            ids = tokenizer.encode(ahead + spelled, add_special=False)
            found.update([token for token in ids if tokenizer.token_bytes(token).strip()][:1])
    return found


def _review(messages: Sequence[Message], draft: str, instruction: str) -> list[Message]:
    """One user turn that holds instruction, conversation and draft, under the conversation's own system turn."""
    system = [message for message in messages if message["role"] == "system"]
    turns = [message for message in messages if message["role"] != "system"]
    if len(turns) == 1:
        question = str(turns[0]["content"])
    else:
        question = "\n\n".join(f"{str(turn['role']).capitalize()}: {turn['content']}" for turn in turns)
    asked = f"{instruction}\n\nQuestion:\n{question}\n\nAnswer:\n{draft}"
    return [*system, {"role": "user", "content": asked}]


def _around_mark(template: ChatTemplate, messages: Sequence[Message]) -> tuple[str, str]:
    """What the chat template puts before the draft and behind it, up to where the verdict begins."""
    text = template.apply(messages, variables={"enable_thinking": False})
    before, mark, suffix = text.partition(_MARK)
    if not mark or _MARK in suffix:
        raise InputError("the model's chat template does not show the answer to judge: use layout prompt, or --raw")
    return before, suffix + _closed_thinking(suffix, template.source or "")


def _closed_thinking(suffix: str, template: str) -> str:
    """An empty think block, as far as a thinking model's template has not written it: a verdict comes at once."""
    if "</think>" not in template or "</think>" in suffix:
        return ""
    return "\n</think>\n\n" if "<think>" in suffix else "<think>\n\n</think>\n\n"
