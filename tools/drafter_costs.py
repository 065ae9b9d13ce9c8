"""What a drafter itself costs: replays it against a recorded answer, without the model.

    python tools/drafter_costs.py record answer.json.gz --model smollm2-135m --prompt TEXT --nodes 8 [--drafter ptd]
    python tools/drafter_costs.py time answer.json.gz [--repeats 3] [--warm] [--profile]

`record` decodes and writes, for each step, the limit, the tree, the target's argmax at every node, and what was kept.
`--nodes` may be a list, whose limits then take turns. `time` gives the drafter the same steps and prints microseconds
of CPU time a step of `propose` and `observe`, the best of the repeats, by quarters of the answer: a drafter whose steps
get dearer as the text grows shows there. Before each call memory is read until the processor's caches hold nothing of
the drafter's, as after a forward pass; not with `--warm`. It stops where the drafter drafts anything but what was
recorded.
"""

# ruff: noqa: T201 - a table on the terminal is what this script is for

from __future__ import annotations

import argparse
import cProfile
import gc
import gzip
import json
import pstats
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from betoken import load
from betoken.decode import Decoder, Request
from betoken.drafters import DRAFTERS
from betoken.drafters.drafter import Drafter
from betoken.models.target import Scores, Target
from betoken.registry import create
from betoken.state import Row, SamplingSettings, State, StopSettings
from betoken.tree import TokenTree
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Replay
from betoken.verifiers.verifier import RowVerdict, Verdict

_CROWD = 8_000_000
"""Numbers that fill the caches: 64 MB."""


@dataclass(frozen=True)
class Step:
    """One step of one row."""

    limit: int
    tokens: list[int]
    parents: list[int]
    roles: list[int]
    confidence: list[float]
    """Rounded to 6 digits."""
    best: list[int]
    """The target's argmax after each node."""
    path: list[int]
    bonus: int


@dataclass(frozen=True)
class Recording:
    """One answer."""

    drafter: str
    settings: dict[str, Any]
    prompt: list[int]
    seed: int
    temperature: float
    end_ids: list[int]
    steps: list[Step]

    def write(self, path: Path) -> None:
        """As compressed JSON, the same bytes each time."""
        text = json.dumps(asdict(self), separators=(",", ":"))
        path.write_bytes(gzip.compress(text.encode(), mtime=0))

    @classmethod
    def read(cls, path: Path) -> Recording:
        """What `write` wrote."""
        told = json.loads(gzip.decompress(path.read_bytes()))
        return cls(**{**told, "steps": [Step(**step) for step in told["steps"]]})


class TakingTurns(FixedNodes):
    """A node policy whose limits take turns."""

    def __init__(self, limits: list[int]) -> None:
        """The limits of the steps, over and over."""
        super().__init__(max(limits))
        self._turns = cycle(limits)
        self.limit = limits[0]
        """That of the current step."""

    def limits(self, state: State) -> list[int]:
        """The next limit, for each row."""
        self.limit = next(self._turns)
        return [self.limit] * len(state.rows)


class ToldScores(Scores):
    """Scores of which only the argmaxes are known."""

    def __init__(self, best: list[int]) -> None:
        """Of the nodes of one row."""
        super().__init__(np.zeros((0, 1), np.float32), np.full((1, len(best)), -1, np.int64))
        self.argmax = np.array([best], np.int64)  # takes the place of the cached property


def record(
    target: Target,
    request: Request,
    drafter_name: str,
    settings: Mapping[str, Any],
    limits: list[int],
    most: int,
) -> Recording:
    """Decode up to `most` steps of an answer."""
    drafter = create("drafter", DRAFTERS, drafter_name, settings)
    drafter.start(target)
    policy = TakingTurns(limits)
    decoder = Decoder(target, drafter, Replay(), policy)
    steps: list[Step] = []
    decoder.observer = lambda tree, scores, verdict, state: steps.append(
        _seen(policy.limit, tree, scores, verdict.rows[0])
    )
    row = decoder.admit(request)
    while len(steps) < most and row.finish_reason is None:
        decoder.step()
    return Recording(
        drafter=drafter_name,
        settings=dict(settings),
        prompt=list(request.prompt),
        seed=request.sampling.seed,
        temperature=request.sampling.temperature,
        end_ids=sorted(row.end_ids),
        steps=steps,
    )


def _seen(limit: int, tree: TokenTree, scores: Scores, verdict: RowVerdict) -> Step:
    return Step(
        limit=limit,
        **_drawn(tree),
        best=scores.argmax[0].tolist(),
        path=list(verdict.path),
        bonus=verdict.bonus,
    )


def _drawn(tree: TokenTree) -> dict[str, Any]:
    return {
        "tokens": tree.tokens[0].tolist(),
        "parents": tree.parents[0].tolist(),
        "roles": tree.roles[0].tolist(),
        "confidence": [round(one, 6) for one in tree.confidence[0].tolist()],
    }


def replay(recording: Recording, *, between: Callable[[], object] = bool) -> list[tuple[float, float]]:
    """Seconds of CPU time of `propose` and of `observe` of each step; `between` runs before each of them.

    Raises ValueError at the first step that is not drafted as it was.
    """
    drafter: Drafter = create("drafter", DRAFTERS, recording.drafter, recording.settings)
    row = Row(
        id=0,
        slot=0,
        prompt=np.array(recording.prompt, np.int64),
        sampling=SamplingSettings(recording.temperature, seed=recording.seed),
        stop=StopSettings(max_new_tokens=10_000, ignore_eos=True),
        end_ids=frozenset(recording.end_ids),
        context=1 << 20,
    )
    state, times = State((row,)), []
    drafter.admit([row])
    for index, step in enumerate(recording.steps):
        between()
        began = process_time()
        tree = drafter.propose(state, [step.limit]) if step.limit > 1 else TokenTree.bare(state.pending)
        proposed = process_time()
        for key, value in _drawn(tree).items():
            if value != getattr(step, key):
                raise ValueError(f"step {index}: {key} {value} where {getattr(step, key)} was recorded")
        verdict, scores = Verdict((RowVerdict(tuple(step.path), step.bonus),)), ToldScores(step.best)
        row.steps += 1
        row.commit(verdict.tokens(tree, 0))
        between()
        scored = process_time()
        drafter.observe(tree, scores, verdict, state)
        times.append((proposed - began, process_time() - scored))
    return times


def report(recording: Recording, repeats: int, *, warm: bool) -> None:
    """Print means over each quarter and over all steps, of the repeat that took least."""
    replay(recording)  # what is computed once
    crowd = np.zeros(0 if warm else _CROWD)
    runs = []
    for _ in range(repeats):
        gc.collect()
        runs.append(replay(recording, between=crowd.sum))
    best = np.array(min(runs, key=lambda run: sum(map(sum, run)))) * 1e6
    tokens = sum(len(step.path) for step in recording.steps)
    nodes = sum(len(step.tokens) for step in recording.steps)
    count = len(recording.steps)
    print(f"{recording.drafter}: {count} steps, {tokens / count:.2f} tokens and {nodes / count:.1f} nodes a step")
    print(f"{'steps':>12}{'propose':>10}{'observe':>10}{'both':>10}   microseconds of CPU time a step")
    quarters = [(count * part // 4, count * (part + 1) // 4) for part in range(4)]
    for first, last in [*quarters, (0, count)]:
        propose, observe = best[first:last].mean(axis=0)
        print(f"{f'{first}-{last}':>12}{propose:10.1f}{observe:10.1f}{propose + observe:10.1f}")


def main() -> None:
    """Parse the arguments; record or time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    making = modes.add_parser("record")
    making.add_argument("path", type=Path)
    making.add_argument("--model", default="smollm2-135m")
    making.add_argument("--prompt", required=True)
    making.add_argument("--drafter", default="ptd")
    making.add_argument("--settings", type=json.loads, default={}, help="the drafter's, as JSON")
    making.add_argument("--nodes", type=int, nargs="+", default=[8])
    making.add_argument("--steps", type=int, default=200)
    making.add_argument("--raw", action="store_true", help="without the chat template, and on beyond end tokens")
    making.add_argument("--temperature", type=float, default=0.0)
    timing = modes.add_parser("time")
    timing.add_argument("path", type=Path)
    timing.add_argument("--repeats", type=int, default=3)
    timing.add_argument("--warm", action="store_true")
    timing.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    if asked.mode == "record":
        engine = load(asked.model, drafter="none", nodes=1)
        request = Request(
            engine.encode(asked.prompt, raw=asked.raw),
            SamplingSettings(temperature=asked.temperature),
            StopSettings(max_new_tokens=10_000, ignore_eos=asked.raw),
        )
        record(engine.target, request, asked.drafter, asked.settings, asked.nodes, asked.steps).write(asked.path)
    elif asked.profile:
        recording, profile = Recording.read(asked.path), cProfile.Profile()
        profile.runcall(replay, recording)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    else:
        report(Recording.read(asked.path), asked.repeats, warm=asked.warm)


if __name__ == "__main__":
    main()
