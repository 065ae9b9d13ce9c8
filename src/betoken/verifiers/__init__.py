"""Verifiers: one file each. `VERIFIERS` is the table of names."""

from betoken.state import Relaxation
from betoken.verifiers.asd import Asd
from betoken.verifiers.block import Block
from betoken.verifiers.lenience import Lenience
from betoken.verifiers.rejection import Rejection
from betoken.verifiers.relaxed import Fuzzy, Mars, TopKDelta, Typical
from betoken.verifiers.replay import Greedy, Replay
from betoken.verifiers.traversal import Traversal
from betoken.verifiers.verifier import RowVerdict, Verdict, Verifier

VERIFIERS: dict[str, type] = {
    "greedy": Greedy,
    "replay": Replay,
    "rejection": Rejection,
    "block": Block,
    "traversal": Traversal,
    "asd": Asd,
    "typical": Typical,
    "topk-delta": TopKDelta,
    "lenience": Lenience,
    "mars": Mars,
    "fuzzy": Fuzzy,
}

__all__ = ["VERIFIERS", "Relaxation", "RowVerdict", "Verdict", "Verifier"]
