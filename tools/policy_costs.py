"""What `--nodes auto` itself takes a step, without a model.

    python tools/policy_costs.py [--tokens 400] [--seeds 3] [--cold 8] [--profile SCENE]

Drives the policy with simulated requests, the same in every run, and prints the processor's microseconds a step that
it takes: medians, and in brackets means. Between two calls it walks through some memory (MiB, `--cold`), as a forward
pass does: in warm caches the same Python runs up to twice as fast.
"""

# ruff: noqa: T201 - a table on the terminal is what this script is for

from __future__ import annotations

import argparse
import cProfile
import pstats
from collections.abc import Callable
from statistics import fmean, median
from time import thread_time
from typing import Any

import numpy as np

from betoken.tuning.auto import AutoNodes
from betoken.tuning.cost import CostModel
from betoken.tuning.simulate import DraftCost, Machine, Text, bursty, iid, simulate

PARTS = ("limits", "trim", "observe")


def small(nodes: int) -> float:
    """t(n) of SmolLM2-135M in int8 on two cores, in ms."""
    return float(np.interp(nodes, [1, 4, 8, 16, 32, 64], [5.5, 5.9, 6.9, 12.0, 20.0, 38.0]))


def large(nodes: int) -> float:
    """t(n) of a target of 50 ms whose draft model takes 30 ms a token."""
    return float(np.interp(nodes, [1, 4, 8, 16, 32, 64], [50.0, 51.5, 53.5, 80.0, 150.0, 300.0]))


def silent(length: int, seed: int) -> Text:
    """A drafter without any offer."""
    return Text(np.zeros(length, np.bool_), np.ones(length), np.zeros(length, np.bool_))


SUFFIX = Machine(small, DraftCost(ask=0.1, always=0.02))
MODEL = Machine(large, DraftCost(node=30.0, resume=0.5, always=0.02))
SCENES: dict[str, tuple[Machine, Callable[[int, int], Text]]] = {
    "suffix, silent": (SUFFIX, silent),
    "suffix, wrong": (SUFFIX, lambda n, seed: iid(n, 0.0, seed=seed)),
    "suffix, 0.5": (SUFFIX, lambda n, seed: iid(n, 0.5, seed=seed)),
    "suffix, 0.9": (SUFFIX, lambda n, seed: iid(n, 0.9, seed=seed)),
    "suffix, bursts": (SUFFIX, lambda n, seed: bursty(n, seed=seed)),
    "draft model, wrong": (MODEL, lambda n, seed: iid(n, 0.0, seed=seed)),
    "draft model, 0.9": (MODEL, lambda n, seed: iid(n, 0.9, seed=seed)),
    "probes, 0.35": (
        Machine(large, DraftCost(step=0.2), probes=16, ramp=200),
        lambda n, seed: iid(n, 0.35, seed=seed),
    ),
}


class Timed:
    """A node policy whose calls are timed."""

    def __init__(self, inner: AutoNodes, cold: int) -> None:
        """`cold`: bytes that are walked through before each call."""
        self.inner = inner
        self.memory = np.zeros(cold // 8 + 1)
        self.seconds: dict[str, list[float]] = {part: [] for part in PARTS}

    def __getattr__(self, name: str) -> Any:
        """A method of the policy, with its time filed if it is a part of every step."""
        call = getattr(self.inner, name)
        return self._timed(name, call) if name in PARTS else call

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            self.memory += 1.0
            began = thread_time()
            result = call(*args)
            self.seconds[name].append(thread_time() - began)
            return result

        return timed


def run(scene: str, tokens: int, seeds: int, cold: int) -> tuple[dict[str, list[float]], float]:
    """Microseconds of each part in each step, and the speed over plain decoding."""
    machine, maker = SCENES[scene]
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    seconds = 0.0
    for seed in range(seeds):
        policy: Any = Timed(AutoNodes(CostModel(machine.timings())), cold)
        seconds += simulate(policy, machine, maker(tokens, seed), tokens, seed=seed).seconds
        for part, taken in policy.seconds.items():
            found[part] += [1e6 * one for one in taken]
    return found, seeds * tokens * machine.forward(1) / seconds


def main() -> None:
    """Parse the arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cold", type=int, default=8)
    parser.add_argument("--profile", choices=SCENES, help="print where the time of this scene goes instead")
    asked = parser.parse_args()
    if asked.profile:
        profiler = cProfile.Profile()
        profiler.runcall(run, asked.profile, asked.tokens, asked.seeds, 0)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        return
    print(f"{'microseconds a step':22}" + "".join(f"{part:>16}" for part in (*PARTS, "together")) + "     speed")
    for scene in SCENES:
        found, speed = run(scene, asked.tokens, asked.seeds, asked.cold << 20)
        found["together"] = [sum(parts) for parts in zip(*found.values(), strict=True)]
        shown = [f"{median(taken):6.1f} ({fmean(taken):.1f})" for taken in found.values()]
        print(f"{scene:22}" + "".join(f"{one:>16}" for one in shown) + f"{speed:10.3f}")


if __name__ == "__main__":
    main()
