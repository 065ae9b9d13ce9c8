"""What a request asks for, and how far it has come.

Settings are immutable. A `Row` is one sample of one request while it is decoded; the `State` of a step is the rows
that take part in it, in batch order. The last token of a row is its *pending* token: committed, but not in the KV
cache yet, so the cache of a row always holds `len(row.tokens) - 1` positions between two steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from betoken.errors import InputError

FinishReason = Literal["stop", "length", "context"]


@dataclass(frozen=True)
class SamplingSettings:
    """How a token is picked from the target's logits. The order in which they apply is `sampling.law`'s."""

    temperature: float = 0.0
    """0 is greedy."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the most probable tokens whose probabilities first reach p."""
    min_p: float = 0.0
    """Keep tokens at least min_p times as probable as the most probable one."""
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    """Token id -> what is added to its logit: -inf bans the token, a bias far above all logits (1000) forces it."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float | int) and not math.isfinite(value):
                raise InputError(f"{item.name} must be a finite number, not {value}")
        _within("temperature", self.temperature, 0.0, math.inf)
        _within("top_k", self.top_k, 0, math.inf)
        _within("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("repetition_penalty", self.repetition_penalty, 0.0, math.inf, open_low=True)
        for token, bias in self.logit_bias.items():
            if token < 0 or math.isnan(bias) or bias == math.inf:
                raise InputError(f"logit_bias: token {token} with bias {bias}; use a token id and a number, or -inf")

    @property
    def greedy(self) -> bool:
        """Whether tokens are the argmax, not drawn."""
        return self.temperature == 0.0

    @property
    def keeps_all(self) -> bool:
        """Whether every token keeps its probability: no top-k, top-p or min-p."""
        return self.top_k == 0 and self.top_p >= 1.0 and self.min_p <= 0.0

    @property
    def needs_history(self) -> bool:
        """Whether a token's law depends on which tokens stand before it (penalties)."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True)
class StopSettings:
    """When a request ends."""

    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    """Texts that end the answer; they are not part of it."""
    stop_ids: tuple[int, ...] = ()
    """Token ids that end the answer besides the model's own; like those they are part of `tokens`, not of `text`."""
    ignore_eos: bool = False
    min_new_tokens: int = 0
    """No end token is allowed before this many new tokens."""

    def __post_init__(self) -> None:
        _within("max_new_tokens", self.max_new_tokens, 1, math.inf)
        _within("min_new_tokens", self.min_new_tokens, 0, math.inf)
        if any(not text for text in self.stop):
            raise InputError("stop: an empty stop text would end every answer at once; leave it out")


@dataclass(frozen=True)
class Relaxation:
    """One committed token that plain decoding would not have committed there (relaxed verifiers only)."""

    position: int
    """Which new token of the row it is, from 0."""
    chosen: int
    preferred: int
    regret: float
    """How much the target preferred the other, in the verifier's own unit."""


@dataclass
class Ledger:
    """What relaxed verifiers have spent on a row. Only committed tokens are charged."""

    budget: float | None = None
    """Most regret that this request may spend: no more than the verifier's own limit, 0 for plain decoding's tokens;
    None leaves it to the verifier."""
    exceptions: list[Relaxation] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.budget is not None:
            _within("budget", self.budget, 0.0, math.inf)

    @property
    def spent(self) -> float:
        """Regret of all exceptions so far."""
        return sum(one.regret for one in self.exceptions)


@dataclass(eq=False)
class Row:
    """One sample of one request while it is decoded."""

    id: int
    """Unique within a decoder; drafters key their state by it."""
    slot: int
    """Where the row's keys and values live in the target's cache."""
    prompt: NDArray[np.int64]
    """[P] prompt token ids, P >= 1."""
    sampling: SamplingSettings
    stop: StopSettings
    end_ids: frozenset[int]
    """Token ids that end the row: the model's and `stop.stop_ids`, or those alone with `ignore_eos`."""
    context: int
    """Most positions the target can hold."""
    sample: int = 0
    """Which of several samples of one prompt this is; part of the noise's key."""
    tokens: list[int] = field(default_factory=list)
    """Prompt and committed tokens."""
    steps: int = 0
    """Target forwards of decoding this row took part in."""
    finish_reason: FinishReason | None = None
    counts: Counter[int] = field(default_factory=Counter)
    """How often each token stands among the committed new tokens (for presence and frequency penalties)."""
    ledger: Ledger = field(default_factory=Ledger)
    logprobs: int | None = None
    """How many alternatives to report with each token's log-probability; None reports nothing."""
    hint: tuple[int, ...] = ()
    """Tokens that the answer may repeat, for drafters that copy; no part of its text."""
    expects_draft: bool = True
    """Whether the node policy means to draft for this row: if not, a drafter need not read its prompt in prefill."""

    def __post_init__(self) -> None:
        if not self.tokens:
            self.tokens = [int(token) for token in self.prompt]

    @property
    def pending(self) -> int:
        """The last committed token, not yet in the KV cache."""
        return self.tokens[-1]

    @property
    def cached(self) -> int:
        """Positions in the KV cache once prefill is done."""
        return len(self.tokens) - 1

    @property
    def new_tokens(self) -> list[int]:
        """Committed tokens after the prompt."""
        return self.tokens[len(self.prompt) :]

    @property
    def generated(self) -> int:
        """How many tokens were committed after the prompt: the noise position of the next token."""
        return len(self.tokens) - len(self.prompt)

    @property
    def room(self) -> int:
        """Most tokens that can still be committed: by the token limit and by the context."""
        return min(self.stop.max_new_tokens - self.generated, self.context - len(self.tokens))

    def commit(self, tokens: Sequence[int], exceptions: Sequence[Relaxation] = ()) -> list[int]:
        """Append verified tokens up to the first that ends the row; returns those that were kept.

        Charges the exceptions among those to the ledger. Sets `finish_reason` when an end token, the token limit or
        the context limit is met on the way.
        """
        kept: list[int] = []
        for token in tokens:
            if self.finish_reason is not None:
                break
            self.tokens.append(int(token))
            self.counts[int(token)] += 1
            kept.append(int(token))
            if int(token) in self.end_ids:
                self.finish_reason = "stop"
            elif self.generated >= self.stop.max_new_tokens:
                self.finish_reason = "length"
            elif len(self.tokens) >= self.context:
                self.finish_reason = "context"
        self.ledger.exceptions += [one for one in exceptions if one.position < self.generated]
        return kept

    def end(self, generated: int) -> None:
        """Keep the first `generated` new tokens, at least one, and finish: a stop string was complete there."""
        dropped = self.new_tokens[generated:]
        del self.tokens[len(self.tokens) - len(dropped) :]
        self.counts -= Counter(dropped)
        self.ledger.exceptions = [one for one in self.ledger.exceptions if one.position < self.generated]
        self.finish_reason = "stop"


@dataclass(frozen=True)
class State:
    """The rows of one step, in the order of the tree's batch dimension."""

    rows: tuple[Row, ...]

    @property
    def pending(self) -> list[int]:
        """[B] pending token of each row."""
        return [row.pending for row in self.rows]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[B] cached positions of each row."""
        return np.array([row.cached for row in self.rows], dtype=np.int64)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two texts have in common before they part."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def _within(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    if value < low or value > high or (open_low and value == low) or math.isnan(value):
        left = f"above {low:g}" if open_low else f"at least {low:g}"
        right = "" if high == math.inf else f" and at most {high:g}"
        raise InputError(f"{name} must be {left}{right}, not {value}")
