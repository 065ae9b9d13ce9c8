"""Drafters: one file each. `DRAFTERS` is the table of names."""

from betoken.drafters.drafter import Drafter
from betoken.drafters.plain import Plain

DRAFTERS: dict[str, type] = {
    "none": Plain,
}

__all__ = ["DRAFTERS", "Drafter"]
