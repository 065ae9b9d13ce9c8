"""Rows and scores made by hand, for tests of verifiers."""

from __future__ import annotations

import numpy as np
import torch

from betoken.models.target import Scores
from betoken.state import Ledger, Relaxation, Row, SamplingSettings, StopSettings
from betoken.tree import TokenTree

EOS = 0


def make_row(b=0, *, sampling=None, spent=0.0, budget=None, ends=(EOS,)):
    ledger = Ledger(budget, [Relaxation(0, 1, 2, spent)] if spent else [])
    return Row(b, b, np.array([1]), sampling or SamplingSettings(), StopSettings(), frozenset(ends), 99, ledger=ledger)


def score(tree: TokenTree, rows) -> Scores:
    """Scores with logits rows[b][node] for each node."""
    index, flat = np.full(tree.tokens.shape, -1), []
    for b, logits in enumerate(rows):
        for node in range(int(tree.counts[b])):
            index[b, node] = len(flat)
            flat.append(logits[node])
    return Scores(torch.tensor(np.array(flat, dtype=np.float32)), index)
