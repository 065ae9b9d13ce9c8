"""Groups of options that several commands have: declared once, as dataclasses, with what commands do with them.

A command takes a group as one parameter and is marked `@grouped`; its command line has the group's fields as options.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from betoken.commands import options
from betoken.commands.prompts import Prompt, read_prompt
from betoken.errors import InputError

if TYPE_CHECKING:
    from betoken.bench.subject import Method, ModelSpec
    from betoken.engine import Engine
    from betoken.settings import GenerationSettings


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each parameter that is a dataclass replaced by the dataclass's fields.

    Raises ValueError where two parameters have the same name.
    """
    own = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {name: one.annotation for name, one in own.items() if is_dataclass(one.annotation)}
    flat = inspect.Signature(
        [
            option
            for name, one in own.items()
            for option in (_options(groups[name]) if name in groups else [_named(one)])
        ]
    )

    @wraps(command)
    def call(*args: object, **given: object) -> None:
        bound = flat.bind(*args, **given)  # which refuses names that are not there
        bound.apply_defaults()
        values = bound.arguments
        built = {name: group(**{f.name: values.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        command(**built, **values)

    call.__dict__["__signature__"] = flat  # what typer reads
    call.__annotations__ = {option.name: option.annotation for option in flat.parameters.values()}
    return call


def _named(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if f.default is MISSING else f.default,
            annotation=hints[f.name],
        )
        for f in fields(group)
    ]


@dataclass(frozen=True, kw_only=True)
class Asking:
    """Where a prompt comes from."""

    source: Annotated[str | None, typer.Argument(metavar="-", help="Read the prompt from standard input.")] = None
    prompt: Annotated[str | None, typer.Option("--prompt", help="The prompt.")] = None
    prompt_file: Annotated[Path | None, typer.Option("--prompt-file", help="A UTF-8 text file.")] = None
    messages: Annotated[
        Path | None, typer.Option("--messages", help='JSON file: [{"role": "user", "content": "..."}, ...].')
    ] = None
    system: options.System = None
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False

    def read(self) -> Prompt:
        """The prompt. Raises InputError as `read_prompt` does."""
        return read_prompt(self.source, self.prompt, self.prompt_file, self.messages, system=self.system, raw=self.raw)


@dataclass(frozen=True, kw_only=True)
class Writing:
    """How tokens are picked and when the answer ends."""

    max_new_tokens: options.MaxNewTokens = 256
    seed: options.Seed = 0
    temperature: options.Temperature = 0.0
    top_k: options.TopK = 0
    top_p: options.TopP = 1.0
    min_p: options.MinP = 0.0
    repetition_penalty: options.RepetitionPenalty = 1.0
    presence_penalty: options.PresencePenalty = 0.0
    frequency_penalty: options.FrequencyPenalty = 0.0
    logit_bias: options.LogitBias = None
    stop: options.Stop = None
    stop_id: options.StopId = None
    ignore_eos: options.IgnoreEos = False
    min_new_tokens: options.MinNewTokens = 0
    budget: options.Budget = None

    def settings(self, logprobs: int | None = None) -> GenerationSettings:
        """The same for the engine. Raises InputError for bad values."""
        from betoken.settings import GenerationSettings

        return GenerationSettings(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=options.parse_logit_bias(self.logit_bias or ()),
            stop=self.stop or (),
            stop_ids=self.stop_id or (),
            ignore_eos=self.ignore_eos,
            min_new_tokens=self.min_new_tokens,
            logprobs=logprobs,
            budget=self.budget,
        )


@dataclass(frozen=True, kw_only=True)
class Cores:
    """How much of the machine torch may use."""

    threads: options.Threads = None

    def use(self) -> None:
        """Let torch use so many cores. Raises InputError for less than one."""
        if self.threads is None:
            return
        if self.threads < 1:
            raise InputError(f"threads must be at least 1, not {self.threads}")
        import torch

        torch.set_num_threads(self.threads)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where and how a model is computed."""

    dtype: options.Dtype = None
    device: options.Device = "cpu"
    threads: options.Threads = None


@dataclass(frozen=True, kw_only=True)
class Loading(Machine):
    """Which model, and how it decodes."""

    model: options.Model = options.DEFAULT_MODEL
    draft_model: options.DraftModel = None
    draft_dtype: options.DraftDtype = None
    drafter: options.DrafterName = None
    verifier: options.VerifierName = None
    set_: options.Set = None
    nodes: options.Nodes = "auto"
    cache_dir: options.CacheDir = None
    cuda_graphs: options.CudaGraphs = True
    trust_remote_code: options.TrustRemoteCode = False

    def open(self) -> Engine:
        """`betoken.load`, with a bar while a model is fetched."""
        chosen = options.parse_set(self.set_ or ())
        count = options.parse_nodes(self.nodes)
        from betoken.loading import load  # imports torch
        from betoken.models.files import BarProgress

        engine = load(
            self.model,
            draft_model=self.draft_model,
            drafter=self.drafter,
            verifier=self.verifier,
            drafter_settings=chosen["drafter"],
            verifier_settings=chosen["verifier"],
            dtype=self.dtype,
            draft_dtype=self.draft_dtype,
            device=self.device,
            threads=self.threads,
            nodes=count,
            cache_dir=self.cache_dir,
            trust_remote_code=self.trust_remote_code,
            cuda_graphs=self.cuda_graphs,
            progress=BarProgress(),
        )
        gc.freeze()  # all this stays: a collection that walks it stops an answer for half a second
        return engine


@dataclass(frozen=True, kw_only=True)
class Measured(Machine):
    """Which models are measured or judged."""

    model: options.Model = options.DEFAULT_MODEL
    draft_model: options.DraftModel = None
    draft_dtype: options.DraftDtype = None

    def spec(self) -> ModelSpec:
        """The same for the bench. Raises InputError for the dtype of a draft model that is not there."""
        from betoken.bench.subject import ModelSpec

        return ModelSpec(
            self.model, self.draft_model, self.dtype, self.device, self.threads, draft_dtype=self.draft_dtype
        )


@dataclass(frozen=True, kw_only=True)
class OneMethod(Measured):
    """Which models are measured or judged, with one way of decoding."""

    drafter: options.DrafterName = None
    verifier: options.VerifierName = None
    set_: options.Set = None
    nodes: options.Nodes = "8"

    def method(self, verifier: str = "replay") -> Method:
        """The way of decoding; `verifier` if none is named. Raises InputError for what does not exist."""
        return method_of(self.draft_model, self.drafter, self.verifier or verifier, self.set_ or (), self.nodes)


@dataclass(frozen=True, kw_only=True)
class Suites:
    """Where questions come from."""

    suite: options.Suites
    data: options.Data = None

    def paths(self) -> tuple[Path, ...]:
        """The files of the suites. Raises InputError for a suite that is not there."""
        from betoken.bench.suites import find_suite

        return tuple(find_suite(name, self.data) for name in self.suite)


@dataclass(frozen=True, kw_only=True)
class Questions(Suites):
    """Which questions are asked, and how."""

    rows: Annotated[int | None, typer.Option(help="Questions of each suite, drawn; all if not given.")] = None
    without: options.Without = None
    max_new_tokens: Annotated[int, typer.Option(help="Most new tokens of an answer.")] = 512
    batch: Annotated[int, typer.Option(help="Questions answered together.")] = 8
    seed: Annotated[int, typer.Option(help="Of the draw, and of the sampling.")] = 0
    raw: options.PlainText = False

    def settings(self) -> dict[str, Any]:
        """The same as fields of the bench's settings. Raises InputError for a suite that is not there."""
        told = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("suite", "data")}
        return told | {"suites": self.paths(), "without": tuple(self.without or ())}


def method_of(
    draft_model: str | None, drafter: str | None, verifier: str, settings: Sequence[str], nodes: str
) -> Method:
    """The way of decoding that options ask for. Raises InputError for names and settings that do not exist."""
    from betoken.bench.subject import Method

    name = drafter or ("suffix" if draft_model is None else "draft-model")
    own = options.parse_set(settings)
    count = 1 if name == "none" else options.parse_nodes(nodes)
    method = Method(name, name, own["drafter"], verifier, own["verifier"], count)
    method.check()
    return method
