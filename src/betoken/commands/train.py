"""`betoken train`: PTP students, small language models, teacher samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from betoken.commands import options, train_options
from betoken.commands.groups import Machine, grouped
from betoken.commands.progress import counting
from betoken.commands.train_options import Data, Fitting, Law, Learning, Out, Place, Student, Subject
from betoken.errors import InputError

_app = typer.Typer(help="Train PTP students and small language models.", no_args_is_help=True, rich_markup_mode="rich")

PTP = """Teach a model to say several tokens in one forward pass (PTP, arXiv 2512.21323).

A branch of auxiliary nodes hangs at each of --cuts places of a text. Instead of tokens, its nodes read random numbers:
those that would make plain sampling pick the text's tokens. So the tokens are determined, and the student can learn to
say them all at once. In decoding, the base checks them with the same numbers, and its text does not change.

[bold]What is learnt[/bold] (--objective)
  o-ptp        a node reads its own number and says the token
  c-ptp        a node reads the number before its own and says the token's law
  scratch      as c-ptp, without a teacher: one model learns text and numbers, which it takes from its own branches
               (c-ptp with --weights same and no teacher: from its own reading of the text; faster)
  independent  no numbers: the usual multi-token prediction, to compare with

[bold]What is trained[/bold] (--weights)
  lora  an adapter of --model that is on at auxiliary nodes only (the default)
  full  a copy of --model for the auxiliary nodes
  same  one model for both: of the sizes in --config, or --model itself

[bold]Examples[/bold]

  betoken train collect --model smollm2-135m --suite gsm8k --out samples

  betoken train ptp --model smollm2-135m --data samples --out student

  betoken train ptp --config tiny.json --tokenizer bytes --data texts \\
    --objective scratch --steps 5000 --out own

The same command continues a run that was interrupted, with the same result."""

LM = """Train an ordinary language model: a teacher, a small draft model, a baseline.

--config is a JSON file with the sizes of a Llama: {"hidden_size": 256, "intermediate_size": 704,
"num_hidden_layers": 4, "num_attention_heads": 4}; --model continues from a model's weights. The folder it leaves is a
model like any other: betoken generate --model OUT --raw --prompt TEXT.

[bold]Examples[/bold]

  betoken train lm --config small.json --tokenizer bpe:2048 --data texts \\
    --steps 3000 --out teacher

  betoken train lm --config tiny.json --tokenizer teacher --data texts \\
    --steps 3000 --out drafter

The same command continues a run that was interrupted, with the same result."""

COLLECT = """Write answers of a model, each token with the interval of random numbers that picks it.

Any model that betoken loads, at its own speed: with a drafter the samples are the same. They go into shards of --shard
samples; the same command continues an interrupted run.

[bold]Examples[/bold]

  betoken train collect --model smollm2-135m --suite gsm8k --out samples \\
    --temperature 0.7 --top-k 50 --top-p 0.95

  betoken train collect --model teacher --prompts sources --files '*.py' \\
    --prompt-tokens 64 --out samples"""


@dataclass(frozen=True, kw_only=True)
class Ordinary(Fitting):
    """How long and how fast an ordinary language model learns."""

    batch: train_options.Batch = 8
    lr: train_options.Lr = 1e-3
    schedule: train_options.Schedule = "cosine"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(_app, name="train")


@_app.callback()
def train() -> None:
    """Train PTP students and small language models."""


@_app.command(help=PTP)
@grouped
def ptp(
    out: Out,
    subject: Subject,
    learning: Learning,
    student: Student,
    law: Law,
    data: Data,
    fitting: Fitting,
    place: Place,
    as_json: options.AsJson = False,
) -> None:
    trained = student.settings(is_new=subject.config is not None, reads_numbers=learning.objective != "independent")
    place.use()
    from betoken.training import jobs

    found = jobs.train_ptp(
        subject.settings(place.device),
        data.settings(),
        trained,
        learning.settings(jobs.law_for(data.data, law.named()), fitting.seed),
        fitting.settings(),
        out,
        counting,
    )
    numbers = {
        "right_in_a_row": found.validation.mean_run,
        "first_runs": found.validation.first_runs,
        "runs": found.validation.runs,
        "perplexity": found.validation.perplexity,
        "text_perplexity": found.text_perplexity,
    }
    _say({"out": str(out), **{name: value for name, value in numbers.items() if value is not None}}, as_json=as_json)


@_app.command(help=LM)
@grouped
def lm(
    out: Out, subject: Subject, data: Data, fitting: Ordinary, place: Place, as_json: options.AsJson = False
) -> None:
    if subject.config is not None and subject.model is not None:
        raise InputError("--config makes a new model and --model trains one on: give one of them")
    place.use()
    from betoken.training import jobs

    found = jobs.train_lm(subject.settings(place.device), data.settings(), fitting.settings(), out, counting)
    _say({"out": str(out), "perplexity": found}, as_json=as_json)


@_app.command(help=COLLECT)
@grouped
def collect(
    out: Annotated[Path, typer.Option(help="Folder of the samples.")],
    model: Annotated[str, typer.Option(help="The teacher: store name, folder, GGUF file or Hub id.")],
    suite: Annotated[list[str] | None, typer.Option(help="Questions as prompts: file or name. Repeat it.")] = None,
    data: options.Data = None,
    prompts: Annotated[
        str | None, typer.Option(help="Or prompts: .txt with one a line, .jsonl (text or tokens), or a folder.")
    ] = None,
    files: Annotated[str, typer.Option(help="Which files of that folder.")] = "*.txt",
    prompt_tokens: Annotated[
        int | None,
        typer.Option(help="Cut prompts of so many tokens out of --prompts, one for each stretch that it fills."),
    ] = None,
    raw: options.PlainText = False,
    samples: Annotated[
        int | None, typer.Option(help="Answers to each prompt. Default: 4, and 1 at temperature 0.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Most prompts.")] = None,
    drafter: Annotated[str, typer.Option(help="Speed only.")] = "none",
    batch: Annotated[int, typer.Option(help="Rows decoded together.")] = 8,
    shard: Annotated[int, typer.Option(help="Samples of a file.")] = 64,
    max_new_tokens: options.MaxNewTokens = 128,
    seed: Annotated[int, typer.Option(rich_help_panel=options.SAMPLING, help="Of the samples.")] = 0,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    *,
    machine: Machine,
) -> None:
    if (suite is None) == (prompts is None):
        raise InputError("give the prompts by --suite, or by --prompts")
    if batch < 1 or (prompt_tokens is not None and prompt_tokens < 1):
        raise InputError("--batch and --prompt-tokens must be at least 1")
    import betoken
    from betoken.state import SamplingSettings
    from betoken.training import prompts as prompting
    from betoken.training.collect import CollectSettings
    from betoken.training.collect import collect as run

    settings = CollectSettings(
        law=SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p),
        samples=samples if samples is not None else 1 if temperature == 0.0 else 4,
        max_new_tokens=max_new_tokens,
        seed=seed,
        shard=shard,
    )
    engine = betoken.load(
        model, drafter=drafter, dtype=machine.dtype, device=machine.device, threads=machine.threads, nodes=8
    )
    engine.decoder.max_rows = batch
    if suite is not None:
        encoded = prompting.from_suites(engine, suite, data, raw=raw)
    else:
        stretch = None if prompt_tokens is None else (prompt_tokens, max_new_tokens)
        encoded = prompting.from_texts(engine, str(prompts), files, stretch, raw=raw)
    encoded = encoded[:limit]
    known = {"model": model, "dtype": engine.target.dtype, "prompts": prompting.digest(encoded)}
    with counting(f"the same command continues {out}") as tell:
        count = run(engine, encoded, settings, out, known, tell)
    typer.echo(f"{out}: {count} samples of {len(encoded)} prompts")


def _say(found: Mapping[str, object], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    told = (f"{name.replace('_', ' ')} {value:.3f}" for name, value in found.items() if isinstance(value, float))
    typer.echo(f"{found['out']}: {', '.join(told)}")
