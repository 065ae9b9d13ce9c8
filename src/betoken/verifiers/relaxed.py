"""Relaxed rules that others use: a drafted token passes if the target finds it good enough. Not lossless.

How a draft is walked, what counts as an exception, and the rules for end tokens are in `forgiving`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from betoken.errors import InputError
from betoken.models.target import Scores
from betoken.sampling import Law
from betoken.state import State
from betoken.tree import TokenTree
from betoken.verifiers.forgiving import Opinion, forgive, within
from betoken.verifiers.verifier import Verdict, check_budgets


@dataclass(frozen=True)
class Typical:
    """Typical acceptance (Medusa, arXiv 2401.10774): p(x) > min(epsilon, delta exp(-entropy)).

    Greedy rows are strict.
    """

    epsilon: float = 0.09
    delta: float = 0.3
    name = "typical"
    lossless = False
    exact = False

    def __post_init__(self) -> None:
        within("typical: epsilon", self.epsilon, 0.0, 1.0)
        within("typical: delta", self.delta, 0.0, np.inf)

    def check(self, state: State) -> None:
        """Raises InputError for a request with a budget other than 0."""
        check_budgets(self.name, state)

    def verify(self, tree: TokenTree, scores: Scores, state: State) -> Verdict:
        """One verdict a row."""

        def passes(node: Opinion, token: int) -> bool:
            positive = node.law[node.law > 0]
            entropy = -float((positive * np.log(positive)).sum())
            return not node.settings.greedy and bool(node.law[token] > min(self.epsilon, self.delta * np.exp(-entropy)))

        return forgive(tree, scores, state, passes)


@dataclass(frozen=True)
class TopKDelta:
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

    @property
    def exact(self) -> bool:
        """The same."""
        return self.lossless

    def check(self, state: State) -> None:
        """Raises InputError for a request with a budget other than 0."""
        check_budgets(self.name, state)

    def verify(self, tree: TokenTree, scores: Scores, state: State) -> Verdict:
        """One verdict a row."""

        def passes(node: Opinion, token: int) -> bool:
            own = node.law[token]
            ahead = int((node.law > own).sum()) + int((node.law[:token] == own).sum())
            return self.k > 1 and ahead < self.k and bool(own >= node.law.max() - self.delta)

        return forgive(tree, scores, state, passes)


@dataclass(frozen=True)
class Mars:
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

    @property
    def exact(self) -> bool:
        """The same."""
        return self.lossless

    def check(self, state: State) -> None:
        """Raises InputError for a request with a budget other than 0."""
        check_budgets(self.name, state)

    def verify(self, tree: TokenTree, scores: Scores, state: State) -> Verdict:
        """One verdict a row."""

        def passes(node: Opinion, token: int) -> bool:
            first = int(np.argmax(node.adjusted))
            own = node.adjusted[token]
            ahead = int((node.adjusted > own).sum()) + int((node.adjusted[:token] == own).sum())
            return ahead == 1 and bool(own > 0) and float(own) / float(node.adjusted[first]) > self.theta

        return forgive(tree, scores, state, passes)


@dataclass(frozen=True)
class Fuzzy:
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

    @property
    def exact(self) -> bool:
        """The same."""
        return self.lossless

    def check(self, state: State) -> None:
        """Raises InputError for a request with a budget other than 0."""
        check_budgets(self.name, state)

    def verify(self, tree: TokenTree, scores: Scores, state: State) -> Verdict:
        """One verdict a row."""

        def passes(node: Opinion, token: int) -> bool:
            if self.threshold == 0.0 or node.drawn is None:
                return False
            return divergence(node.law, node.drawn, self.divergence) <= self.threshold

        return forgive(tree, scores, state, passes)


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
