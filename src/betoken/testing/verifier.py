"""The conformance suite of a verifier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from betoken.decode import Decoder, Request
from betoken.drafters.drafter import Drafter
from betoken.errors import InputError
from betoken.models.target import Target
from betoken.sampling import Law, law
from betoken.state import Row, SamplingSettings, State, StopSettings
from betoken.testing.running import context_request, decode, plain_tokens, require, sample_requests
from betoken.testing.scripted import DrawingDrafter, OracleDrafter, RandomTreeDrafter
from betoken.testing.toy import ToyTarget
from betoken.tree import Role, RowTree, TokenTree
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.verifier import Verdict, Verifier

MakeVerifier = Callable[[], Verifier]


def check_verifier(make: MakeVerifier, *, draws: int = 2000) -> None:
    """Everything a verifier promises, on toy targets and with adversarial drafters.

    Its path is a path of candidates from node 0; a probe is never followed, even if its token wins; a row's verdict
    does not depend on its neighbours. If it is `exact`, it commits plain decoding's tokens; if it is `lossless`, its
    greedy answers are plain ones, and the law of its first three tokens, from `draws` answers with different seeds,
    is the product of the target's laws. That last check is statistical, with fixed seeds: it sees a bias of a few
    percent. Prove a new drawing rule by enumeration in its own tests. Raises ConformanceError.
    """
    verifier = make()
    require(bool(verifier.name), "name must be a text")
    require(not verifier.exact or verifier.lossless, "an exact verifier is lossless too")
    for temperature in (0.0, 0.8):
        if _serves(verifier, SamplingSettings(temperature=temperature)):
            _check_paths(verifier, temperature)
            _check_probes(verifier, temperature)
    if verifier.lossless:
        _check_equal(verifier)
    if verifier.lossless and not verifier.exact:
        for drafter in (DrawingDrafter(2), DrawingDrafter(2, width=2), RandomTreeDrafter()):
            _check_law(verifier, drafter, draws)


def _serves(verifier: Verifier, sampling: SamplingSettings) -> bool:
    try:
        verifier.check(State((_row([1], sampling),)))
    except InputError:
        return False
    return True


def _row(tokens: Sequence[int], sampling: SamplingSettings, index: int = 0) -> Row:
    return Row(index, -1, np.array(tokens), sampling, StopSettings(), frozenset({0}), 512)


def _verify(verifier: Verifier, target: Target, tree: TokenTree, state: State) -> Verdict:
    """The verdict on a tree, for rows whose text before the pending token is put in a new cache."""
    cache = target.new_cache()
    slots = []
    for row in state.rows:
        slots.append(cache.open())
        if row.cached:
            text = RowTree.chain(row.tokens[0], row.tokens[1:-1])
            target.forward(TokenTree.stack([text]), cache, slots[-1:])
            cache.keep(slots[-1:], [range(row.cached)])
    return verifier.verify(tree, target.forward(tree, cache, slots), state)


def _check_paths(verifier: Verifier, temperature: float) -> None:
    """On random ragged batches: paths are candidate paths, and each row gets the verdict it gets alone."""
    target = ToyTarget(far=True)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        drafter = RandomTreeDrafter(seed)
        drafter.start(target)
        rows = tuple(
            _row(rng.integers(0, 5, size=rng.integers(1, 9)).tolist(), SamplingSettings(temperature, seed=seed), b)
            for b in range(3)
        )
        nodes = [int(rng.integers(1, 13)) for _ in rows]
        together = _verify(verifier, target, drafter.propose(State(rows), nodes), State(rows))
        require(len(together.rows) == len(rows), f"{len(together.rows)} verdicts for {len(rows)} rows")
        for b, row in enumerate(rows):
            tree = drafter.propose(State((row,)), nodes[b : b + 1])
            alone = _verify(verifier, target, tree, State((row,))).rows[0]
            require(
                alone == together.rows[b], f"a row's verdict depends on its neighbours: {alone}, {together.rows[b]}"
            )
            _check_path(tree, alone.path)
            require(0 <= alone.bonus < target.vocab_size, f"bonus {alone.bonus} is outside the vocabulary")


def _check_path(tree: TokenTree, path: tuple[int, ...]) -> None:
    require(bool(path) and path[0] == 0, f"path {path} does not begin with the pending token")
    for parent, node in pairwise(path):
        require(tree.roles[0, node] == Role.CANDIDATE, f"path {path} goes through node {node}, which is no candidate")
        require(tree.parents[0, node] == parent, f"path {path}: node {node} is no child of node {parent}")


def _check_probes(verifier: Verifier, temperature: float) -> None:
    """Every token hangs under the pending one as a probe, so the winner does too; it must not be followed."""
    target = ToyTarget(far=True)
    for seed in range(10):
        row = _row([1, 2, seed % 5], SamplingSettings(temperature, seed=seed))
        tree = RowTree.under(row.pending)
        for token in range(target.vocab_size):
            tree.add(token, 0, Role.PROBE)
            tree.root(token)
        verdict = _verify(verifier, target, TokenTree.stack([tree]), State((row,))).rows[0]
        require(verdict.path == (0,), f"path {verdict.path} follows a probe")


def _check_equal(verifier: Verifier) -> None:
    """Greedy rows, and all rows of an exact verifier, get plain decoding's tokens whatever is drafted."""
    target = ToyTarget(context=40, far=True)
    requests = [*sample_requests(target), context_request(target)]
    requests = [r for r in requests if r.sampling.greedy or (verifier.exact and _serves(verifier, r.sampling))]
    plain = [plain_tokens(target, request, verifier) for request in requests]
    drafters: list[Drafter] = [OracleDrafter(accuracy) for accuracy in (1.0, 0.6, 0.0)]
    drafters += [RandomTreeDrafter(seed) for seed in range(3)]
    for drafter in drafters:
        drafter.start(target)
        for nodes in (2, 9):
            rows = decode(target, drafter, verifier, requests, nodes)
            for request, row, expected in zip(requests, rows, plain, strict=True):
                told = f"drafter {drafter.name}, {nodes} nodes, {request.sampling}"
                require(row.new_tokens == expected, f"{told}: got {row.new_tokens}, plain decoding gives {expected}")


def _check_law(verifier: Verifier, drafter: Drafter, draws: int, length: int = 3) -> None:
    """The first tokens of many answers against the exact law, by a chi-squared statistic far out in its tail."""
    target = ToyTarget(3, seed=1, sharpness=1.0)
    drafter.start(target)
    settings = SamplingSettings(temperature=0.9)
    seen: Counter[tuple[int, ...]] = Counter()
    for at in range(0, draws, 250):
        seen.update(_beginnings(verifier, drafter, target, range(at, min(at + 250, draws)), length))
    chi = 0.0
    expected = _answer_law(target, [1, 2], settings, length)
    for answer, probability in expected.items():
        chi += (seen[answer] - draws * probability) ** 2 / (draws * probability)
    freedom = len(expected) - 1
    limit = freedom + 5.0 * float(np.sqrt(2 * freedom)) + 10.0
    require(chi < limit, f"drafter {drafter.name}: chi-squared {chi:.1f} over {limit:.1f}; the law of answers is bent")


def _beginnings(
    verifier: Verifier, drafter: Drafter, target: ToyTarget, seeds: range, length: int
) -> list[tuple[int, ...]]:
    """The first `length` tokens of one answer a seed. The answers would go on, so that whole trees have room."""
    decoder = Decoder(target, drafter, verifier, FixedNodes(7), max_rows=len(seeds))
    stop = StopSettings(max_new_tokens=50, ignore_eos=True)
    rows = [decoder.admit(Request([1, 2], SamplingSettings(temperature=0.9, seed=seed), stop)) for seed in seeds]
    while any(row.generated < length for row in rows):
        decoder.step()
    for row in rows:
        decoder.release(row)
    return [tuple(row.new_tokens[:length]) for row in rows]


def _answer_law(
    target: ToyTarget, prompt: list[int], settings: SamplingSettings, length: int
) -> dict[tuple[int, ...], float]:
    """Probability of each answer of `length` tokens, by enumeration."""
    answers: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        for answer, probability in answers.items():
            after: Law = law(target.next_logits([*prompt, *answer]), settings)
            for token, share in enumerate(after):
                longer[(*answer, token)] = probability * float(share)
        answers = longer
    return answers
