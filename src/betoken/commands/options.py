"""Options that several commands share, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from betoken.errors import InputError

DEFAULT_MODEL = "smollm2-135m"
SAMPLING, ENDING, MACHINE = "How tokens are picked", "When the answer ends", "Where it runs"

Model = Annotated[
    str, typer.Option("--model", help="Store name (see betoken models), folder, GGUF file, or Hub id (owner/name).")
]
DraftModel = Annotated[
    str | None, typer.Option("--draft-model", help="A smaller model of the same vocabulary; drafts for --model.")
]
DrafterName = Annotated[
    str | None,
    typer.Option("--drafter", help="See betoken drafters. Default: suffix, or draft-model with --draft-model."),
]
VerifierName = Annotated[
    str | None, typer.Option("--verifier", help="See betoken verifiers. Default: greedy at temperature 0, else replay.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="drafter.KEY=VALUE", help="A setting of the drafter or verifier (verifier.KEY=...)."),
]
MaxNewTokens = Annotated[
    int, typer.Option("--max-new-tokens", rich_help_panel=ENDING, help="Most tokens of the answer.")
]
Seed = Annotated[
    int, typer.Option("--seed", rich_help_panel=SAMPLING, help="The same seed gives the same text, with every drafter.")
]
Temperature = Annotated[float, typer.Option("--temperature", rich_help_panel=SAMPLING, help="0 is greedy.")]
TopK = Annotated[
    int, typer.Option("--top-k", rich_help_panel=SAMPLING, help="Keep the K most probable tokens; 0 keeps all.")
]
TopP = Annotated[
    float,
    typer.Option("--top-p", rich_help_panel=SAMPLING, help="Keep the most probable tokens that together reach P."),
]
MinP = Annotated[
    float,
    typer.Option("--min-p", rich_help_panel=SAMPLING, help="Keep tokens at least P times as probable as the best."),
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", rich_help_panel=ENDING, help="End before this text; may be given several times."),
]
StopId = Annotated[
    list[int] | None,
    typer.Option("--stop-id", rich_help_panel=ENDING, help="End with this token id; may be given several times."),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", rich_help_panel=ENDING, help="Go on after the model's own end tokens.")
]
MinNewTokens = Annotated[
    int, typer.Option("--min-new-tokens", rich_help_panel=ENDING, help="No end token before this many tokens.")
]
RepetitionPenalty = Annotated[
    float,
    typer.Option(
        "--repetition-penalty", rich_help_panel=SAMPLING, help="Above 1: less of what prompt and answer have already."
    ),
]
PresencePenalty = Annotated[
    float,
    typer.Option("--presence-penalty", rich_help_panel=SAMPLING, help="Taken off the logits of the answer's tokens."),
]
FrequencyPenalty = Annotated[
    float,
    typer.Option("--frequency-penalty", rich_help_panel=SAMPLING, help="The same, times how often a token came."),
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        "--logit-bias",
        metavar="ID=BIAS",
        rich_help_panel=SAMPLING,
        help="Added to a token's logit: -inf bans it, 1000 forces it; may be given several times.",
    ),
]
Budget = Annotated[
    float | None,
    typer.Option("--budget", help="Most regret that verifier asd may spend here. Default: its own budget setting."),
]
ShowExceptions = Annotated[
    bool,
    typer.Option("--show-exceptions", help="Colour and list the tokens that plain decoding would not have written."),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        rich_help_panel=MACHINE,
        help="int8, int4, float32 or bfloat16. Default: int8 where the CPU has the kernels.",
    ),
]
DraftDtype = Annotated[
    str | None,
    typer.Option(
        "--draft-dtype",
        rich_help_panel=MACHINE,
        help="The same for the draft model: int4 is the fastest. Default: --dtype.",
    ),
]
Device = Annotated[str, typer.Option("--device", rich_help_panel=MACHINE, help="cpu, cuda or cuda:N.")]
CudaGraphs = Annotated[
    bool,
    typer.Option(
        "--cuda-graphs/--no-cuda-graphs",
        rich_help_panel=MACHINE,
        help="On CUDA: record the passes of each shape once and replay them.",
    ),
]
Threads = Annotated[int | None, typer.Option("--threads", rich_help_panel=MACHINE, help="Cores to use. Default: all.")]
Nodes = Annotated[str, typer.Option("--nodes", help="Most tokens a step scores, or auto: what pays on this machine.")]
CacheDir = Annotated[Path | None, typer.Option("--cache-dir", help="Default: $BETOKEN_CACHE, else ~/.cache/betoken.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Let a Hub model run the Python code that comes with it.")
]
System = Annotated[str | None, typer.Option("--system", help="A system message in front.")]
Suites = Annotated[list[str], typer.Option("--suite", help="File or name; may be given several times.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder of named suites; else $BETOKEN_DATA.")]
Without = Annotated[
    list[Path] | None,
    typer.Option("--without", help="Leave out the rows that made this file of betoken calibrate."),
]
PlainText = Annotated[bool, typer.Option("--raw", help="Plain text instead of the chat template.")]
Out = Annotated[Path | None, typer.Option("--out", help="File of all answers; the same command continues it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def parse_set(texts: Sequence[str], owners: Sequence[str] = ("drafter", "verifier")) -> dict[str, dict[str, object]]:
    """`OWNER.KEY=VALUE` texts as {owner: {key: text}}. Raises InputError for another form or a key given twice."""
    settings: dict[str, dict[str, object]] = {owner: {} for owner in owners}
    for text in texts:
        name, equals, value = text.partition("=")
        owner, _, key = name.strip().partition(".")
        if not equals or owner not in settings or not key:
            forms = " or ".join(f"{owner}.KEY=VALUE" for owner in owners)
            raise InputError(f"--set {text}: write {forms}")
        if key in settings[owner]:
            raise InputError(f"--set {text}: {owner}.{key} is given twice")
        settings[owner][key] = value
    return settings


def parse_logit_bias(texts: Sequence[str]) -> dict[int, float]:
    """`ID=BIAS` texts as {id: bias}. Raises InputError for another form or an id given twice."""
    biases: dict[int, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            token, bias = int(name), float(value)
        except ValueError:
            raise InputError(f"--logit-bias {text}: write ID=BIAS, a token id and a number (-inf bans it)") from None
        if token in biases:
            raise InputError(f"--logit-bias {text}: token {token} is given twice")
        biases[token] = bias
    return biases


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    """Numbers separated by commas. Raises InputError for anything else."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option} {text}: write numbers, separated by commas") from None


def parse_whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """The same for whole numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option} {text}: write whole numbers, separated by commas") from None


def parse_nodes(text: str) -> int | Literal["auto"]:
    """`auto` or a whole number. Raises InputError for anything else."""
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--nodes must be auto or a whole number, not {text}") from None
