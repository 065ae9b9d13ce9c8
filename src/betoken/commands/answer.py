"""`betoken answer`: a small model drafts a whole answer, a large one judges how much of it to keep."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands import options, remote
from betoken.commands.prompts import read_prompt
from betoken.errors import BetokenError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from betoken.answers import AnswerResult, Event
    from betoken.engine import Engine
    from betoken.remote import RemoteModel

HELP = """Answer one prompt with two models: --draft-model writes an answer, --model judges how much of it to keep and \
writes the rest.

[bold]Examples[/bold]

  betoken answer --model qwen2.5-coder-1.5b --draft-model qwen2.5-coder-0.5b --prompt "What is 17 * 23?"

  betoken answer --model qwen2.5-coder-1.5b --draft-model smollm2-135m --set answer.boundaries=line --prompt-file q.txt

  betoken answer --model http://127.0.0.1:8080/v1 --draft-model smollm2-135m --prompt "What is 17 * 23?"

  betoken answer --method cascade --set answer.threshold=0.8 --model qwen2.5-coder-1.5b \
--draft-model qwen2.5-coder-0.5b --json -

Either model may be a server's: http://HOST:PORT/v1 of any that speaks OpenAI's API, #NAME behind it if it has more. \
The answer goes to standard output; in a terminal the draft appears before it on standard error. Unlike generate, this
does not write what --model alone would have written."""

Given = Mapping[str, bool]
"""Options, and whether each was given."""
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
    tokenizer: remote.Tokenizer = None,
    api_key: remote.ApiKey = None,
    timeout: remote.Timeout = None,
    connect_timeout: remote.ConnectTimeout = None,
    retries: remote.Retries = None,
    as_json: options.AsJson = False,
) -> None:
    asked = read_prompt(source, prompt, prompt_file, messages, system=system, raw=raw)
    chosen = options.parse_set(set_ or (), ("answer", "drafter", "verifier"))
    count = options.parse_nodes(nodes)
    from betoken.answers import check, stream
    from betoken.engine import load
    from betoken.models.files import BarProgress
    from betoken.remote import is_url
    from betoken.settings import GenerationSettings

    far = is_url(model)
    drafts = check(method, chosen["answer"], has_draft=draft_model is not None, over_http=far)
    names = [model, draft_model] if drafts and draft_model is not None else [model]
    _refuse(
        {"--tokenizer": tokenizer is not None},
        {
            "--verifier": verifier is not None,
            "--budget": budget is not None,
            "--set verifier": bool(chosen["verifier"]),
        },
        {
            "--drafter": drafter is not None,
            "--set drafter": bool(chosen["drafter"]),
            "--nodes": nodes != "auto",
            "--dtype": dtype is not None,
            "--device": device != "cpu",
            "--threads": threads is not None,
        },
        {
            "--timeout": timeout is not None,
            "--connect-timeout": connect_timeout is not None,
            "--retries": retries is not None,
        },
        [is_url(name) for name in names],
    )
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

    with ExitStack() as stack:
        servers: dict[str, RemoteModel] = {}
        for name in dict.fromkeys(filter(is_url, names)):  # before models are loaded: a dead server is told at once
            servers[name] = remote.open_remote(
                name,
                tokenizer=tokenizer if name == model else None,
                api_key=api_key,
                timeout=timeout,
                connect_timeout=connect_timeout,
                retries=retries,
                cache_dir=cache_dir,
            )
            stack.callback(servers[name].close)
        events = stream(
            asked,
            method=method,
            target=servers[model] if far else opened(model, verifier, chosen["verifier"]),
            draft=None if len(names) == 1 else servers.get(names[1]) or opened(names[1], None, {}),
            raw=raw,
            method_settings=chosen["answer"],
            settings=settings,
        )
        if as_json:
            print(json.dumps(asdict(events.finish()), ensure_ascii=False))  # noqa: T201
            return
        write(events)
        print(summary(events.result), file=sys.stderr)  # noqa: T201


def _refuse(target_far: Given, target_here: Given, some_here: Given, some_far: Given, far: Sequence[bool]) -> None:
    """Raises InputError for options that say nothing about models of which these are behind HTTP, the target first."""
    if not far[0]:
        remote.refuse(target_far, "is for a --model behind HTTP; a model here has its own")
    else:
        remote.refuse(target_here, "is for a --model on this machine, not behind HTTP")
    if all(far):
        remote.refuse(some_here, "is for models on this machine; none of these is")
    if not any(far):
        remote.refuse(some_far, "is for models behind HTTP: http://HOST:PORT/v1")


def write(events: Iterable[Event]) -> None:
    """The answer to standard output as it comes, the draft before it to standard error if that is a terminal."""
    shows_draft = sys.stderr.isatty()
    drafted = wrote = False
    try:
        for event in events:
            if not event.text:
                continue
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
            wrote = True
    except BetokenError:  # what is told of it begins a line of its own
        if drafted:
            sys.stderr.write("\n")
        if wrote:
            sys.stdout.write("\n")
            sys.stdout.flush()
        raise
    sys.stdout.write("\n")
    sys.stdout.flush()


def summary(result: AnswerResult) -> str:
    """The statistics of an answer in one line."""
    stats = result.stats
    count = len(result.tokens) or stats.kept_tokens + stats.target_tokens
    told = f"{stats.method}: {count} tokens in {stats.total_s:.2f} s, {stats.tokens_per_s:.1f}/s"
    if stats.draft_model is None:
        alone = "" if stats.fallback is None else f" · the target alone: {stats.fallback}"
        return f"{told} · {stats.model} {stats.dtype}{alone}"
    kept = "the whole draft" if stats.accepted_whole else f"{stats.kept_fraction:.0%} of the draft"
    judged = "" if stats.confidence is None else f" at confidence {stats.confidence:.3f}"
    return (
        f"{told} · kept {kept}{judged} · judged in {stats.judge_forwards} forwards of {stats.judge_nodes} nodes · "
        f"draft {stats.draft_s:.2f} s, judge {stats.judge_s:.2f} s, target {stats.target_s:.2f} s · "
        f"{stats.draft_model} + {stats.model} {stats.dtype}"
    )
