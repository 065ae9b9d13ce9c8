"""What is measured: a loaded model, and the ways of decoding with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol

from betoken.bench.suites import Question
from betoken.decode import Decoder
from betoken.drafters import DRAFTERS, Drafter
from betoken.drafters.draft_model import check_draft_dtype, check_vocabularies
from betoken.drafters.ptp import replaces_weights
from betoken.errors import InputError
from betoken.models.chat_template import ChatTemplate
from betoken.models.target import Target
from betoken.registry import create
from betoken.state import SamplingSettings
from betoken.tuning.auto import AutoNodes
from betoken.tuning.cost import CostModel
from betoken.tuning.cost import load as load_cost
from betoken.tuning.nodes import FixedNodes, NodePolicy
from betoken.tuning.timings import Timings
from betoken.verifiers import VERIFIERS, Verifier
from betoken.verifiers.replay import Replay

if TYPE_CHECKING:
    from betoken.models.load import Backend, Loaded

PLAIN = "none"
"""Label and drafter of plain decoding, which everything is measured against."""


class Codec(Protocol):
    """What questions need of a tokenizer (`models.tokenizer.Tokenizer` has it)."""

    @property
    def template(self) -> ChatTemplate:
        """What makes a prompt of chat messages."""

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of a text."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of token ids."""


@dataclass(frozen=True)
class ModelSpec:
    """Which model to load, and how."""

    model: str
    """Store name, folder, GGUF file, or Hub id."""
    draft_model: str | None = None
    dtype: str | None = None
    """None: the best that this machine has."""
    device: str = "cpu"
    threads: int | None = None
    """None: all cores."""
    in_torch: bool = False
    """Load it in the torch decoder, which alone takes a student of all weights; see `fit_for`."""
    draft_dtype: str | None = None
    """None: `dtype`."""

    def __post_init__(self) -> None:
        check_draft_dtype(self.draft_dtype, has_draft=self.draft_model is not None)

    def of_draft(self) -> ModelSpec:
        """The draft model alone. Raises ValueError if there is none."""
        if self.draft_model is None:
            raise ValueError("there is no draft model")
        dtype = self.draft_dtype or self.dtype
        return replace(self, model=self.draft_model, draft_model=None, dtype=dtype, draft_dtype=None)

    def alone(self) -> ModelSpec:
        """The target without its draft model."""
        return replace(self, draft_model=None, draft_dtype=None)

    def fit_for(self, methods: Iterable[Method]) -> ModelSpec:
        """The same model, ready for all these methods: where one has a student of all weights, in torch.

        Raises InputError for a student that cannot be read.
        """
        return replace(self, in_torch=any(replaces_weights(method.drafting) for method in methods))

    @property
    def label(self) -> str:
        """Its name in results: the last part of a path, and the dtype if one is asked for."""
        name = PurePath(self.model).name.removesuffix(".gguf")
        return f"{name} {self.dtype}" if self.dtype else name


@dataclass(frozen=True)
class Subject:
    """A loaded model."""

    target: Target
    codec: Codec
    draft: Target | None = None
    costs: Path | None = None
    """Folder where the measured times of this machine are kept, which nodes auto goes by."""

    @cached_property
    def timings(self) -> Timings:
        """The measured curve that nodes auto starts from, read or measured once.

        Raises InputError if there is no folder to keep it in.
        """
        if self.costs is None:
            raise InputError("nodes auto needs a folder for the times that it measures; name a node count")
        return load_cost(self.target, self.costs).timings

    def prompt(self, question: Question, *, raw: bool = False) -> list[int]:
        """Token ids of a question: through the chat template, or as plain text (`raw`, or a model without one)."""
        if raw or self.codec.template.source is None:
            return self.codec.encode(question.raw)
        return self.codec.encode(self.codec.template.apply(question.messages), add_special=False)


Loader = Callable[[ModelSpec], Subject]
"""Loads a model. Raises InputError if it cannot."""


@dataclass(frozen=True)
class Method:
    """One way of decoding: a drafter, a verifier, a node count."""

    label: str
    """Its name in results; unique among the methods of a run."""
    drafter: str = PLAIN
    settings: Mapping[str, object] = field(default_factory=dict)
    """The drafter's."""
    verifier: str = "replay"
    verifier_settings: Mapping[str, object] = field(default_factory=dict)
    nodes: int | str = 8
    """Most nodes of a step, or auto."""

    @classmethod
    def plain(cls) -> Method:
        """Plain decoding, under replay, which serves every temperature."""
        return cls(PLAIN, nodes=1)

    def check(self) -> None:
        """Raises InputError for unknown names, settings that do not fit, and node counts below 1."""
        _ = self.drafting, self.verifying
        if self.nodes != "auto" and (isinstance(self.nodes, bool | str) or self.nodes < 1):
            raise InputError(f"nodes must be auto or a whole number, at least 1, not {self.nodes!r}")

    @property
    def drafting(self) -> Drafter:
        """A new drafter with its settings, not started."""
        drafter: Drafter = create("drafter", DRAFTERS, self.drafter, self.settings)
        return drafter

    @property
    def verifying(self) -> Verifier:
        """The verifier with its settings; it holds no state."""
        verifier: Verifier = create("verifier", VERIFIERS, self.verifier, self.verifier_settings)
        return verifier

    def decoder(self, subject: Subject, rows: int = 1) -> Decoder:
        """A decoder with a drafter, a cache and a node policy of its own: nothing is shared with any other.

        `rows`: how many requests it decodes together. Raises InputError if the drafter does not fit the model.
        """
        drafter = self.drafting
        drafter.start(subject.target, subject.draft)
        return Decoder(subject.target, drafter, self.verifying, self._policy(subject), max_rows=rows)

    def describe(self) -> dict[str, Any]:
        """The method as JSON values."""
        return asdict(self)

    def same_tokens(self, temperature: float) -> bool:
        """Whether the verifier promises plain decoding's tokens, as `Method.plain` decodes at this temperature.

        Replay by another rule keeps the tokens of plain sampling by that rule, which are others.
        """
        verifying = self.verifying
        other_rule = isinstance(verifying, Replay) and verifying != Method.plain().verifying
        return verifying.exact and not (temperature > 0 and other_rule)

    def _policy(self, subject: Subject) -> NodePolicy:
        if not isinstance(self.nodes, str):
            return FixedNodes(self.nodes)
        return AutoNodes(CostModel(subject.timings))


def check_methods(methods: Sequence[Method]) -> None:
    """Raises InputError for an empty list, repeated labels, and whatever `Method.check` refuses."""
    if not methods:
        raise InputError("name at least one drafter (betoken drafters lists them)")
    seen: set[str] = set()
    for method in methods:
        if method.label in seen or (method.label == PLAIN and method != Method.plain()):
            raise InputError(f"two methods are called {method.label}; plain decoding ({PLAIN}) is always measured")
        seen.add(method.label)
        method.check()


def check_temperature(methods: Sequence[Method], temperature: float) -> None:
    """Raises InputError for a temperature that cannot be, or that a method's verifier cannot serve."""
    SamplingSettings(temperature)
    if temperature and any(method.verifier == "greedy" for method in methods):
        raise InputError(f"verifier greedy decodes at temperature 0, not {temperature:g}; use replay")


def load_subject(spec: ModelSpec) -> Subject:
    """The `Loader` for real models. Raises InputError for whatever `models.load.load_target` refuses."""
    from betoken.models.load import backend_for, load_target  # compiles kernels: slow to import
    from betoken.models.store import cache_root

    def load(one: ModelSpec, backend: Backend = "auto") -> Loaded:
        return load_target(one.model, dtype=one.dtype, device=one.device, threads=one.threads, backend=backend)

    loaded = load(spec, backend_for(spec.dtype, spec.device, in_torch=spec.in_torch))
    draft = None
    if spec.draft_model is not None:
        drafting = load(spec.of_draft())
        check_vocabularies(loaded.tokenizer, drafting.tokenizer)
        draft = drafting.target
    return Subject(loaded.target, loaded.tokenizer, draft, cache_root() / "cost")
