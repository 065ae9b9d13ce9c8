"""Decoding without a model: a node policy against a given t(n), drafter cost and acceptance process.

The policy is the real one and sees real trees, verdicts and (noisy) timings; only the clock and the text are made
up. Used to tune `--nodes auto` and to test that it never loses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from betoken.state import Row, SamplingSettings, State, StopSettings
from betoken.tree import Role, RowTree, TokenTree
from betoken.tuning.nodes import FixedNodes, NodePolicy, StepTimes
from betoken.tuning.timings import Timings
from betoken.verifiers.verifier import RowVerdict, Verdict

Curve = Callable[[int], float]
"""Seconds of a forward over so many nodes."""


@dataclass(frozen=True)
class Text:
    """What a drafter is up against: at each position, how it fares there and how sure it is."""

    right: NDArray[np.bool_]
    """[L] whether the drafted token of a position is right, if all before it are."""
    confidence: NDArray[np.float64]
    """[L] what the drafter claims."""
    offered: NDArray[np.bool_]
    """[L] whether the drafter has anything to offer there (a text matcher without a match has not)."""

    def __len__(self) -> int:
        return len(self.right)


@dataclass(frozen=True)
class DraftCost:
    """Seconds of a drafter."""

    step: float = 0.0
    """Of every step with a draft."""
    node: float = 0.0
    """Of every node it proposes (a draft model pays by depth)."""
    resume: float = 0.0
    """Of every committed token that it has to catch up on."""
    ask: float = 0.0
    """Of every step in which it may draft, whether or not it has anything to offer."""
    always: float = 0.0
    """Of every step, with a draft or without."""


@dataclass(frozen=True)
class Run:
    """One simulated request."""

    tokens: int
    forwards: int
    nodes: int
    seconds: float
    """Without the noise that the policy saw."""
    policy_steps: tuple[int, ...]
    """Nodes of each step."""

    @property
    def speed(self) -> float:
        """Committed tokens per second."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Machine:
    """What a step costs, and how badly that is measured."""

    forward: Curve
    draft: DraftCost = DraftCost()
    probes: int = 0
    """Nodes that ride along in every draft and are never committed."""
    ramp: int = 0
    """Probes scored until the drafter is as good as its text; before that it has something to offer only at a share
    of the steps, in proportion. Once it has, half of its nodes are candidates at least."""
    noise: float = 0.2
    """Timings are off by a factor of up to 1 +- noise."""
    outliers: float = 0.01
    """Share of steps that take ten times as long."""

    def timings(self, nodes: Sequence[int] = (1, 2, 4, 8, 16, 32)) -> Timings:
        """What a measurement of t(n) would find."""
        return Timings(tuple(nodes), tuple(self.forward(n) for n in nodes), 0)


def linear_curve(first: float = 1.0, flat: float = 0.03, bend: int = 8, steep: float = 0.1) -> Curve:
    """t(n) that rises by the share `flat` a node up to `bend` nodes, and by `steep` beyond."""
    return lambda n: first * (1.0 + flat * (min(n, bend) - 1) + steep * max(0, n - bend))


def simulate(
    policy: NodePolicy, machine: Machine, text: Text, tokens: int, *, seed: int = 0, row_id: int = 0, prompt: int = 1
) -> Run:
    """Decode one request of `tokens` tokens with a chain drafter; the row is released at the end.

    A prompt of `prompt` tokens that the policy does not have read in prefill has to be caught up with.
    """
    rng = np.random.default_rng(seed)
    row = Row(row_id, 0, np.zeros(prompt, np.int64), SamplingSettings(), StopSettings(tokens), frozenset(), 1 << 30)
    state = State((row,))
    missed, seconds, sizes = 0 if policy.expects(row) else row.cached, 0.0, []
    scored = 0
    while row.room > 0:
        limit = max(1, min(policy.limits(state)[0], row.room))
        ready = scored >= machine.ramp or rng.random() < scored / machine.ramp
        probes = machine.probes if machine.ramp == 0 or not ready else min(machine.probes, (limit - 1) // 2)
        proposed = _draft(text if ready else _NOTHING, row.generated, limit, probes)
        tree = policy.trim(TokenTree.stack([proposed]), state)
        path = _follow(tree, text, row.generated)
        drafting, forward = _seconds(machine, proposed, int(tree.counts[0]), missed)
        drafting += machine.draft.ask if limit > 1 else 0.0
        seconds += drafting + forward
        row.commit([0] * len(path))
        row.steps += 1
        missed = 0 if limit > 1 else missed + len(path)
        scored += proposed.roles.count(Role.PROBE)
        seen = StepTimes(drafting * _noise(rng, machine), forward * _noise(rng, machine), 0.0)
        policy.observe(tree, Verdict((RowVerdict(path, 0),)), state, seen)
        sizes.append(int(tree.counts[0]))
    policy.release([row])
    return Run(row.generated, row.steps, sum(sizes), seconds, tuple(sizes))


def plain(machine: Machine, tokens: int) -> Run:
    """The same request without any draft; the drafter is not even loaded."""
    return Run(tokens, tokens, tokens, tokens * machine.forward(1), (1,) * tokens)


def best_fixed(machine: Machine, text: Text, tokens: int, limits: Sequence[int]) -> tuple[int, Run]:
    """The fixed limit with the greatest speed, and its run."""
    runs = {limit: simulate(FixedNodes(limit), machine, text, tokens) for limit in limits}
    best = max(runs, key=lambda limit: runs[limit].speed)
    return best, runs[best]


def iid(length: int, acceptance: float, *, seed: int = 0, claim: float = 1.0) -> Text:
    """Each position is right with the same probability; the drafter always claims `claim`."""
    rng = np.random.default_rng(seed)
    return Text(rng.random(length) < acceptance, np.full(length, claim), np.ones(length, np.bool_))


def informed(length: int, *, seed: int = 0, sharpness: float = 1.0) -> Text:
    """A drafter that knows how sure it is: positions are right with the claimed probability."""
    rng = np.random.default_rng(seed)
    claims = rng.beta(sharpness, 0.5 * sharpness, length)
    return Text(rng.random(length) < claims, claims, np.ones(length, np.bool_))


def bursty(
    length: int,
    *,
    run: float = 20.0,
    gap: float = 20.0,
    inside: float = 0.97,
    outside: float = 0.1,
    silent: float = 0.5,
    seed: int = 0,
) -> Text:
    """Runs in which the drafter is nearly always right, as in code, and gaps in which it is not.

    `run`, `gap`: mean lengths in tokens. `silent`: share of the positions of a gap at which it offers nothing. It
    always claims to be certain.
    """
    rng = np.random.default_rng(seed)
    matching = np.zeros(length, np.bool_)
    at, inner = 0, False
    while at < length:
        span = 1 + int(rng.geometric(1.0 / (run if inner else gap)))
        matching[at : at + span] = inner
        at, inner = at + span, not inner
    right = rng.random(length) < np.where(matching, inside, outside)
    offered = matching | (rng.random(length) >= silent)
    return Text(right, np.ones(length), offered)


def switch(length: int, *, at: int, before: float, after: float, seed: int = 0) -> Text:
    """Acceptance changes for good at one position."""
    first, second = iid(length, before, seed=seed), iid(length, after, seed=seed + 1)
    right = np.where(np.arange(length) < at, first.right, second.right)
    return Text(right, first.confidence, first.offered)


_NOTHING = Text(np.zeros(0, np.bool_), np.zeros(0), np.zeros(0, np.bool_))


def _draft(text: Text, at: int, limit: int, probes: int) -> RowTree:
    tree = RowTree.under(0)
    for _ in range(min(probes, limit - 1)):
        tree.add(0, 0, Role.PROBE)
    if limit < 2 or at >= len(text) or not text.offered[at]:
        return tree
    node = 0
    for position in range(at, min(at + limit - len(tree), len(text))):
        # Token 1 is right, token 2 is wrong: enough for the verdict.
        token = 1 if text.right[position] else 2
        node = tree.add(token, node, confidence=float(text.confidence[position]))
    return tree


def _follow(tree: TokenTree, text: Text, at: int) -> tuple[int, ...]:
    path = [0]
    while (child := tree.child(0, path[-1], 1)) is not None:
        path.append(child)
    return tuple(path)


def _seconds(machine: Machine, proposed: RowTree, scored: int, missed: int) -> tuple[float, float]:
    cost = machine.draft
    drafting = cost.always
    if len(proposed) > 1:
        candidates = proposed.roles.count(Role.CANDIDATE)
        drafting += cost.step + cost.node * candidates + cost.resume * missed
    return drafting, machine.forward(scored)


def _noise(rng: np.random.Generator, machine: Machine) -> float:
    factor = 1.0 + machine.noise * float(rng.uniform(-1.0, 1.0))
    return factor * (10.0 if rng.random() < machine.outliers else 1.0)
