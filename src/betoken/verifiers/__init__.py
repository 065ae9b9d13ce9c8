"""Verifiers: one file each. `VERIFIERS` is the table of names."""

from betoken.verifiers.replay import Greedy, Replay
from betoken.verifiers.verifier import Relaxation, RowVerdict, Verdict, Verifier

VERIFIERS: dict[str, type] = {
    "greedy": Greedy,
    "replay": Replay,
}

__all__ = ["VERIFIERS", "Relaxation", "RowVerdict", "Verdict", "Verifier"]
