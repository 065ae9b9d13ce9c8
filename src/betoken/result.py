"""What an answer is made of, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

from betoken.state import FinishReason, Relaxation


@dataclass(frozen=True)
class Stats:
    """What an answer cost. Times are seconds; those of a step are shared by all rows decoded in it."""

    forwards: int
    """Target forwards of decoding, prefill apart."""
    committed: int
    """Tokens returned."""
    acceptance_length: float
    """committed / forwards: exactly 1.0 for plain decoding."""
    nodes_per_forward: float
    """Mean size of the trees that were scored, the pending token included."""
    draft_s: float
    target_s: float
    verify_s: float
    prefill_s: float
    """From the prompt to the first forward of decoding."""
    tokens_per_s: float
    """committed / (draft_s + target_s + verify_s): the speed of decoding, prefill apart."""
    lossless: bool
    """Whether the answer follows the law of plain decoding."""
    exact: bool
    """Whether these are the very tokens of plain decoding, by construction."""
    reproducible: bool
    """Whether the same call gives the same tokens again."""
    drafter: str
    verifier: str
    model: str
    dtype: str
    threads: int


@dataclass(frozen=True)
class Alternative:
    """A token and how probable it was, under the logits after penalties and bias and before the temperature."""

    token: int
    text: str
    """What the token adds to the text, a special token's name included; half a character is U+FFFD."""
    logprob: float
    """Natural logarithm of the probability."""


@dataclass(frozen=True)
class Logprob(Alternative):
    """A committed token and the most probable tokens at its place."""

    top: tuple[Alternative, ...]
    """As many as were asked for, best first; banned tokens never."""


@dataclass(frozen=True)
class RelaxedToken(Relaxation):
    """An exception that a relaxed verifier made, with the texts of both tokens."""

    chosen_text: str
    preferred_text: str


@dataclass(frozen=True)
class Chunk:
    """What one committed token adds to the text; may be nothing yet."""

    text: str
    token: int
    finish_reason: FinishReason | None = None
    """Set on the last chunk of an answer."""
    logprob: Logprob | None = None
    """If log-probabilities were asked for."""
    exception: RelaxedToken | None = None
    """Set if plain decoding would not have committed this token here."""
    budget_spent: float = 0.0
    budget_left: float | None = None
    """The two as in `Result`, after this token."""

    def __str__(self) -> str:
        """The text."""
        return self.text


@dataclass(frozen=True)
class Result:
    """One answer."""

    text: str
    """The text of `tokens` without special tokens, cut before a stop string."""
    tokens: list[int]
    """New token ids; an end token, and the token that completed a stop string, are the last of them."""
    prompt_tokens: int
    """How many tokens the prompt has."""
    finish_reason: FinishReason | None
    """stop, length or context; None for an answer that was broken off."""
    stats: Stats
    sample: int = 0
    """Which of the prompt's samples this is."""
    logprobs: list[Logprob] | None = None
    """One for each of `tokens`, if they were asked for."""
    exceptions: tuple[RelaxedToken, ...] = ()
    """The tokens that plain decoding would not have committed there; none from a lossless verifier."""
    budget_spent: float = 0.0
    """Regret of the exceptions, in the verifier's unit."""
    budget_left: float | None = None
    """Regret that could still have been spent; None from a verifier that has no budget."""

    def __str__(self) -> str:
        """The text."""
        return self.text
