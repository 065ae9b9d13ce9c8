"""Everything that may be asked of an answer, in one place for the Python face, the command line and servers."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from types import MappingProxyType
from typing import SupportsIndex, TypedDict

from betoken.errors import InputError
from betoken.state import Ledger, SamplingSettings, StopSettings


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """The settings of a request; what those without a comment mean is said at `SamplingSettings` and `StopSettings`.

    Raises InputError for values that no model could serve.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    stop: str | Sequence[str] = ()
    stop_ids: Sequence[int] = ()
    ignore_eos: bool = False
    min_new_tokens: int = 0
    logprobs: int | None = None
    """How many alternatives to report with each token's log-probability; None reports nothing."""
    budget: float | None = None
    """Most regret a relaxed verifier may spend: 0 for plain decoding's tokens, None for the verifier's own limit."""

    def __post_init__(self) -> None:
        _ = self.sampling, self.ending
        if self.min_new_tokens > self.max_new_tokens:
            raise InputError(
                f"min_new_tokens {self.min_new_tokens} is above max_new_tokens {self.max_new_tokens}: lower it"
            )
        if self.logprobs is not None and _whole("logprobs", self.logprobs) < 0:
            raise InputError(f"logprobs must be at least 0, not {self.logprobs}")
        if self.budget is not None:
            Ledger(_number("budget", self.budget))

    @cached_property
    def sampling(self) -> SamplingSettings:
        """How tokens are picked."""
        return SamplingSettings(
            temperature=_number("temperature", self.temperature),
            top_k=_whole("top_k", self.top_k),
            top_p=_number("top_p", self.top_p),
            min_p=_number("min_p", self.min_p),
            seed=_whole("seed", self.seed),
            repetition_penalty=_number("repetition_penalty", self.repetition_penalty),
            presence_penalty=_number("presence_penalty", self.presence_penalty),
            frequency_penalty=_number("frequency_penalty", self.frequency_penalty),
            logit_bias=MappingProxyType(
                {_whole("logit_bias", k): _number("logit_bias", bias) for k, bias in self.logit_bias.items()}
            ),
        )

    @cached_property
    def ending(self) -> StopSettings:
        """When the answer ends."""
        stop_ids = tuple(_whole("stop_ids", token) for token in self.stop_ids)
        if any(token < 0 for token in stop_ids):
            raise InputError(f"stop_ids: {min(stop_ids)} is no token id; ids begin at 0")
        return StopSettings(
            max_new_tokens=_whole("max_new_tokens", self.max_new_tokens),
            stop=_texts(self.stop),
            stop_ids=stop_ids,
            ignore_eos=self.ignore_eos,
            min_new_tokens=_whole("min_new_tokens", self.min_new_tokens),
        )


class SettingKeywords(TypedDict, total=False):
    """The same settings as keywords of a call. Names that are not here are a TypeError, as of any function."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    stop: str | Sequence[str]
    stop_ids: Sequence[int]
    ignore_eos: bool
    min_new_tokens: int
    logprobs: int | None
    budget: float | None


def _whole(name: str, value: object) -> int:
    if isinstance(value, SupportsIndex):
        return operator.index(value)
    raise InputError(f"{name}: {value!r} is not a whole number")


def _number(name: str, value: object) -> float:
    if isinstance(value, Real):
        return float(value)
    raise InputError(f"{name}: {value!r} is not a number")


def _texts(stop: str | Sequence[str]) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else tuple(stop)
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"stop: {text!r} is not a text; token ids go into stop_ids")
    return texts
