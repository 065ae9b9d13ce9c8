"""The conformance suite of a drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from betoken.decode import Decoder, Request
from betoken.drafters.drafter import Drafter
from betoken.models.target import Scores, Target
from betoken.state import Row, State
from betoken.testing.running import (
    context_request,
    decode,
    finish,
    plain_tokens,
    require,
    sample_requests,
)
from betoken.testing.toy import ToyTarget
from betoken.tree import START_INPUT, Role, TokenTree
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Replay
from betoken.verifiers.verifier import Verdict

MakeDrafter = Callable[[], Drafter]


def check_drafter(
    make: MakeDrafter,
    *,
    target: Target | None = None,
    draft: Target | None = None,
    max_nodes: int = 8,
    requests: Sequence[Request] | None = None,
) -> None:
    """Everything a drafter promises: its trees, and that plain decoding's tokens come out whatever it drafts.

    `make` returns a new drafter that was not started. `target` defaults to a toy of 5 tokens; give a small real one
    (and `draft`) to a drafter that needs it. `requests` default to a set that covers every setting and every way to
    end. Raises ConformanceError with the first broken promise.
    """
    target = target if target is not None else ToyTarget(context=40, far=True)
    requests = requests if requests is not None else [*sample_requests(target), context_request(target)]
    suite = _Suite(make, target, draft, max_nodes, requests)
    suite.check_face()
    suite.check_exact()
    suite.check_no_room()
    suite.check_coming_and_going()
    suite.check_repeatable()


def check_tree(tree: TokenTree, state: State, nodes: Sequence[int], vocab_size: int) -> None:
    """Raises ConformanceError if a proposed tree breaks a rule of the contract."""
    require(tree.batch == len(state.rows), f"propose returned {tree.batch} trees for {len(state.rows)} rows")
    for b, row in enumerate(state.rows):
        try:
            _check_row(tree, b, row, nodes[b], vocab_size)
        except AssertionError as error:
            raise type(error)(f"row {b}: {error}") from None


def _check_row(tree: TokenTree, b: int, row: Row, limit: int, vocab_size: int) -> None:
    count = int(tree.counts[b])
    roles = tree.roles[b, :count]
    require(1 <= count <= limit, f"{count} nodes, at most {limit} were allowed")
    require(bool((roles != Role.PADDING).all()), "padding stands between nodes; it must come last")
    require(roles[0] == Role.PENDING and tree.tokens[b, 0] == row.pending, "node 0 is not the pending token")
    require(tree.parents[b, 0] == -1 and bool(tree.wanted[b, 0]), "node 0 must be a wanted root")
    require(not (roles[1:] == Role.PENDING).any(), "only node 0 is pending")
    tokens = tree.tokens[b, :count]
    require(bool(((tokens >= 0) & (tokens < vocab_size)).all()), f"a token is outside 0..{vocab_size - 1}: {tokens}")
    for node in range(1, count):
        _check_node(tree, b, node, row)
    for parent, law in tree.laws[b].items():
        require(0 <= parent < count, f"a law is recorded for node {parent}, which does not exist")
        require(law.shape == (vocab_size,), f"the law of node {parent} has shape {law.shape}, not ({vocab_size},)")
        require(bool((law >= 0).all()) and abs(law.sum() - 1) < 1e-9, f"the law of node {parent} is none")
        drawn = [int(tree.tokens[b, child]) for child in tree.children(b, parent)]
        require(all(law[token] > 0 for token in drawn), f"a child of node {parent} cannot have been drawn from its law")


def _check_node(tree: TokenTree, b: int, node: int, row: Row) -> None:
    parent, role = int(tree.parents[b, node]), tree.roles[b, node]
    require(parent < node, f"node {node} comes before its parent {parent}")
    if Role(role).rides_along:
        if parent < 0:
            anchor = int(tree.anchors[b, node])
            require(anchor <= row.cached, f"root {node} is anchored at {anchor}, beyond {row.cached} cached positions")
        u = float(tree.inputs[b, node])
        known = np.isnan(u) or u == START_INPUT or 0.0 <= u < 1.0
        require(known, f"probe {node} has input u = {u}: neither START_INPUT nor in [0, 1)")
        return
    require(parent >= 0, f"candidate {node} has no parent; candidates hang under the pending token")
    require(tree.roles[b, parent] in (Role.PENDING, Role.CANDIDATE), f"candidate {node} hangs under a probe")
    require(bool(tree.wanted[b, node]), f"candidate {node} is not wanted, so no verifier can go through it")
    require(0.0 <= tree.confidence[b, node] <= 1.0, f"candidate {node}: confidence {tree.confidence[b, node]}")
    twin = tree.child(b, parent, int(tree.tokens[b, node]))
    require(twin == node, f"candidates {twin} and {node} are siblings with the same token")


class Watched:
    """A drafter whose every tree is checked and remembered."""

    def __init__(self, drafter: Drafter, target: Target, draft: Target | None) -> None:
        """Starts the drafter."""
        self.inner, self.vocab_size = drafter, target.vocab_size
        self.name, self.hidden_layers = drafter.name, drafter.hidden_layers
        self.shares_state = drafter.shares_state
        self.seen: list[list[list[float]]] = []
        """For each row of each proposed tree: tokens, parents, roles, anchors and confidences."""
        drafter.start(target, draft)

    def start(self, target: Target, draft: Target | None = None) -> None:
        """Was started already."""

    def admit(self, rows: Sequence[Row]) -> None:
        """Pass on."""
        self.inner.admit(rows)

    def release(self, rows: Sequence[Row]) -> None:
        """Pass on."""
        self.inner.release(rows)

    def propose(self, state: State, nodes: Sequence[int]) -> TokenTree:
        """Pass on, check, remember."""
        before = [list(row.tokens) for row in state.rows]
        tree = self.inner.propose(state, nodes)
        require(before == [row.tokens for row in state.rows], "propose changed a row's tokens")
        check_tree(tree, state, nodes, self.vocab_size)
        for b in range(tree.batch):
            parts = (tree.tokens, tree.parents, tree.roles, tree.anchors, tree.confidence)
            self.seen.append([part[b, : tree.counts[b]].tolist() for part in parts])
        return tree

    def observe(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        """Pass on."""
        self.inner.observe(tree, scores, verdict, state)


class _Suite:
    def __init__(
        self,
        make: MakeDrafter,
        target: Target,
        draft: Target | None,
        max_nodes: int,
        requests: Sequence[Request],
    ) -> None:
        self.make, self.target, self.draft = make, target, draft
        self.max_nodes, self.requests = max_nodes, list(requests)
        self.plain = [plain_tokens(target, request) for request in self.requests]

    def watched(self) -> Watched:
        return Watched(self.make(), self.target, self.draft)

    def check_face(self) -> None:
        drafter = self.make()
        require(isinstance(drafter.name, str) and bool(drafter.name), "name must be a text")
        layers = range(self.target.num_layers + 1)
        require(all(layer in layers for layer in drafter.hidden_layers), f"hidden_layers must be within {layers}")
        require(isinstance(drafter.shares_state, bool), "shares_state must be a bool")
        require(self.make() is not drafter, "`make` must return a new drafter each time")

    def check_exact(self) -> None:
        """Alone and in a ragged batch, the tokens are those of plain decoding."""
        for index, request in enumerate(self.requests):
            row = decode(self.target, self.watched(), Replay(), [request], self.max_nodes)[0]
            self._compare(index, row, "alone")
            require(row.steps <= row.generated, f"request {index} took {row.steps} forwards for {row.generated} tokens")
        rows = decode(self.target, self.watched(), Replay(), self.requests, self.max_nodes)
        for index, row in enumerate(rows):
            self._compare(index, row, "in a ragged batch")

    def check_no_room(self) -> None:
        """With one node a row there is no draft, and each forward pass commits one token."""
        for row in decode(self.target, self.watched(), Replay(), self.requests[:3], 1):
            require(row.steps == row.generated, "with 1 node a row each forward must commit exactly one token")

    def check_coming_and_going(self) -> None:
        """Rows join and leave in any order, before their prefill or in the middle of an answer."""
        rng = np.random.default_rng(7)
        decoder = Decoder(self.target, self.watched(), Replay(), FixedNodes(self.max_nodes), prefill_chunk=3)
        live: list[tuple[int, Row]] = []
        for turn in range(3 * len(self.requests)):
            index = turn % len(self.requests)
            live.append((index, decoder.admit(self.requests[index])))
            for _ in range(int(rng.integers(0, 5))):
                decoder.step()
            if len(live) > 3:
                index, row = live.pop(int(rng.integers(len(live))))
                if turn % 2:
                    finish(decoder, [row])
                    self._compare(index, row, "beside rows that come and go")
                decoder.release(row)
        finish(decoder, [row for _, row in live])
        for index, row in live:
            self._compare(index, row, "beside rows that come and go")
            decoder.release(row)

    def check_repeatable(self) -> None:
        """The same requests give the same trees; after other requests too, unless state is shared."""
        fresh, again, used = self.watched(), self.watched(), self.watched()
        last = self.requests[2:3]
        for drafter in (fresh, again):
            decode(self.target, drafter, Replay(), last, self.max_nodes)
        require(fresh.seen == again.seen, "two new drafters drafted differently for the same request")
        decode(self.target, used, Replay(), self.requests[:2], self.max_nodes)
        used.seen.clear()
        decode(self.target, used, Replay(), last, self.max_nodes)
        if not used.shares_state:
            require(used.seen == fresh.seen, "an earlier request changed what is drafted, and shares_state is False")

    def _compare(self, index: int, row: Row, where: str) -> None:
        plain = self.plain[index]
        require(
            row.new_tokens == plain,
            f"request {index} {where}: got {row.new_tokens}, plain decoding gives {plain}",
        )
