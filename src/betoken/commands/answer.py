"""`betoken answer`: a small model drafts a whole answer, a large one judges how much of it to keep."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands import options, remote
from betoken.commands.groups import Asking, Loading, Writing, grouped
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


@dataclass(frozen=True, kw_only=True)
class Pair(Loading):
    """Which two models answer, and how each decodes."""

    draft_model: Drafting = None
    drafter: Annotated[
        str | None, typer.Option("--drafter", help="Speeds up what both models write. Default: suffix.")
    ] = None
    set_: Set = None

    def method_settings(self) -> dict[str, object]:
        """Those of the method. Raises InputError for a --set or --nodes of no meaning."""
        options.parse_nodes(self.nodes)
        return options.parse_set(self.set_ or (), ("answer", "drafter", "verifier"))["answer"]

    def settings_of(self, *owners: str) -> list[str]:
        """What --set says of them."""
        return [text for text in self.set_ or () if text.partition(".")[0].strip() in owners]

    def open_target(self) -> Engine:
        """The model that judges."""
        return replace(self, draft_model=None, draft_dtype=None, set_=self.settings_of("drafter", "verifier")).open()

    def open_draft(self, name: str) -> Engine:
        """The model that drafts, by a lossless verifier."""
        dtype, drafting = self.draft_dtype or self.dtype, self.settings_of("drafter")
        alone = replace(self, model=name, draft_model=None, dtype=dtype, draft_dtype=None)
        return replace(alone, verifier=None, set_=drafting).open()


@grouped
def answer(
    method: MethodName = "parse",
    *,
    asking: Asking,
    pair: Pair,
    writing: Writing,
    servers: remote.Servers,
    as_json: options.AsJson = False,
) -> None:
    asked, settings, own = asking.read(), writing.settings(), pair.method_settings()  # before a model is loaded
    from betoken.answers import check, stream
    from betoken.remote import is_url

    far = is_url(pair.model)
    drafts = check(method, own, has_draft=pair.draft_model is not None, over_http=far)
    names = [pair.model, pair.draft_model] if drafts and pair.draft_model is not None else [pair.model]
    _refuse(pair, writing, servers, [is_url(name) for name in names])
    with ExitStack() as stack:
        opened: dict[str, RemoteModel] = {}
        for name in dict.fromkeys(filter(is_url, names)):  # before models are loaded: a dead server is told at once
            opened[name] = servers.open(name, pair.cache_dir, is_target=name == pair.model)
            stack.callback(opened[name].close)
        events = stream(
            asked,
            method=method,
            target=opened[pair.model] if far else pair.open_target(),
            draft=None if len(names) == 1 else opened.get(names[1]) or pair.open_draft(names[1]),
            raw=asking.raw,
            method_settings=own,
            settings=settings,
        )
        if as_json:
            print(json.dumps(asdict(events.finish()), ensure_ascii=False))  # noqa: T201
            return
        write(events)
        print(summary(events.result), file=sys.stderr)  # noqa: T201


def _refuse(pair: Pair, writing: Writing, servers: remote.Servers, far: Sequence[bool]) -> None:
    """Raises InputError for options that say nothing about models of which these are behind HTTP, the target first."""
    if far[0]:
        of_target = {
            "--verifier": pair.verifier is not None,
            "--budget": writing.budget is not None,
            "--set verifier": bool(pair.settings_of("verifier")),
        }
        remote.refuse(of_target, "is for a --model on this machine, not behind HTTP")
    else:
        known = {"--tokenizer": servers.tokenizer is not None}
        remote.refuse(known, "is for a --model behind HTTP; a model here has its own")
    if pair.draft_model is None or True in far[1:]:  # one that is not needed may be named, and so may its dtype
        remote.refuse({"--draft-dtype": pair.draft_dtype is not None}, "is for a draft model on this machine")
    if all(far):
        here = {
            "--drafter": pair.drafter is not None,
            "--set drafter": bool(pair.settings_of("drafter")),
            "--nodes": pair.nodes != "auto",
            "--dtype": pair.dtype is not None,
            "--device": pair.device != "cpu",
            "--threads": pair.threads is not None,
            "--no-cuda-graphs": not pair.cuda_graphs,
        }
        remote.refuse(here, "is for models on this machine; none of these is")
    if not any(far):
        there = {
            "--timeout": servers.timeout is not None,
            "--connect-timeout": servers.connect_timeout is not None,
            "--retries": servers.retries is not None,
        }
        remote.refuse(there, "is for models behind HTTP: http://HOST:PORT/v1")


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
