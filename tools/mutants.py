"""Deliberate faults that some test must catch: `make mutants`, or `python tools/mutants.py [--only NAME ...]`.

Each mutant is one textual change of a copy of the package; the tests named with it run against the copy and must
fail. A mutant whose text is not found (the source has moved on) counts as a fault of this list. Exits 1 unless every
mutant is caught and the untouched copy passes.
"""

# ruff: noqa: T201 - a report on the terminal is what this script is for

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 180
"""A mutant that still runs after this long hangs, which its tests notice too."""

DRAFTED = "tests/test_conformance.py::test_drafters_conform"
VERIFIED = "tests/test_conformance.py::test_verifiers_conform"


class Mutant(NamedTuple):
    """One deliberate fault."""

    name: str
    file: str
    """Relative to the package."""
    before: str
    """Text that occurs exactly once in the file."""
    after: str
    tests: tuple[str, ...]
    """Tests of which at least one must fail."""


LOOP = [
    Mutant(
        "no cache compaction",
        "testing/toy.py",
        "[self.scratch[slot][node] for node in path]",
        "self.scratch[slot][: len(path)]",
        (f"{DRAFTED}[random tree]",),
    ),
    Mutant(
        "cache keeps the last node of another branch",
        "decode.py",
        "paths.append(verdict.rows[b].path[: len(kept[-1])])",
        "paths.append([max(verdict.rows[b].path[: len(kept[-1])])] * len(kept[-1]))",
        (f"{DRAFTED}[oracle]",),
    ),
    Mutant(
        "cache keeps nodes of tokens that were cut off",
        "decode.py",
        "path[: len(kept[-1])]",
        "path",
        ("tests/test_decode.py",),
    ),
    Mutant(
        "drafts ignore the room that is left",
        "decode.py",
        "max(1, min(n, row.room))",
        "max(1, n)",
        ("tests/test_decode.py",),
    ),
    Mutant(
        "neighbour's row read in the loop",
        "decode.py",
        "row.commit(verdict.tokens(tree, b), ",
        "row.commit(verdict.tokens(tree, 0), ",
        (f"{DRAFTED}[oracle]",),
    ),
    Mutant(
        "stop token inside a draft ignored",
        "state.py",
        "            if int(token) in self.end_ids:\n",
        "            if int(token) in self.end_ids and token == tokens[-1]:\n",
        (f"{DRAFTED}[oracle]",),
    ),
    Mutant(
        "token limit inside a draft ignored",
        "state.py",
        "elif self.generated >= self.stop.max_new_tokens:",
        "elif self.generated >= self.stop.max_new_tokens and token == tokens[-1]:",
        ("tests/test_decode.py",),
    ),
]

TREE = [
    Mutant(
        "wrong position: siblings are counted instead of depth",
        "tree.py",
        "above + 1, 0)",
        "node, 0)",
        ("tests/test_tree.py",),
    ),
    Mutant(
        "wrong position reaches the text",
        "tree.py",
        "self.visible_cache(lengths) + self.depths + shifts, 0)",
        "self.visible_cache(lengths) + np.minimum(self.depths, 1) + shifts, 0)",
        (f"{DRAFTED}[oracle]",),
    ),
    Mutant(
        "off by one in the visible cache",
        "tree.py",
        "np.where(anchors == WHOLE_CACHE, lengths[:, None],",
        "np.where(anchors == WHOLE_CACHE, np.maximum(lengths[:, None] - 1, 0),",
        ("tests/test_tree.py",),
    ),
    Mutant(
        "an anchored root sees the whole cache",
        "tree.py",
        "np.minimum(anchors, lengths[:, None]))",
        "lengths[:, None] + 0 * anchors)",
        ("tests/test_tree.py",),
    ),
    Mutant(
        "probe followed",
        "tree.py",
        "np.argwhere(self.roles == Role.CANDIDATE)",
        "np.argwhere(self.roles >= Role.CANDIDATE)",
        (f"{VERIFIED}[replay]",),
    ),
    Mutant(
        "an ancestor is not seen",
        "tree.py",
        "seen[:, node] = seen[rows, np.maximum(parent, 0)] & (parent >= 0)[:, None]",
        "seen[rows, node, np.maximum(parent, 0)] = parent >= 0",
        ("tests/test_tree.py",),
    ),
]

VERIFIERS = [
    Mutant(
        "noise keyed by the step",
        "sampling.py",
        "noise.uniform(settings.seed, row.sample, position)",
        "noise.uniform(settings.seed, row.sample, row.steps)",
        (f"{VERIFIED}[replay]",),
    ),
    Mutant(
        "bonus from the wrong node",
        "verifiers/replay.py",
        "scores.logits(b, path[-1])",
        "scores.logits(b, path[max(0, len(path) - 2)])",
        ("tests/test_replay.py",),
    ),
    Mutant(
        "neighbour's logits read",
        "verifiers/replay.py",
        "scores.logits(b, path[-1])",
        "scores.logits(0, path[-1])",
        (f"{VERIFIED}[replay]",),
    ),
    Mutant(
        "penalties without the drafted tokens",
        "verifiers/replay.py",
        "path[-1]), row, drafted)",
        "path[-1]), row, [])",
        (f"{DRAFTED}[oracle]",),
    ),
    Mutant(
        "all nodes are accepted by the same number",
        "verifiers/drawn.py",
        "u[node] < chance",
        "u[0] < chance",
        (f"{VERIFIED}[rejection]",),
    ),
]

SAMPLING = [
    Mutant(
        "top-p drops the token that reaches p",
        "sampling.py",
        "surplus = tied[last + 1 - int(",
        "surplus = tied[max(0, last) - int(",
        ("tests/test_sampling.py",),
    ),
    Mutant(
        "top-k after top-p",
        "sampling.py",
        "kept = _top_k(adjusted, settings.top_k)",
        "kept = _top_k(adjusted, settings.top_k if settings.top_p == 1.0 else 0)",
        ("tests/test_sampling.py",),
    ),
    Mutant(
        "a tie at the edge goes to the greater id",
        "sampling.py",
        "surplus = tied[tied.size - (kept.size - k) :]",
        "surplus = tied[: kept.size - k]",
        ("tests/test_sampling.py",),
    ),
    Mutant(
        "u on the edge of the CDF picks the token before it",
        "sampling.py",
        'side="right"',
        'side="left"',
        ("tests/test_sampling.py",),
    ),
]

DRAFTERS = [
    Mutant(
        "rejected drafts stay in the draft model's cache",
        "drafters/draft_model.py",
        "            cache.truncate(self.slot, self.agreed)\n",
        "",
        ("tests/test_draft_model.py",),
    ),
    Mutant(
        "an earlier request's text is kept",
        "drafters/suffix.py",
        "is not None and self.global_tree and row.new_tokens",
        "is not None and row.new_tokens",
        (f"{DRAFTED}[suffix]",),
    ),
    Mutant(
        "a drawn token may be drawn again",
        "drafters/guesses.py",
        "        left[token] = 0.0\n",
        "",
        ("tests/test_draft_model.py",),
    ),
]

NATIVE: list[Mutant] = []
"""Faults of the native kernels (attention's visible range and ancestor order, block edge, cache row moves)."""

MUTANTS = [*LOOP, *TREE, *VERIFIERS, *SAMPLING, *DRAFTERS, *NATIVE]


def apply(mutant: Mutant, package: Path) -> str | None:
    """Put the fault into the copy; why that is not possible, else None."""
    path = package / mutant.file
    text = path.read_text(encoding="utf-8")
    found = text.count(mutant.before)
    if found != 1:
        return f"its text occurs {found} times in {mutant.file}, not once"
    path.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")
    return None


def passes(source: Path, tests: tuple[str, ...]) -> bool:
    """Whether the tests pass against the package in `source`."""
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    if run.returncode not in (0, 1):  # neither passed nor failed: pytest could not run these tests at all
        print(run.stdout.decode()[-2000:], run.stderr.decode()[-2000:], sep="\n")
        raise SystemExit(f"pytest could not run {' '.join(tests)}")
    return run.returncode == 0


def try_mutant(mutant: Mutant) -> str:
    """ "caught", or what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        shutil.copytree(ROOT / "src" / "betoken", source / "betoken", ignore=shutil.ignore_patterns("__pycache__"))
        problem = apply(mutant, source / "betoken")
        if problem:
            return f"NOT APPLIED: {problem}"
        return "SURVIVED" if passes(source, mutant.tests) else "caught"


def main() -> int:
    """0 if every mutant is caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="try these mutants only")
    only = parser.parse_args().only
    unknown = set(only or ()) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not only or mutant.name in only]
    tests = tuple(sorted({test for mutant in chosen for test in mutant.tests}))
    if not passes(ROOT / "src", tests):
        print("the tests fail without any mutant: nothing can be said", " ".join(tests))
        return 1
    missed = 0
    for mutant in chosen:
        began = time.perf_counter()
        outcome = try_mutant(mutant)
        missed += outcome != "caught"
        print(f"{outcome:10} {time.perf_counter() - began:5.1f} s  {mutant.name}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutants caught")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
