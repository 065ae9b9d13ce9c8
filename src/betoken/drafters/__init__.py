"""Drafters: one file each. `DRAFTERS` is the table of names."""

from betoken.drafters.draft_model import DraftModel
from betoken.drafters.drafter import Drafter
from betoken.drafters.plain import Plain
from betoken.drafters.prompt_lookup import PromptLookup
from betoken.drafters.suffix import Suffix

DRAFTERS: dict[str, type] = {
    "draft-model": DraftModel,
    "none": Plain,
    "prompt-lookup": PromptLookup,
    "suffix": Suffix,
}

__all__ = ["DRAFTERS", "Drafter"]
