"""A smaller model drafts for the target (Leviathan et al., arXiv 2211.17192; trees after EAGLE-2, arXiv 2406.16858).

What it drafts depends on how the row's tokens are picked:

- greedy rows: the draft model's most probable tokens;
- rows that sample, `coupled` (the default): the token that the draft model's law gives for the *same* random number
  u_k that the replay verifier will use at that position. Two similar laws map one number to the same token far more
  often than independent draws agree (common random numbers), and the verifier decides, so the output stays exact;
- `sample`: tokens drawn from the draft model's law with numbers of their own, and the law recorded, which is what the
  rejection verifiers need.

It reads a prompt while the target does, where the node policy expects to draft; otherwise with the first draft.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np

from betoken import noise
from betoken.drafters.guesses import Guesses, drawn, most_probable
from betoken.drafters.reader import Reader
from betoken.errors import InputError
from betoken.models.target import Scores, Target
from betoken.sampling import Law, Logits, adjust, law, pick_gumbel, pick_inverse_cdf
from betoken.state import Row, SamplingSettings, State
from betoken.tree import RowTree, TokenTree
from betoken.verifiers.verifier import Verdict

_PLAIN = SamplingSettings(temperature=1.0)
"""Under these a law is simply the model's."""


class HasVocabulary(Protocol):
    """A tokenizer, as far as this file is concerned."""

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """Token -> id, special tokens included."""


def check_draft_dtype(dtype: str | None, *, has_draft: bool) -> None:
    """Raises InputError for the dtype of a draft model that is not there."""
    if dtype is not None and not has_draft:
        raise InputError("--draft-dtype (draft_dtype) needs a draft model: --draft-model")


def check_vocabularies(target: HasVocabulary, draft: HasVocabulary) -> None:
    """Raises InputError unless the two tokenizers give the same ids to the same tokens.

    Entries that one of them adds at the end (padding, extra special tokens) make no difference.
    """
    ours, theirs = target.vocabulary, draft.vocabulary
    shared = min(max(ours.values(), default=-1), max(theirs.values(), default=-1))
    left = {token: index for token, index in ours.items() if index <= shared}
    right = {token: index for token, index in theirs.items() if index <= shared}
    if left != right:
        index, token = min((index, token) for token, index in left.items() ^ right.items())
        raise InputError(
            f"the draft model has another vocabulary than the target (first difference: token {token!r}, id {index}); "
            "use a draft model of the same family"
        )


@dataclass
class _Draft:
    """The tree of one row while it grows."""

    row: Row
    budget: int
    """Most nodes, the pending token included."""
    tree: RowTree
    chance: list[float]
    """Probability that the whole path to a node is right, by the draft model."""
    frontier: list[int]
    """Nodes whose children come next."""


@dataclass
class DraftModel:
    """Drafts a chain, or with `width` > 1 a tree, with any smaller model of the same vocabulary."""

    depth: int = 5
    """Most tokens on a drafted path: forward passes of the draft model in a step."""
    width: int = 1
    """Nodes expanded at each depth, and children of each; 1 is a chain."""
    min_confidence: float = 0.0
    """Nothing is drafted below a node whose path is right with less than this probability."""
    sample: bool = False
    """Draw from the draft model's law and record it (for rejection verifiers)."""
    coupled: bool = True
    """Guess with the random number that picks the row's own token; off: the most probable tokens."""
    rule: Literal["inverse-cdf", "gumbel"] = "inverse-cdf"
    """The replay verifier's rule, which coupled guesses must share to agree."""
    temperature: float | None = None
    """Temperature of the draft model's law; none: the row's."""
    prefill_chunk: int = 256
    """Most tokens of a row that one forward pass of the draft model reads."""
    _reader: Reader | None = field(default=None, init=False, repr=False)
    _vocab_size: int = field(default=0, init=False, repr=False)

    name = "draft-model"
    hidden_layers = ()
    shares_state = False

    def __post_init__(self) -> None:
        """Raises InputError for settings out of range."""
        for name in ("depth", "width", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise InputError(f"draft-model: {name} must be at least 1, not {getattr(self, name)}")
        if not 0.0 <= self.min_confidence <= 1.0:
            raise InputError(f"draft-model: min_confidence must be from 0 to 1, not {self.min_confidence}")
        if self.temperature is not None and not 0.0 <= self.temperature < float("inf"):
            raise InputError(f"draft-model: temperature must be at least 0, not {self.temperature}")

    def start(self, target: Target, draft: Target | None = None) -> None:
        """Raises InputError without a draft model. Whoever loads the two models calls `check_vocabularies`."""
        if draft is None:
            raise InputError("drafter draft-model needs a second, smaller model: name it with --draft-model")
        self._reader, self._vocab_size = Reader(draft, self.prefill_chunk), target.vocab_size

    def admit(self, rows: Sequence[Row]) -> None:
        """Each row gets a slot in the draft model's cache."""
        for row in rows:
            self._started().admit(row)

    def release(self, rows: Sequence[Row]) -> None:
        """Give the rows' slots back."""
        for row in rows:
            self._started().release(row)

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        """Grow all rows' trees together, one forward pass of the draft model a level."""
        drafts = [
            _Draft(row, limit, RowTree.under(row.pending), [1.0], [0])
            for row, limit in zip(state.rows, nodes, strict=True)
        ]
        reader = self._started()
        growing = [draft for draft in drafts if draft.budget > 1 and reader.can_read(draft.row, self.depth)]
        for draft in growing:
            reader.catch_up(draft.row)
        for level in range(self.depth):
            growing = [draft for draft in growing if draft.frontier and level < min(draft.budget, draft.row.room) - 1]
            if not growing:
                break
            self._grow(growing, level)
        return TokenTree.stack([_best_nodes(draft) for draft in drafts])

    def observe(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        """Reads along in prefill. Of decoding it learns nothing: the next `propose` looks at the committed text."""
        reader = self._started()
        for b, row in enumerate(state.rows):
            if verdict.rows[b].bonus < 0 and row.expects_draft and reader.can_read(row, self.depth):
                reader.prefill(row, tree.tokens[b, : tree.counts[b]].tolist())

    def _started(self) -> Reader:
        if self._reader is None:
            raise InputError("drafter draft-model was not started: call start(target, draft) first")
        return self._reader

    def _grow(self, drafts: Sequence[_Draft], level: int) -> None:
        """Score every tree's frontier in one forward pass of the draft model, and add the children.

        What comes before the trees' branches - unread text, and the whole of a chain - then stays in the cache.
        """
        passes = [self._unread(draft) for draft in drafts]
        rows = [draft.row for draft in drafts]
        scores = self._started().score(rows, [one.tree for one in passes], [one.kept for one in passes])
        for b, (draft, one) in enumerate(zip(drafts, passes, strict=True)):
            self._expand(draft, [scores.logits(b, node) for node in one.frontier], level)

    def _unread(self, draft: _Draft) -> _Pass:
        """The tree that the draft model must still read for this row: unread text, then the drafted nodes."""
        memory, tree = self._started().memory(draft.row), draft.tree
        chain = [*draft.row.tokens, *tree.tokens[1:]] if self.width == 1 else draft.row.tokens
        unread = RowTree.chain(chain[len(memory.text)], chain[len(memory.text) + 1 :])
        place = {0: len(unread) - 1}
        if self.width == 1:
            place = {draft.frontier[0]: len(unread) - 1}
        else:
            for node in range(1, len(tree)):
                place[node] = unread.add(tree.tokens[node], place[tree.parents[node]])
        frontier = [place[node] for node in draft.frontier]
        unread.wanted = [node in frontier for node in range(len(unread))]
        kept = len(unread) if self.width == 1 else draft.row.cached - len(memory.text)
        return _Pass(unread, frontier, kept)

    def _expand(self, draft: _Draft, logits: Sequence[Logits], level: int) -> None:
        """Add the children of the frontier, and choose the next frontier among them."""
        tree, row = draft.tree, draft.row
        added: list[int] = []
        for turn, (node, raw) in enumerate(zip(draft.frontier, logits, strict=True)):
            drafted = _path_tokens(tree, node)
            adjusted = adjust(_fit(raw, self._vocab_size), row, drafted)
            guesses = self._guess(adjusted, row, row.generated + level, turn)
            if guesses.law is not None:
                tree.laws[node] = guesses.law
            for token, confidence in zip(guesses.tokens, guesses.confidence, strict=True):
                added.append(tree.add(token, node, confidence=confidence))
                draft.chance.append(draft.chance[node] * confidence)
        open_nodes = [n for n in added if tree.tokens[n] not in row.end_ids and draft.chance[n] >= self.min_confidence]
        draft.frontier = sorted(open_nodes, key=lambda n: (-draft.chance[n], n))[: self.width]

    def _guess(self, adjusted: Logits, row: Row, position: int, turn: int) -> Guesses:
        """Up to `width` children of one node, for new token number `position` of the row."""
        settings = row.sampling
        if self.temperature is not None:
            settings = dataclasses.replace(settings, temperature=self.temperature)
        if settings.greedy or (row.sampling.greedy and not self.sample):
            return most_probable(law(adjusted, _PLAIN), self.width)
        probabilities = law(adjusted, settings)
        if self.sample:
            count = self.width * (turn + 1)
            u = noise.uniforms(settings.seed, row.sample, position, count, stream=noise.Stream.DRAFT, step=row.steps)[
                -self.width :
            ]
            return drawn(probabilities, u)
        best = most_probable(probabilities, self.width)
        return self._coupled(best, probabilities, row, position) if self.coupled else best

    def _coupled(self, best: Guesses, probabilities: Law, row: Row, position: int) -> Guesses:
        """The token that the row's own random number picks, before the most probable others."""
        seed = row.sampling.seed
        if self.rule == "gumbel":
            token = pick_gumbel(probabilities, noise.gumbels(seed, row.sample, position, probabilities.shape[0]))
        else:
            token = pick_inverse_cdf(probabilities, noise.uniform(seed, row.sample, position))
        others = [other for other in best.tokens if other != token]
        return Guesses([token, *others][: self.width], best.confidence, None)


class _Pass(NamedTuple):
    """What one forward pass of the draft model reads for one row."""

    tree: RowTree
    frontier: list[int]
    """Nodes of `tree` whose logits are read."""
    kept: int
    """Leading nodes of `tree`, a chain, whose keys and values stay."""


def _fit(logits: Logits, vocab_size: int) -> Logits:
    """Logits over the target's vocabulary: what the draft model pads it with can never be drafted."""
    if logits.shape[0] == vocab_size:
        return logits
    fitted = np.full(vocab_size, -np.inf, dtype=np.float32)
    known = min(vocab_size, logits.shape[0])
    fitted[:known] = logits[:known]
    return fitted


def _path_tokens(tree: RowTree, node: int) -> list[int]:
    """Drafted tokens from the first below the pending token down to `node`."""
    tokens: list[int] = []
    while node > 0:
        tokens.append(tree.tokens[node])
        node = tree.parents[node]
    return tokens[::-1]


def _best_nodes(draft: _Draft) -> RowTree:
    """The most probable nodes that fit the budget; a parent is never less probable than its children."""
    tree = draft.tree
    if len(tree) <= draft.budget:
        return tree
    chosen = sorted(range(len(tree)), key=lambda node: (-draft.chance[node], node))[: draft.budget]
    best = RowTree.under(tree.tokens[0])
    place = {0: 0}
    for node in sorted(chosen)[1:]:
        place[node] = best.add(tree.tokens[node], place[tree.parents[node]], confidence=tree.confidence[node])
    best.laws = {place[node]: one for node, one in tree.laws.items() if place.get(node) in best.parents}
    return best
