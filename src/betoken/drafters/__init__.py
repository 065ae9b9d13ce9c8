"""Drafters: one file each. `DRAFTERS` is the table of names."""

from betoken.drafters.draft_model import DraftModel
from betoken.drafters.drafter import Drafter
from betoken.drafters.lookahead import Lookahead
from betoken.drafters.plain import Plain
from betoken.drafters.prompt_lookup import PromptLookup
from betoken.drafters.ptd import PTD
from betoken.drafters.ptp import PTP
from betoken.drafters.self_draft import SelfDraft
from betoken.drafters.suffix import Suffix
from betoken.drafters.token_recycling import TokenRecycling

DRAFTERS: dict[str, type] = {
    "draft-model": DraftModel,
    "lookahead": Lookahead,
    "none": Plain,
    "prompt-lookup": PromptLookup,
    "ptd": PTD,
    "ptp": PTP,
    "self-draft": SelfDraft,
    "suffix": Suffix,
    "token-recycling": TokenRecycling,
}

__all__ = ["DRAFTERS", "Drafter"]
