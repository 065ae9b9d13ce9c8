"""What a method of answering is: it reads a question and writes an answer with two models, one event at a time."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from betoken.answers.packed import Docket
from betoken.answers.plan import Plan
from betoken.engine import Engine
from betoken.errors import InputError
from betoken.models.chat_template import Prompt
from betoken.remote import RemoteModel
from betoken.settings import GenerationSettings
from betoken.state import FinishReason


@dataclass(frozen=True)
class Question:
    """What is asked, and who answers."""

    prompt: Prompt
    target: Engine
    draft: Engine | RemoteModel | None
    settings: GenerationSettings
    raw: bool = False
    docket: Docket = field(default_factory=Docket)
    """Of the questions that are answered together, which wait for one another's judge passes."""

    def draft_here(self, method: str) -> Engine:
        """The draft model, for a method that needs its tokens. Raises InputError if it is elsewhere, or nowhere."""
        if self.draft is None:
            raise InputError(f"method {method} needs a draft model: --draft-model")
        if isinstance(self.draft, RemoteModel):
            raise InputError(f"method {method} needs --draft-model on this machine: over HTTP use parse or cascade")
        return self.draft


def check_settings(settings: GenerationSettings) -> None:
    """Raises InputError for what an answer of two models cannot tell, wherever they are."""
    if settings.logprobs is not None:
        raise InputError("an answer of two models has no log-probabilities to report: leave logprobs out")


def name_of(model: Engine | RemoteModel) -> str:
    """What a model is called in reports."""
    return model.name if isinstance(model, RemoteModel) else model.target.name


@dataclass(frozen=True)
class Event:
    """What a reader sees next."""

    kind: Literal["draft", "judging", "kept", "text"]
    """`draft`: more text of a draft, which nobody has judged yet. `judging`: the judge reads now; no text. `kept`: the
    part of the draft that stands, maybe none. `text`: more text that the target wrote. Each text may be empty; the
    answer is what was kept and written, in this order."""
    text: str


@dataclass(frozen=True)
class AnswerStats:
    """What an answer cost and what became of its draft. Tokens are the target's unless another model is named."""

    method: str
    accepted_whole: bool
    """Whether the draft is the answer."""
    kept_fraction: float
    """kept_tokens / tokens of the draft; 0 where nothing was drafted."""
    confidence: float | None
    """The judge's, in the whole draft; None where it was not asked."""
    prefix_confidences: tuple[tuple[int, float], ...]
    """(tokens, confidence) of each prefix that was judged, shortest first."""
    draft_tokens: int
    """Tokens that the draft model wrote, in its own tokens."""
    kept_tokens: int
    target_tokens: int
    """Tokens that the target wrote."""
    judge_forwards: int
    """Forward passes of the judge; requests where the target is behind HTTP."""
    judge_nodes: int
    """Tokens scored to judge: the draft and the suffix copies, and in layout prompt the judge's own prompt. Of a target
    behind HTTP: tokens of the judge's requests that were not in its cache, as far as it tells."""
    target_forwards: int
    """Forwards in which the target wrote; requests where it is behind HTTP."""
    draft_s: float
    judge_s: float
    """Includes the target's prefill of the prompt in layout suffix."""
    target_s: float
    total_s: float
    tokens_per_s: float
    """Tokens of the answer / total_s, prefills included."""
    lossless: bool
    """Whether the answer follows the law of the target's own plain decoding; never said of a target behind HTTP."""
    model: str
    draft_model: str | None
    drafter: str
    verifier: str
    dtype: str
    """"server", as the two before, where the target is behind HTTP."""
    threads: int
    """0 where the target is behind HTTP."""
    plan: Plan | None = None
    """How the (last) draft was judged; None where nothing was."""
    resumed: int = 0
    """How often the draft model went on after the target."""
    fallback: str | None = None
    """Why the target answered alone, by the method's calibration; None where it did not."""


@dataclass(frozen=True)
class AnswerResult:
    """One answer."""

    text: str
    tokens: list[int]
    """Of the target's tokenizer; none where the target is behind HTTP."""
    prompt_tokens: int
    finish_reason: FinishReason | None
    stats: AnswerStats

    def __str__(self) -> str:
        """The text."""
        return self.text


Writing = Generator[Event, None, AnswerResult]
"""Events until the answer is there, which is what the generator returns."""


class Method(Protocol):
    """A dataclass whose fields are its settings."""

    @property
    def name(self) -> str:
        """Its name in the table and in every report."""

    @property
    def drafts(self) -> bool:
        """Whether it needs a draft model."""

    def write(self, question: Question) -> Writing:
        """Answer the question. Raises InputError for a question or settings that it cannot serve."""
