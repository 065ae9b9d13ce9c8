"""Relaxed rules that others use: a drafted token passes if the target finds it good enough. Not lossless.

How a draft is walked, what counts as an exception, and the rules for end tokens are in `forgiving`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from betoken.errors import InputError
from betoken.models.target import Scores
from betoken.sampling import Law, Logits
from betoken.state import State
from betoken.tree import TokenTree
from betoken.verifiers.forgiving import Opinion, forgive, within
from betoken.verifiers.verifier import Verdict, check_budgets


class Relaxed(ABC):
    """A rule that judges one drafted token at a time, where it is not the target's pick."""

    name: str

    @property
    @abstractmethod
    def lossless(self) -> bool:
        """Whether nothing but the target's pick passes."""

    @property
    def exact(self) -> bool:
        """The same: the target's picks are plain decoding's tokens."""
        return self.lossless

    def check(self, state: State) -> None:
        """Raises InputError for a request with a budget other than 0."""
        check_budgets(self.name, state)

    def verify(self, tree: TokenTree, scores: Scores, state: State) -> Verdict:
        """One verdict a row."""
        return forgive(tree, scores, state, self.passes)

    @abstractmethod
    def passes(self, node: Opinion, token: int) -> bool:
        """Whether a drafted token that is not the target's pick passes."""


@dataclass(frozen=True)
class Typical(Relaxed):
    """Typical acceptance (Medusa, arXiv 2401.10774): p(x) > min(epsilon, delta exp(-entropy)).

    Greedy rows are strict.
    """

    epsilon: float = 0.09
    delta: float = 0.3
    name = "typical"
    lossless = False

    def __post_init__(self) -> None:
        within("typical: epsilon", self.epsilon, 0.0, 1.0)
        within("typical: delta", self.delta, 0.0, np.inf)

    def passes(self, node: Opinion, token: int) -> bool:
        """See the class."""
        positive = node.law[node.law > 0]
        entropy = -float((positive * np.log(positive)).sum())
        return not node.settings.greedy and bool(node.law[token] > min(self.epsilon, self.delta * np.exp(-entropy)))


@dataclass(frozen=True)
class TopKDelta(Relaxed):
    """Relaxed acceptance of TensorRT-LLM: x is among the k most probable and p(x) >= max p - delta. k = 1 is strict."""

    k: int = 10
    delta: float = 0.6
    name = "topk-delta"

    def __post_init__(self) -> None:
        within("topk-delta: k", self.k, 1, np.inf)
        within("topk-delta: delta", self.delta, 0.0, 1.0)

    @property
    def lossless(self) -> bool:
        """Whether nothing but the target's pick passes."""
        return self.k == 1

    def passes(self, node: Opinion, token: int) -> bool:
        """See the class."""
        close = bool(node.law[token] >= node.law.max() - self.delta)
        return self.k > 1 and close and _ahead(node.law, token) < self.k


@dataclass(frozen=True)
class Mars(Relaxed):
    """The target's second choice passes if its logit is above theta times the first's, both positive.

    The ratio depends on the scale of the logits. theta = 1 is strict.
    """

    theta: float = 0.9
    name = "mars"

    def __post_init__(self) -> None:
        within("mars: theta", self.theta, 0.0, 1.0)

    @property
    def lossless(self) -> bool:
        """Whether nothing but the target's pick passes."""
        return self.theta == 1.0

    def passes(self, node: Opinion, token: int) -> bool:
        """See the class."""
        first, own = float(node.adjusted[node.favourite]), float(node.adjusted[token])
        return _ahead(node.adjusted, token) == 1 and own > 0 and own / first > self.theta


@dataclass(frozen=True)
class Fuzzy(Relaxed):
    """Fuzzy speculative decoding (arXiv 2502.20704): a drawn token passes where p and q are at most `threshold` apart.

    Deterministic drafts have no law to compare, so only the target's pick passes. threshold = 0 is strict.
    """

    threshold: float = 0.2
    divergence: Literal["js", "kl", "tv"] = "js"
    """Jensen-Shannon or Kullback-Leibler(p, q), both in nats, or total variation."""
    name = "fuzzy"

    def __post_init__(self) -> None:
        within("fuzzy: threshold", self.threshold, 0.0, np.inf)
        if self.divergence not in ("js", "kl", "tv"):
            raise InputError(f"fuzzy: divergence must be js, kl or tv, not {self.divergence!r}")

    @property
    def lossless(self) -> bool:
        """Whether nothing but the target's pick passes."""
        return self.threshold == 0.0

    def passes(self, node: Opinion, token: int) -> bool:
        """See the class."""
        if self.threshold == 0.0 or node.drawn is None:
            return False
        return divergence(node.law, node.drawn, self.divergence) <= self.threshold


def _ahead(values: Law | Logits, token: int) -> int:
    """How many tokens come before one by their values [V], equal ones in order."""
    own = values[token]
    return int((values > own).sum()) + int((values[:token] == own).sum())


def divergence(p: Law, q: Law, kind: str) -> float:
    """How far two laws [V] are apart: "js" or "kl" in nats, or "tv" in [0, 1]."""
    if kind == "tv":
        return 0.5 * float(np.abs(p - q).sum())
    if kind == "kl":
        some = p > 0
        with np.errstate(divide="ignore"):
            return float((p[some] * (np.log(p[some]) - np.log(q[some]))).sum())
    middle = (p + q) / 2
    return (divergence(p, middle, "kl") + divergence(q, middle, "kl")) / 2
