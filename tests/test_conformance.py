"""The built-in drafters and verifiers pass the public suite, and the suite catches those that break a rule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from betoken.decode import Request
from betoken.drafters import DRAFTERS, Drafter
from betoken.drafters.draft_model import DraftModel
from betoken.drafters.plain import Plain
from betoken.drafters.prompt_lookup import PromptLookup
from betoken.drafters.suffix import Suffix
from betoken.models.target import Scores
from betoken.sampling import adjust, law, pick
from betoken.state import Row, SamplingSettings, State, StopSettings
from betoken.testing import (
    ConformanceError,
    OracleDrafter,
    RandomTreeDrafter,
    ToyTarget,
    check_drafter,
    check_verifier,
    plain_tokens,
)
from betoken.testing.running import context_request, decode, sample_requests
from betoken.testing.scripted import DrawingDrafter
from betoken.tree import Role, RowTree, TokenTree
from betoken.verifiers import VERIFIERS, RowVerdict, Verdict
from betoken.verifiers.replay import Replay

MAKERS: dict[str, Callable[[], Drafter]] = {
    "none": Plain,
    "prompt-lookup": PromptLookup,
    "prompt-lookup last": lambda: PromptLookup(prefer="last", max_ngram=2, max_draft=4),
    "suffix": Suffix,
    "suffix tree": lambda: Suffix(tree=True, factor=2.0),
    "suffix global": lambda: Suffix(global_tree=True, global_tokens=60),
    "oracle": OracleDrafter,
    "never right": lambda: OracleDrafter(0.0),
    "sometimes right": lambda: OracleDrafter(0.6),
    "random tree": RandomTreeDrafter,
    "drawing": lambda: DrawingDrafter(2, 2),
}


@pytest.mark.parametrize("name", MAKERS)
def test_drafters_conform(name: str) -> None:
    check_drafter(MAKERS[name])


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"coupled": False}, {"sample": True}, {"min_confidence": 0.3}])
def test_draft_model_conforms(width: int, settings: dict[str, float | bool]) -> None:
    draft = ToyTarget(6, seed=9, context=38)
    check_drafter(lambda: DraftModel(depth=4, width=width, prefill_chunk=4, **settings), draft=draft)


@pytest.mark.parametrize("name", ["greedy", "replay", "rejection", "block", "traversal"])
def test_verifiers_conform(name: str) -> None:
    check_verifier(VERIFIERS[name], draws=1000)


def test_gumbel_conforms() -> None:
    check_verifier(lambda: Replay("gumbel"))


def test_tables_name_each_class_by_its_own_name() -> None:
    for table in (DRAFTERS, VERIFIERS):
        assert all(cls.name == name for name, cls in table.items())


@pytest.mark.parametrize("index", range(9))
def test_plain_decoding_is_the_target_asked_token_by_token(index: int) -> None:
    """The reference of the suite against a loop that has no tree, no cache and no decoder."""
    target = ToyTarget(context=40, far=True)
    request = [*sample_requests(target), context_request(target)][index]
    row = Row(0, 0, request.prompt, request.sampling, request.stop, frozenset(), 40, request.sample)
    row.tokens = list(request.prompt)
    ends = set(request.stop.stop_ids) | (set() if request.stop.ignore_eos else {0})
    row.end_ids = frozenset(ends)
    while row.generated < request.stop.max_new_tokens and len(row.tokens) < 40:
        logits = adjust(target.next_logits(row.tokens), row, [])
        token = pick(logits, row, row.generated)
        row.tokens.append(token)
        row.counts[token] += 1
        if token in ends:
            break
    assert plain_tokens(target, request) == row.new_tokens


@dataclass
class Faulty(Plain):
    """Breaks one rule."""

    fault: str = ""
    seen: int = 0

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        trees = [RowTree.under(token) for token in state.pending]
        for tree, limit in zip(trees, nodes, strict=True):
            if self.fault == "too many" or limit > 2:
                self._break(tree, state)
        if self.fault == "a row missing" and len(trees) > 1:
            trees.pop()
        return TokenTree.stack(trees)

    def _break(self, tree: RowTree, state: State) -> None:
        match self.fault:
            case "too many":
                tree.add(1, 0)
            case "pending":
                tree.tokens[0] = (tree.tokens[0] + 1) % 5
            case "vocabulary":
                tree.add(5, 0)
            case "under a probe":
                tree.add(1, tree.root(2))
            case "not wanted":
                tree.add(1, 0, wanted=False)
            case "same token":
                tree.add(1, 0)
                tree.add(1, 0)
            case "anchored":
                tree.root(1, anchor=1000)
            case "law":
                tree.add(1, 0)
                tree.laws[0] = law(ToyTarget().next_logits([1]), SamplingSettings())[:4]
            case "earlier request":
                self.seen += 1
                tree.add(self.seen**2 // 7 % 5, 0)  # no period that could hide it


@pytest.mark.parametrize(
    "fault",
    [
        "too many",
        "pending",
        "vocabulary",
        "under a probe",
        "not wanted",
        "same token",
        "anchored",
        "law",
        "earlier request",
        "a row missing",
    ],
)
def test_check_drafter_catches(fault: str) -> None:
    with pytest.raises(ConformanceError):
        check_drafter(lambda: Faulty(fault))


@dataclass(frozen=True)
class FaultyVerifier(Replay):
    """Breaks one rule."""

    fault: str = ""

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.fault != "greedy choice"

    def verify(self, tree: TokenTree, scores: Scores, state: State) -> Verdict:
        rows = super().verify(tree, scores, state).rows
        return Verdict(tuple(self._break(tree, scores, b, row, state) for b, row in enumerate(rows)))

    def _break(self, tree: TokenTree, scores: Scores, b: int, kept: RowVerdict, state: State) -> RowVerdict:
        last = kept.path[-1]
        match self.fault:
            case "probe":
                for node in range(1, int(tree.counts[b])):
                    if tree.roles[b, node] >= Role.PROBE and tree.tokens[b, node] == kept.bonus:
                        return RowVerdict((*kept.path, node), kept.bonus)
            case "bonus elsewhere":
                return RowVerdict(kept.path, int(scores.argmax[b, 0]))
            case "last node left out":
                return RowVerdict(kept.path[:-1] or (0,), kept.bonus)
            case "neighbour":
                return RowVerdict((0,), int(tree.tokens[0, last]) if len(state.rows) > 1 else kept.bonus)
            case "greedy choice":
                return RowVerdict(kept.path, int(scores.argmax[b, last]))
        return kept


@pytest.mark.parametrize("fault", ["probe", "bonus elsewhere", "last node left out", "neighbour", "greedy choice"])
def test_check_verifier_catches(fault: str) -> None:
    with pytest.raises(ConformanceError):
        check_verifier(lambda: FaultyVerifier(fault=fault), draws=300)


def test_oracle_commits_whole_drafts() -> None:
    target = ToyTarget(far=True)
    drafter = OracleDrafter(depth=4)
    drafter.start(target)
    request = Request([1, 2, 3], stop=StopSettings(max_new_tokens=25, ignore_eos=True))
    row = decode(target, drafter, Replay(), [request], 5)[0]
    assert (row.generated, row.steps) == (25, 5)
