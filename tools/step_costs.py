"""Where the time of a decoding step goes outside the compiled forward pass.

    python tools/step_costs.py [--model smollm2-135m] [--drafter suffix] [--tokens 96] [--repeats 2]

Decodes one answer to a prompt of random words, on which no drafter should pay: plainly and with the drafter under
`--nodes auto`, greedy and at temperature 1.5. Prints the median microseconds a step of each part. Wants an idle
machine.
"""

# ruff: noqa: T201 - a table on the terminal is what this script is for

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from betoken import load
from betoken.drafters import DRAFTERS
from betoken.drafters.plain import Plain
from betoken.engine import Engine
from betoken.tuning.auto import AutoNodes
from betoken.tuning.cost import CostModel
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers import VERIFIERS

WORDS = ("anchor", "violet", "gravel", "whisper", "turbine", "lemon", "orbit", "cactus", "ledger", "saddle", "onion")
PARTS = (
    "policy limits",
    "drafter propose",
    "policy trim",
    "target prepare",
    "target compiled",
    "verify",
    "drafter observe",
    "policy observe",
    "commit, loop",
    "text, stream",
)


class Watch:
    """Seconds by part, summed over the current step."""

    def __init__(self) -> None:
        """No steps yet."""
        self.now: dict[str, float] = defaultdict(float)
        self.steps: list[dict[str, float]] = []

    def around(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, with its time filed under `part`."""

        def timed(*args: Any) -> Any:
            began = perf_counter()
            result = call(*args)
            self.now[part] += perf_counter() - began
            return result

        return timed

    def next_step(self) -> None:
        """File what was summed as one step."""
        self.steps.append(dict(self.now))
        self.now.clear()


class Watched:
    """An object some of whose methods are timed; everything else is passed on."""

    def __init__(self, inner: Any, watch: Watch, parts: dict[str, str]) -> None:
        """`parts`: method -> part of a step."""
        self._inner = inner
        for method, part in parts.items():
            setattr(self, method, watch.around(part, getattr(inner, method)))

    def __getattr__(self, name: str) -> Any:
        """What is not timed."""
        return getattr(self._inner, name)


def watched_engine(engine: Engine, drafter: Any, policy: Any, watch: Watch) -> Any:
    """An engine on the same model whose parts report to `watch`."""
    target: Any = Watched(engine.target, watch, {"forward": "forward"})
    drafter = Watched(drafter, watch, {"propose": "drafter propose", "observe": "drafter observe"})
    verifier = Watched(VERIFIERS["replay"](), watch, {"verify": "verify"})
    names = ("limits", "trim", "observe")
    policy = Watched(policy, watch, {name: f"policy {name}" for name in names})
    new: Any = Engine(target, engine.tokenizer, drafter, verifier, policy)
    new.decoder = Watched(new.decoder, watch, {"step": "step"})
    return new


def decode(engine: Any, watch: Watch, prompt: str, tokens: int, temperature: float) -> int:
    """Decode one answer; the watch gets its steps. Returns the committed tokens."""
    stream = engine.stream(prompt, max_new_tokens=tokens, temperature=temperature, ignore_eos=True, seed=1)
    count, began = 0, perf_counter()
    for _ in stream:
        count += 1
        if "step" in watch.now:
            watch.now["chunk"] = perf_counter() - began
            watch.next_step()
        began = perf_counter()
    return count


def table_row(watch: Watch) -> dict[str, float]:
    """Median microseconds of each part over the steps that were no prefill."""
    values: dict[str, list[float]] = {part: [] for part in PARTS}
    for step in watch.steps:
        step["target compiled"] = step.get("compiled", 0.0)
        step["target prepare"] = step.get("forward", 0.0) - step["target compiled"]
        step["text, stream"] = step["chunk"] - step["step"]
        step["commit, loop"] = step["step"] - sum(step.get(part, 0.0) for part in PARTS[:8])
        for part in PARTS:
            values[part].append(step.get(part, 0.0))
    return {part: 1e6 * median(found) for part, found in values.items()}


def main() -> None:
    """Parse the arguments, decode, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="suffix")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    engine = load(asked.model, drafter=asked.drafter)
    auto: Any = engine.decoder.policy
    words = random.Random(asked.seed).choices(WORDS, k=120)
    columns, heads = [], []
    watch = Watch()
    target: Any = engine.target
    if hasattr(target, "crew"):
        target.crew = Watched(target.crew, watch, {"forward": "compiled"})
    for name, temperature in (("none", 0.0), (asked.drafter, 0.0), ("none", 1.5), (asked.drafter, 1.5)):
        committed, watch.steps = 0, []
        for _ in range(asked.repeats):
            drafter = Plain() if name == "none" else DRAFTERS[name]()
            drafter.start(target)
            policy = FixedNodes(1) if name == "none" else AutoNodes(CostModel(auto.cost.timings))
            watch.now.clear()
            own = watched_engine(engine, drafter, policy, watch)
            committed += decode(own, watch, " ".join(words), asked.tokens, temperature)
        columns.append(table_row(watch))
        heads.append(f"{name} T={temperature:g} ({committed / len(watch.steps):.2f})")
    print(f"microseconds a step, medians ({asked.model}, {asked.tokens} tokens; in brackets: tokens a step)")
    print(f"{'':18}" + "".join(f"{head:>24}" for head in heads))
    for part in PARTS:
        print(f"{part:18}" + "".join(f"{column[part]:24.1f}" for column in columns))
    beside = [sum(column[part] for part in PARTS if part != "target compiled") for column in columns]
    print(f"{'all but compiled':18}" + "".join(f"{one:24.1f}" for one in beside))


if __name__ == "__main__":
    main()
