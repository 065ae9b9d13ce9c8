"""What judging can bring: expected speed against the target alone, with a perfect judge and with this one.

Prices are measured forward passes of both models; what is known of each question is how long its draft is and what
the judge said. Neither model's own speculation is counted, on either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from betoken.answers.boundaries import spread
from betoken.answers.plan import Rates


@dataclass(frozen=True)
class Case:
    """One drafted answer before the judge. Tokens are the target's unless another model is named."""

    right: bool
    prompt: int
    """Tokens of the target's own prompt."""
    before: int
    """Tokens that the judge reads in front of the draft."""
    suffix: int
    draft: int
    draft_own: int
    """Tokens that the draft model wrote, in its own tokens."""
    target: int
    """Length of the target's own answer; where it is not known, the draft's."""
    ends: tuple[int, ...]
    """Boundaries of the draft."""
    confidences: tuple[float, ...]
    """In the prefixes up to each of them, and in the whole."""
    again: int = 0
    """Tokens of the prompt that the target reads again after a rejection."""

    @property
    def whole(self) -> float:
        """Confidence in the whole draft."""
        return self.confidences[-1]

    def kept(self, threshold: float, most: int) -> tuple[int, int]:
        """Tokens kept of the draft where it is not accepted (first failure), and prefixes judged."""
        known = dict(zip(self.ends, self.confidences, strict=False))
        chosen = spread(self.ends, most)
        kept = 0
        for end in chosen:
            if known[end] <= threshold:
                break
            kept = end
        return kept, len(chosen)


@dataclass(frozen=True)
class Costs:
    """Prices of both models."""

    target: Rates
    draft: Rates

    def alone(self, case: Case) -> float:
        """Seconds of the target's own answer."""
        return self.target.scored(case.prompt) + case.target * self.target.token

    def drafted(self, case: Case) -> float:
        """Seconds of writing the draft."""
        return self.draft.scored(case.prompt) + case.draft_own * self.draft.token

    def judged(self, case: Case, *, accepted: bool, kept: int, copies: int) -> float:
        """Seconds of drafting, judging (in the cheaper of one and two passes) and writing the rest."""
        text = case.before + case.draft + case.suffix
        two = self.target.scored(text) + (0.0 if accepted else self.target.scored(copies * case.suffix))
        seconds = self.drafted(case) + min(two, self.target.scored(text + copies * case.suffix))
        if accepted:
            return seconds
        again = self.target.scored(case.again + kept) if case.again else 0.0
        return seconds + again + max(0, case.target - kept) * self.target.token


class Deciding(Protocol):
    """What becomes of a draft."""

    def __call__(self, case: Case) -> tuple[bool, int, int]:
        """Whether it is accepted whole; tokens kept where it is not; prefixes judged."""


def by_confidence(threshold: float, most: int) -> Deciding:
    """This judge: whole drafts and prefixes of more confidence than `threshold`, at most `most` prefixes."""

    def decide(case: Case) -> tuple[bool, int, int]:
        kept, copies = case.kept(threshold, most)
        return case.whole > threshold, kept, copies

    return decide


def perfect(case: Case) -> tuple[bool, int, int]:
    """A judge that accepts right drafts, those alone, and keeps nothing of wrong ones."""
    return case.right, 0, 0


def speed_up(cases: Sequence[Case], decide: Deciding, costs: Costs) -> float:
    """Seconds of the target alone over seconds with a judge, all questions together."""
    alone = sum(costs.alone(case) for case in cases)
    judged = 0.0
    for case in cases:
        accepted, kept, copies = decide(case)
        judged += costs.judged(case, accepted=accepted, kept=kept, copies=copies)
    return alone / judged
