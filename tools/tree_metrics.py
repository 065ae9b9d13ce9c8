"""What a drafter that grows its own drafts is worth, apart from the hardware: the figures of the PTD paper.

    python tools/tree_metrics.py --model qwen2.5-coder-0.5b --suite gsm8k --drafter ptd:preset=paper --nodes 16 32

- DE, decoding efficiency: committed tokens per target forward (our acceptance length; prefill apart).
- AL: 1 + accepted drafts, averaged over the steps with a pool hit, that is with at least one candidate.
- hits: share of the steps with a pool hit.
- nodes: nodes of a tree on average, the pending token included; `probes` of them grow the next drafts.
- overhead: share of the decoding time outside the target's forward pass (a time: only on a quiet machine).
- redundancy: share of the n-grams (pairs) along the growing branches that another branch of the same step has
  already, a node's n-gram counted once: what the paper says of linear self-drafting.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from betoken.decode import Decoder, Request
from betoken.drafters import DRAFTERS
from betoken.drafters.drafter import Drafter
from betoken.drafters.growth import Growing
from betoken.drafters.pool import Trie
from betoken.models.target import Scores, Target
from betoken.registry import create
from betoken.state import State
from betoken.tree import Role, TokenTree
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Replay
from betoken.verifiers.verifier import Verdict


@dataclass
class TreeMetrics:
    """Sums over the steps of all requests, each request alone in its batch."""

    tokens: int = 0
    forwards: int = 0
    nodes: int = 0
    probes: int = 0
    hits: int = 0
    """Steps with a candidate."""
    accepted: int = 0
    """Accepted drafts in those."""
    grams: int = 0
    repeated: int = 0
    """Of the n-grams on branches of probes, those that an earlier branch of the tree has."""
    draft_s: float = 0.0
    target_s: float = 0.0
    verify_s: float = 0.0

    @property
    def de(self) -> float:
        """Committed tokens per forward pass."""
        return self.tokens / self.forwards

    @property
    def al(self) -> float:
        """1 + accepted drafts per step with a pool hit."""
        return 1.0 + self.accepted / max(1, self.hits)

    @property
    def redundancy(self) -> float:
        """Share of repeated n-grams among the branches of a tree."""
        return self.repeated / max(1, self.grams)

    @property
    def overhead(self) -> float:
        """Share of the time outside the target's forward pass."""
        return 1.0 - self.target_s / max(1e-9, self.draft_s + self.target_s + self.verify_s)

    def observe(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        """A decoder's observer, for batches of one row."""
        self.forwards += 1
        self.nodes += int(tree.counts[0])
        self.probes += int((tree.roles[0] == Role.PROBE).sum())
        if (tree.roles[0] == Role.CANDIDATE).any():
            self.hits += 1
            self.accepted += len(verdict.rows[0].path) - 1

    def observe_branches(self, tries: Sequence[Trie], n: int) -> None:
        """What a drafter grows at a step."""
        grams, repeated = repeated_grams(tries, n)
        self.grams += grams
        self.repeated += repeated

    def line(self) -> str:
        """All of it, on one line."""
        return (
            f"DE {self.de:.3f}  AL {self.al:.3f}  hits {self.hits / self.forwards:.2f}  "
            f"nodes {self.nodes / self.forwards:.1f} ({self.probes / self.forwards:.1f} probes)  "
            f"redundancy {self.redundancy:.2f}  overhead {self.overhead:.1%}  "
            f"draft {self.draft_s / self.forwards * 1e3:.2f} ms  tokens {self.tokens}"
        )


def repeated_grams(tries: Sequence[Trie], n: int) -> tuple[int, int]:
    """The n-grams along the branches, one for each node that ends one: how many, and how many an earlier node has."""
    grams: list[tuple[int, ...]] = []

    def walk(trie: Trie, above: tuple[int, ...]) -> None:
        for token, below in trie.items():
            gram = (*above, token)[-n:]
            if len(gram) == n:
                grams.append(gram)
            walk(below, gram)

    for trie in tries:
        walk(trie, ())
    return len(grams), len(grams) - len(set(grams))


def measure(
    target: Target, drafter: Drafter, requests: Sequence[Request], nodes: int, *, tokens: int, n: int = 2
) -> tuple[TreeMetrics, list[list[int]]]:
    """Decode the first `tokens` tokens of each request, one after the other; the figures, and the new tokens of each.

    A decoder offers no more nodes than tokens are left to commit, so let the requests ask for `tokens + nodes`.
    """
    out, texts = TreeMetrics(), []
    drafter.start(target)
    for request in requests:
        decoder = Decoder(target, drafter, Replay(), FixedNodes(nodes))
        decoder.observer = out.observe
        row = decoder.admit(request)
        while row.finish_reason is None and row.generated < tokens:
            if isinstance(drafter, Growing):
                out.observe_branches(drafter.growing(row), n)
            for advance in decoder.step():
                out.tokens += len(advance.tokens)
                out.draft_s += advance.times.draft
                out.target_s += advance.times.target
                out.verify_s += advance.times.verify
        texts.append(row.new_tokens)
        decoder.release(row)
    return out, texts


def main() -> None:
    """The command line."""
    from betoken.bench.suites import draw, find_suite, read_suite
    from betoken.models.load import load_target
    from betoken.state import StopSettings

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--suite", type=Path, required=True, help="a suite's name or file (see `betoken bench`)")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-new-tokens", type=int, default=72)
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--drafter", nargs="+", default=["ptd"], help="NAME or NAME:KEY=VALUE,KEY=VALUE")
    args = parser.parse_args()
    loaded = load_target(args.model, dtype=args.dtype, threads=args.threads)
    suite = args.suite if args.suite.is_file() else find_suite(str(args.suite))
    questions = draw([read_suite(suite)], args.rows, args.seed)
    stop = StopSettings(max_new_tokens=args.max_new_tokens + max(args.nodes))
    chats = [loaded.tokenizer.apply_chat(one.messages) for one in questions]
    requests = [Request(loaded.tokenizer.encode(chat, add_special=False), stop=stop) for chat in chats]
    for method in args.drafter:
        name, _, rest = method.partition(":")
        settings = dict(part.split("=", 1) for part in rest.split(",") if part)
        for nodes in args.nodes:
            metrics, _ = measure(
                loaded.target,
                create("drafter", DRAFTERS, name, settings),
                requests,
                nodes,
                tokens=args.max_new_tokens,
            )
            sys.stdout.write(f"{method} nodes {nodes}: {metrics.line()}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
