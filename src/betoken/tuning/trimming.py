"""Which nodes of the proposed trees are worth scoring."""

from __future__ import annotations

from collections.abc import Sequence

from betoken.tuning.account import Account, Proposed, mean_rate
from betoken.tuning.cost import Prices


def select(accounts: Sequence[Account], proposed: Sequence[Proposed], fixed: int, prices: Prices) -> None:
    """Keep the most probable nodes of all rows, as many as maximise expected tokens minus rate x time.

    Sets `keep` of the proposed trees whose nodes are judged; `fixed` is the number of nodes that are scored anyhow:
    those of all other trees, and the pending tokens. Rows of the batch that are not among the accounts rest.
    """
    chances = [chance for tree in proposed for chance in tree.chances]
    order = sorted(range(len(chances)), key=chances.__getitem__, reverse=True)
    rate = mean_rate(accounts, prices.rows)
    gained, best, taken = 0.0, 0.0, 0
    steps = prices.ahead(fixed, len(order))
    for size, node in enumerate(order):
        gained += chances[node]
        value = gained - rate * steps[size]
        if value > best:
            best, taken = value, size + 1
    each = steps[taken - 1] / taken if taken else 0.0
    first = 0
    for account, tree in zip(accounts, proposed, strict=True):
        own = len(tree.chances)
        if own:
            mine = [node - first + 1 for node in order[:taken] if first <= node < first + own]
            left = max(account.credit - account.stake, 0.0)
            while mine and left + 1e-9 < (steps[len(mine) - 1] if len(accounts) == 1 else each * len(mine)):
                mine.pop()
            if account.looking and not mine and steps[0] <= min(account.purse, left):
                mine.append(1 + max(range(own), key=tree.chances.__getitem__))
            tree.keep = [0, *sorted(mine)]
            first += own
