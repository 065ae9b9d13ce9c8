"""What a drafter that grows its own drafts is worth, apart from the hardware: the figures of the PTD paper.

    python tools/tree_metrics.py run trees.jsonl --model smollm2-135m --data DATA
        --suites mt-bench gsm8k humaneval mbpp --rows 10 --nodes 16 32 60 185 --methods ptd ptd:preset=paper lookahead
    python tools/tree_metrics.py report trees.jsonl

`run` writes one line a question, method and node limit, and goes on where it was stopped. Questions come in layers, one
of each category first, so that a run that was stopped early is a smaller balanced sample. Decoding is greedy. 185 nodes
are the paper's size: the pending token, 124 probes, 60 candidates.

- DE, decoding efficiency: committed tokens per target forward (our acceptance length; prefill apart).
- AL: 1 + accepted drafts, averaged over the steps with a pool hit, that is with at least one candidate.
- hits: share of the steps with a pool hit.
- nodes: nodes of a tree on average, the pending token included; `probes` of them grow the next drafts.
- overhead: share of the decoding time outside the target's forward pass. The one figure that is a time: a busy machine
  blurs it. How fast a method is, `betoken bench` measures.
- Redundancy of what grows (PTD, Lookahead, Self-Draft), from the tries of each step. A branch is the tokens from a
  trie's root to one of its leaves, 2 tokens or more; it is compared with the branches of the *other* tries of its
  step, for branches of one trie share their beginnings as nodes, which costs nothing.
  - similar: the longest run of a branch's tokens that stands in such a branch too, as a share of its length; mean over
    branches and steps.
  - repeated: share of the branches that stand whole in such a branch; of branches that are equal, all count.
  - pairs: share of the pairs (parent, child) of a step that an earlier node of the step has already, a node's pair
    counted once, siblings and their descendants included.
- others: DE of the first method of the file over this one's, geometric mean over questions, with its 95% interval.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from betoken.bench.metrics import bootstrap
from betoken.bench.provenance import write_provenance
from betoken.bench.results import Record, ResultFile, read_results
from betoken.bench.suites import Question, find_suite, read_suite, stratified
from betoken.decode import Decoder, Request
from betoken.drafters import DRAFTERS
from betoken.drafters.drafter import Drafter
from betoken.drafters.growth import Growing
from betoken.drafters.pool import Trie
from betoken.errors import InputError
from betoken.models.load import Loaded, load_target
from betoken.models.target import Scores, Target
from betoken.registry import create
from betoken.state import State, StopSettings
from betoken.tree import Role, TokenTree
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Replay
from betoken.verifiers.verifier import Verdict

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Categories of spec_bench that are MT-Bench."""


@dataclass
class TreeMetrics:
    """Sums over the steps of requests, each request alone in its batch."""

    tokens: int = 0
    forwards: int = 0
    nodes: int = 0
    probes: int = 0
    hits: int = 0
    """Steps with a candidate."""
    accepted: int = 0
    """Accepted drafts in those."""
    branches: int = 0
    """Branches that could be compared with another trie's, over all steps."""
    repeated: int = 0
    similar: float = 0.0
    """Sum of their similarities."""
    pairs: int = 0
    repeated_pairs: int = 0
    draft_s: float = 0.0
    target_s: float = 0.0
    verify_s: float = 0.0

    def __add__(self, other: TreeMetrics) -> TreeMetrics:
        """Both together."""
        return TreeMetrics(**{key: value + getattr(other, key) for key, value in asdict(self).items()})

    @property
    def de(self) -> float:
        """Committed tokens per forward pass."""
        return self.tokens / max(1, self.forwards)

    @property
    def al(self) -> float:
        """1 + accepted drafts per step with a pool hit."""
        return 1.0 + self.accepted / max(1, self.hits)

    @property
    def overhead(self) -> float:
        """Share of the time outside the target's forward pass."""
        return 1.0 - self.target_s / max(1e-9, self.draft_s + self.target_s + self.verify_s)

    def observe(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        """A decoder's observer, for batches of one row."""
        self.forwards += 1
        self.nodes += int(tree.counts[0])
        self.probes += tree.probes(0)
        if (tree.roles[0] == Role.CANDIDATE).any():
            self.hits += 1
            self.accepted += len(verdict.rows[0].path) - 1

    def observe_branches(self, tries: Sequence[Trie]) -> None:
        """What a drafter grows at a step, one trie for each seed, branch or column."""
        shares = similarities(tries)
        self.branches += len(shares)
        self.repeated += sum(share == 1.0 for share in shares)
        self.similar += sum(shares)
        pairs, repeated = repeated_pairs(tries)
        self.pairs += pairs
        self.repeated_pairs += repeated


def branches(trie: Trie, above: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """The tokens from the root to each leaf."""
    for token, below in trie.items():
        path = (*above, token)
        if below:
            yield from branches(below, path)
        else:
            yield path


def similarities(tries: Sequence[Trie]) -> list[float]:
    """For each branch of 2 tokens or more: its longest run found in another trie's branches, as a share of it.

    Empty with fewer than two tries.
    """
    if len(tries) < 2:
        return []
    paths = [list(branches(trie)) for trie in tries]
    out = []
    for own, mine in enumerate(paths):
        others = [path for other, theirs in enumerate(paths) if other != own for path in theirs]
        out += [max((_run(path, other) for other in others), default=0) / len(path) for path in mine if len(path) > 1]
    return out


def _run(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest run of tokens that both have."""
    best, row = 0, [0] * (len(right) + 1)
    for token in left:
        row = [0] + [row[at] + 1 if token == other else 0 for at, other in enumerate(right)]
        best = max(best, *row)
    return best


def repeated_pairs(tries: Sequence[Trie]) -> tuple[int, int]:
    """The pairs (parent, child) in the tries: how many, and how many an earlier node has."""
    pairs: list[tuple[int, int]] = []

    def walk(token: int, below: Trie) -> None:
        for child, further in below.items():
            pairs.append((token, child))
            walk(child, further)

    for trie in tries:
        for token, below in trie.items():
            walk(token, below)
    return len(pairs), len(pairs) - len(set(pairs))


def measure(target: Target, drafter: Drafter, request: Request, nodes: int) -> tuple[TreeMetrics, list[int]]:
    """Decode one request with a drafter that was started: the figures and the new tokens."""
    out = TreeMetrics()
    decoder = Decoder(target, drafter, Replay(), FixedNodes(nodes))
    decoder.observer = out.observe
    row = decoder.admit(request)
    while row.finish_reason is None:
        if isinstance(drafter, Growing):
            out.observe_branches(drafter.growing(row))
        for advance in decoder.step():
            out.tokens += len(advance.tokens)
            out.draft_s += advance.times.draft
            out.target_s += advance.times.target
            out.verify_s += advance.times.verify
    new = row.new_tokens
    decoder.release(row)
    return out, new


def questions(suites: Sequence[str], data: Path | None, rows: int, seed: int) -> list[Question]:
    """Seeded rows of each category, one of each category after another. `mt-bench` is a part of spec_bench.

    Raises InputError for a suite that is not there.
    """
    drawn: list[Question] = []
    for name in suites:
        found = read_suite(find_suite("spec_bench" if name == "mt-bench" else name, data))
        if name == "mt-bench":
            found = [replace(one, suite=name) for one in found if one.category in MT_BENCH]
        drawn += stratified(found, rows, seed)
    layer: dict[tuple[str, str], int] = defaultdict(int)
    layers = []
    for question in drawn:
        layers.append(layer[question.suite, question.category])
        layer[question.suite, question.category] += 1
    return [question for _, question in sorted(zip(layers, drawn, strict=True), key=lambda pair: pair[0])]


def drafter_of(method: str) -> Drafter:
    """NAME or NAME:KEY=VALUE,KEY=VALUE. Raises InputError for what is unknown."""
    name, _, rest = method.partition(":")
    pairs = [part.partition("=") for part in rest.split(",") if part]
    created: Drafter = create("drafter", DRAFTERS, name, {key: value for key, _, value in pairs})
    return created


def run(args: argparse.Namespace, load: Callable[..., Loaded]) -> None:
    """Measure what the file does not have yet."""
    asked = questions(args.suites, args.data, args.rows, args.seed)
    for method in args.methods:
        drafter_of(method)
    settings = {key: getattr(args, key) for key in ("model", "dtype", "suites", "rows", "seed", "max_new_tokens")}
    with ResultFile(args.file, settings) as file:
        write_provenance(args.file, settings)
        done = {(one["method"], one["nodes"], one["question"]) for one in file.records}
        loaded = load(args.model, dtype=args.dtype, threads=args.threads)
        stop = StopSettings(max_new_tokens=args.max_new_tokens)
        for number, question in enumerate(asked, 1):
            prompt = loaded.tokenizer.encode(loaded.tokenizer.template.apply(question.messages), add_special=False)
            for method, nodes in ((method, nodes) for method in args.methods for nodes in args.nodes):
                if (method, nodes, question.id) in done:
                    continue
                drafter = drafter_of(method)
                drafter.start(loaded.target)
                metrics, tokens = measure(loaded.target, drafter, Request(prompt, stop=stop), nodes)
                place = {"method": method, "nodes": nodes, "question": question.id, "suite": question.suite}
                text = hashlib.sha256(str(tokens).encode()).hexdigest()[:16]
                file.append({**place, "category": question.category, "text": text, "sums": asdict(metrics)})
            _say(f"{number} of {len(asked)} questions")


def report(args: argparse.Namespace) -> None:
    """Print the figures as Markdown tables."""
    settings, records = read_results(args.file)
    texts: dict[str, set[str]] = defaultdict(set)
    for record in records:
        texts[record["question"]].add(record["text"])
    differing = sum(len(found) > 1 for found in texts.values())
    _print(f"{settings['model']}, {len(texts)} questions, {settings['max_new_tokens']} new tokens, greedy; ")
    _print(f"all methods wrote the same tokens: {len(texts) - differing} of {len(texts)} questions\n")
    for nodes in sorted({record["nodes"] for record in records}):
        at = [record for record in records if record["nodes"] == nodes]
        _print(f"\n### at most {nodes} nodes a forward\n")
        for line in table(at, args.by):
            _print(line)


def table(records: Sequence[Record], by: str) -> list[str]:
    """Markdown lines: DE by suite or category, then the figures over all, a method a line."""
    methods = list(dict.fromkeys(record["method"] for record in records))
    groups = list(dict.fromkeys(record[by] for record in records))
    first = {one["question"]: _sums(one).de for one in records if one["method"] == methods[0]}
    columns = ["DE", "others", "AL", "hits", "nodes", "probes", "similar", "repeated", "pairs", "overhead"]
    lines = [_line(["method", *groups, *columns]), _line(["---"] * (1 + len(groups) + len(columns)))]
    for method in methods:
        own = [record for record in records if record["method"] == method]
        cells = [f"{_total(one for one in own if one[by] == group).de:.2f}" for group in groups]
        ratios = [first[one["question"]] / _sums(one).de for one in own if one["question"] in first]
        lines.append(_line([method, *cells, *_figures(_total(own), ratios)]))
    return lines


def _figures(total: TreeMetrics, ratios: Sequence[float]) -> list[str]:
    low, high = bootstrap(ratios, "geometric-mean") if len(ratios) > 1 else (float("nan"), float("nan"))
    grown = [total.similar / max(1, total.branches), total.repeated / max(1, total.branches)]
    grown.append(total.repeated_pairs / max(1, total.pairs))
    return [
        f"**{total.de:.3f}**",
        f"{low:.2f} to {high:.2f}",
        f"{total.al:.2f}",
        f"{total.hits / total.forwards:.2f}",
        f"{total.nodes / total.forwards:.1f}",
        f"{total.probes / total.forwards:.1f}",
        *(f"{share:.2f}" if total.pairs else "" for share in grown),
        f"{total.overhead:.1%}",
    ]


def _sums(record: Mapping[str, Any]) -> TreeMetrics:
    return TreeMetrics(**record["sums"])


def _total(records: Iterable[Record]) -> TreeMetrics:
    return sum(map(_sums, records), TreeMetrics())


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main(argv: Sequence[str] | None = None, load: Callable[..., Loaded] = load_target) -> int:
    """The command line; returns the exit code. `load` makes a model of its name, dtype and threads."""
    parser = argparse.ArgumentParser(description="DE, AL, overhead and redundancy of drafters, at equal node limits.")
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("run", help="measure; goes on with a file that is there")
    measuring.add_argument("file", type=Path, help="result file (JSONL); provenance is written beside it")
    measuring.add_argument("--model", required=True)
    measuring.add_argument("--dtype", default=None)
    measuring.add_argument("--threads", type=int, default=None)
    measuring.add_argument("--suites", nargs="+", required=True, help="names or files (see `betoken bench`), mt-bench")
    measuring.add_argument("--data", type=Path, default=None, help="folder of the suites; else $BETOKEN_DATA")
    measuring.add_argument("--rows", type=int, default=10, help="rows a category")
    measuring.add_argument("--seed", type=int, default=0)
    measuring.add_argument("--max-new-tokens", type=int, default=256)
    measuring.add_argument("--nodes", type=int, nargs="+", default=[16, 32, 60, 185], help="most nodes a forward")
    measuring.add_argument("--methods", nargs="+", default=["ptd"], help="NAME or NAME:KEY=VALUE,KEY=VALUE")
    measuring.set_defaults(command=lambda args: run(args, load))
    reporting = commands.add_parser("report", help="print tables of a result file")
    reporting.add_argument("file", type=Path)
    reporting.add_argument("--by", choices=["suite", "category"], default="suite")
    reporting.set_defaults(command=report)
    args = parser.parse_args(argv)
    try:
        args.command(args)
    except InputError as error:
        _say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        _say("stopped; the same command goes on from here")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
