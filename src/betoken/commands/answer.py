"""`betoken answer`: a small model drafts a whole answer, a large one judges how much of it to keep."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands import options
from betoken.commands.prompts import read_prompt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from betoken.answers import AnswerResult, Event
    from betoken.engine import Engine

HELP = """Answer one prompt with two models: --draft-model writes an answer, --model judges how much of it to keep and \
writes the rest.

[bold]Examples[/bold]

  betoken answer --model qwen2.5-coder-1.5b --draft-model qwen2.5-coder-0.5b --prompt "What is 17 * 23?"

  betoken answer --model qwen2.5-coder-1.5b --draft-model smollm2-135m --set answer.boundaries=line --prompt-file q.txt

  betoken answer --method cascade --set answer.threshold=0.8 --model qwen2.5-coder-1.5b \
--draft-model qwen2.5-coder-0.5b --json -

The answer goes to standard output; in a terminal the draft appears before it on standard error. Unlike generate, this
does not write what --model alone would have written."""

MethodName = Annotated[
    str,
    typer.Option("--method", help="parse, cascade, specreason, speculative-thinking; draft, target: one model alone."),
]
Drafting = Annotated[
    str | None, typer.Option("--draft-model", help="Writes the draft; may have another tokenizer than --model.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="answer.KEY=VALUE", help="A setting of the method, or of --model's drafter. or verifier."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(help=HELP)(answer)


def answer(
    source: Annotated[str | None, typer.Argument(metavar="-", help="Read the prompt from standard input.")] = None,
    method: MethodName = "parse",
    model: options.Model = options.DEFAULT_MODEL,
    draft_model: Drafting = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="The prompt.")] = None,
    prompt_file: Annotated[Path | None, typer.Option("--prompt-file", help="A UTF-8 text file.")] = None,
    messages: Annotated[
        Path | None, typer.Option("--messages", help='JSON file: [{"role": "user", "content": "..."}, ...].')
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="A system message in front.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    max_new_tokens: options.MaxNewTokens = 256,
    seed: options.Seed = 0,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    stop: options.Stop = None,
    drafter: Annotated[
        str | None, typer.Option("--drafter", help="Speeds up what both models write. Default: suffix.")
    ] = None,
    verifier: options.VerifierName = None,
    budget: options.Budget = None,
    set_: Set = None,
    nodes: options.Nodes = "auto",
    dtype: options.Dtype = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    cache_dir: options.CacheDir = None,
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.AsJson = False,
) -> None:
    asked = read_prompt(source, prompt, prompt_file, messages, system=system, raw=raw)
    chosen = options.parse_set(set_ or (), ("answer", "drafter", "verifier"))
    count = options.parse_nodes(nodes)
    from betoken.answers import check, stream
    from betoken.engine import load
    from betoken.models.files import BarProgress
    from betoken.settings import GenerationSettings

    drafts = check(method, chosen["answer"], has_draft=draft_model is not None)
    settings = GenerationSettings(  # refuses bad values before a model is loaded
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        stop=stop or (),
        budget=budget,
    )

    def opened(name: str, verifier: str | None, verifier_settings: dict[str, object]) -> Engine:
        return load(
            name,
            drafter=drafter,
            verifier=verifier,
            drafter_settings=chosen["drafter"],
            verifier_settings=verifier_settings,
            dtype=dtype,
            device=device,
            threads=threads,
            nodes=count,
            cache_dir=cache_dir,
            trust_remote_code=trust_remote_code,
            progress=BarProgress(),
        )

    target = opened(model, verifier, chosen["verifier"])
    events = stream(
        asked,
        method=method,
        target=target,
        draft=opened(draft_model, None, {}) if drafts and draft_model is not None else None,
        raw=raw,
        method_settings=chosen["answer"],
        settings=settings,
    )
    if as_json:
        print(json.dumps(asdict(events.finish()), ensure_ascii=False))  # noqa: T201
        return
    write(events)
    print(summary(events.result), file=sys.stderr)  # noqa: T201


def write(events: Iterable[Event]) -> None:
    """The answer to standard output as it comes, the draft before it to standard error if that is a terminal."""
    shows_draft = sys.stderr.isatty()
    drafted = False
    for event in events:
        if event.kind == "draft":
            if shows_draft:
                sys.stderr.write(typer.style(event.text, dim=True))
                sys.stderr.flush()
                drafted = True
            continue
        if drafted:
            sys.stderr.write("\n\n")
            sys.stderr.flush()
            drafted = False
        sys.stdout.write(event.text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


def summary(result: AnswerResult) -> str:
    """The statistics of an answer in one line."""
    stats = result.stats
    told = f"{stats.method}: {len(result.tokens)} tokens in {stats.total_s:.2f} s, {stats.tokens_per_s:.1f}/s"
    if stats.draft_model is None:
        return f"{told} · {stats.model} {stats.dtype}"
    kept = "the whole draft" if stats.accepted_whole else f"{stats.kept_fraction:.0%} of the draft"
    judged = "" if stats.confidence is None else f" at confidence {stats.confidence:.3f}"
    return (
        f"{told} · kept {kept}{judged} · judged in {stats.judge_forwards} forwards of {stats.judge_nodes} nodes · "
        f"draft {stats.draft_s:.2f} s, judge {stats.judge_s:.2f} s, target {stats.target_s:.2f} s · "
        f"{stats.draft_model} + {stats.model} {stats.dtype}"
    )
