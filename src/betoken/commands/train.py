"""`betoken train`: PTP students, small language models, teacher samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from betoken.commands.progress import counting
from betoken.errors import InputError

if TYPE_CHECKING:
    from betoken.training.fit import FitSettings
    from betoken.training.jobs import DataSettings, ModelSettings

_app = typer.Typer(help="Train PTP students and small language models.", no_args_is_help=True, rich_markup_mode="rich")

PTP = """Teach a model to say several tokens in one forward pass (PTP, arXiv 2512.21323).

A branch of auxiliary nodes hangs at each of --cuts places of a text. Instead of tokens, its nodes read random numbers:
those that would make plain sampling pick the text's tokens. So the tokens are determined, and the student can learn to
say them all at once. In decoding, the base checks them with the same numbers, and its text does not change.

[bold]What is learnt[/bold] (--objective)

  o-ptp         a node reads its own number and says the token

  c-ptp         a node reads the number before its own and says the law of the token (KL to the teacher)

  scratch       as c-ptp, but without a teacher: one model learns text and numbers together

  independent   no numbers: the usual multi-token prediction, for comparison

[bold]What is trained[/bold] (--weights)

  lora    an adapter of --model that is on at auxiliary nodes only (the default)

  full    a copy of --model for the auxiliary nodes

  same    one model for both: a new one of the sizes in --config, or --model itself

[bold]Examples[/bold]

  betoken train collect --model smollm2-135m --suite gsm8k --temperature 0.7 --top-k 50 --top-p 0.95 --out samples

  betoken train ptp --model smollm2-135m --data samples --objective o-ptp --rank 16 --steps 1000 --out student

  betoken train ptp --config tiny.json --tokenizer bytes --data texts --objective scratch --steps 5000 --out own

The same command continues a run that was interrupted, with the same result."""

LM = """Train an ordinary language model: a teacher, a small draft model, a baseline.

--config is a JSON file with the sizes of a Llama: {"hidden_size": 256, "intermediate_size": 704,
"num_hidden_layers": 4, "num_attention_heads": 4}; --model continues from a model's weights. The folder it leaves is a
model like any other: betoken generate --model OUT --raw --prompt TEXT.

[bold]Examples[/bold]

  betoken train lm --config small.json --tokenizer bpe:2048 --data sources --files '*.py' --steps 3000 --out teacher

  betoken train lm --config tiny.json --tokenizer teacher --data sources --files '*.py' --steps 3000 --out drafter

The same command continues a run that was interrupted, with the same result."""

COLLECT = """Write answers of a model, each token with the interval of random numbers that picks it.

Any model that betoken loads, at its own speed: with a drafter the samples are the same. They go into shards of --shard
samples; the same command continues an interrupted run.

[bold]Examples[/bold]

  betoken train collect --model smollm2-135m --suite gsm8k --samples 4 --temperature 0.7 --out samples

  betoken train collect --model teacher --prompts sources --files '*.py' --prompt-tokens 64 --out samples"""

WHAT, DATA, HOW = "What is trained", "The data", "How it is trained"
Out = Annotated[Path, typer.Option(help="Folder of the result and its checkpoint.")]
Model = Annotated[str | None, typer.Option(help="Store name or folder.", rich_help_panel=WHAT)]
Config = Annotated[Path | None, typer.Option(help="JSON file with a new model's sizes.", rich_help_panel=WHAT)]
Vocabulary = Annotated[
    str | None,
    typer.Option(
        "--tokenizer", help="Of a new model: bytes, characters, bpe:SIZE, or a model's name.", rich_help_panel=WHAT
    ),
]
Data = Annotated[
    str,
    typer.Option(
        help="Folder of texts, .jsonl (text or tokens), text file, samples of train collect, or a Hub data set.",
        rich_help_panel=DATA,
    ),
]
Files = Annotated[str, typer.Option(help="Which files of a folder.", rich_help_panel=DATA)]
Sequence = Annotated[int, typer.Option(help="Tokens of a row.", rich_help_panel=DATA)]
Pack = Annotated[
    bool, typer.Option(help="Documents one after another, or each in rows of its own.", rich_help_panel=DATA)
]
Validate = Annotated[str | None, typer.Option("--validate", help="Other data to validate with.", rich_help_panel=DATA)]
HeldOut = Annotated[float, typer.Option(help="Without it: the share of rows kept for that.", rich_help_panel=DATA)]
ValidationRows = Annotated[int, typer.Option(help="Most rows to validate with.", rich_help_panel=DATA)]
Steps = Annotated[int, typer.Option(help="Updates of the weights.", rich_help_panel=HOW)]
Batch = Annotated[int, typer.Option(help="Rows computed together.", rich_help_panel=HOW)]
Accumulate = Annotated[int, typer.Option(help="Batches of an update.", rich_help_panel=HOW)]
Lr = Annotated[float, typer.Option(help="Learning rate of AdamW.", rich_help_panel=HOW)]
Warmup = Annotated[int, typer.Option(help="Updates over which it rises.", rich_help_panel=HOW)]
Schedule = Annotated[str, typer.Option(help="Then: constant, or cosine down to a tenth.", rich_help_panel=HOW)]
WeightDecay = Annotated[float, typer.Option(help="Of AdamW.", rich_help_panel=HOW)]
Autocast = Annotated[str, typer.Option(help="none or bfloat16.", rich_help_panel=HOW)]
CheckpointEvery = Annotated[int, typer.Option(help="Updates between checkpoints.", rich_help_panel=HOW)]
Seed = Annotated[int, typer.Option(help="Of weights, order and numbers.", rich_help_panel=HOW)]
Device = Annotated[str, typer.Option(help="cpu or cuda.", rich_help_panel=HOW)]
Threads = Annotated[int | None, typer.Option(help="Cores to use; all if not given.", rich_help_panel=HOW)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Temperature = Annotated[float | None, typer.Option(help="Of the law that is learnt.", rich_help_panel=WHAT)]
TopK = Annotated[int | None, typer.Option(help="0 keeps all.", rich_help_panel=WHAT)]
TopP = Annotated[float | None, typer.Option(help="1 keeps all.", rich_help_panel=WHAT)]
MinP = Annotated[float | None, typer.Option(help="0 keeps all.", rich_help_panel=WHAT)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(_app, name="train")


@_app.callback()
def train() -> None:
    """Train PTP students and small language models."""


@_app.command(help=PTP)
def ptp(
    data: Data,
    out: Out,
    model: Model = None,
    config: Config = None,
    vocabulary: Vocabulary = None,
    objective: Annotated[
        str, typer.Option(help="o-ptp, c-ptp, scratch or independent.", rich_help_panel=WHAT)
    ] = "o-ptp",
    weights: Annotated[
        str | None, typer.Option(help="lora, full or same. Default: lora, with --config same.", rich_help_panel=WHAT)
    ] = None,
    embedding: Annotated[
        str | None,
        typer.Option(help="How numbers are read: bits, digits or interpolated (default).", rich_help_panel=WHAT),
    ] = None,
    rank: Annotated[int, typer.Option(help="Of the LoRA adapter.", rich_help_panel=WHAT)] = 16,
    divergence: Annotated[str, typer.Option(help="c-ptp: kl or reverse-kl.", rich_help_panel=WHAT)] = "kl",
    window: Annotated[int, typer.Option(help="Nodes of a branch.", rich_help_panel=WHAT)] = 16,
    cuts: Annotated[int, typer.Option(help="Branches over each row.", rich_help_panel=WHAT)] = 16,
    beta: Annotated[
        float,
        typer.Option(help="Numbers lie in their intervals by Beta(b, b): 1 is uniform.", rich_help_panel=WHAT),
    ] = 1.0,
    text_weight: Annotated[
        float,
        typer.Option(help="weights same: of the ordinary next-token loss beside the branches'.", rich_help_panel=WHAT),
    ] = 1.0,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    files: Files = "*.txt",
    sequence: Sequence = 512,
    pack: Pack = True,
    validation: Validate = None,
    held_out: HeldOut = 0.05,
    validation_rows: ValidationRows = 64,
    steps: Steps = 1000,
    batch: Batch = 4,
    accumulate: Accumulate = 1,
    lr: Lr = 1e-4,
    warmup: Warmup = 100,
    schedule: Schedule = "constant",
    weight_decay: WeightDecay = 0.0,
    autocast: Autocast = "none",
    checkpoint_every: CheckpointEvery = 100,
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    kind = weights or ("lora" if config is None else "same")
    read = embedding or ("none" if objective == "independent" else "interpolated")
    _choose("--weights", kind, ("lora", "full", "same"))
    _choose("--embedding", read, ("bits", "digits", "interpolated", "none"))
    jobs = _loaded(threads)
    from betoken.training.ptp import PtpSettings

    named = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    asked: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    learnt = PtpSettings(
        objective=objective,  # type: ignore[arg-type]  # checked there
        window=window,
        cuts=cuts,
        law=jobs.law_for(data, asked),
        divergence=divergence,  # type: ignore[arg-type]
        beta=beta,
        text_weight=text_weight,
        seed=seed,
    )
    found = jobs.train_ptp(
        _model(model, config, vocabulary, device),
        _data(data, files, sequence, pack, validation, held_out, validation_rows),
        jobs.StudentSettings(weights=kind, embedding=read, rank=rank),
        learnt,
        _fit(steps, batch, accumulate, lr, warmup, schedule, weight_decay, autocast, checkpoint_every, seed),
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
    _say(as_json, {"out": str(out), **{name: value for name, value in numbers.items() if value is not None}})


@_app.command(help=LM)
def lm(
    data: Data,
    out: Out,
    model: Model = None,
    config: Config = None,
    vocabulary: Vocabulary = None,
    files: Files = "*.txt",
    sequence: Sequence = 512,
    pack: Pack = True,
    validation: Validate = None,
    held_out: HeldOut = 0.05,
    validation_rows: ValidationRows = 64,
    steps: Steps = 1000,
    batch: Batch = 8,
    accumulate: Accumulate = 1,
    lr: Lr = 1e-3,
    warmup: Warmup = 100,
    schedule: Schedule = "cosine",
    weight_decay: WeightDecay = 0.0,
    autocast: Autocast = "none",
    checkpoint_every: CheckpointEvery = 100,
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    if config is not None and model is not None:
        raise InputError("--config makes a new model and --model trains one on: give one of them")
    jobs = _loaded(threads)
    found = jobs.train_lm(
        _model(model, config, vocabulary, device),
        _data(data, files, sequence, pack, validation, held_out, validation_rows),
        _fit(steps, batch, accumulate, lr, warmup, schedule, weight_decay, autocast, checkpoint_every, seed),
        out,
        counting,
    )
    _say(as_json, {"out": str(out), "perplexity": found})


@_app.command(help=COLLECT)
def collect(
    out: Annotated[Path, typer.Option(help="Folder of the samples.")],
    model: Annotated[str, typer.Option(help="The teacher: store name, folder, GGUF file or Hub id.")],
    suite: Annotated[list[str] | None, typer.Option(help="Questions as prompts: file or name. Repeat it.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of named suites; else $BETOKEN_DATA.")] = None,
    prompts: Annotated[
        str | None, typer.Option(help="Or prompts: .txt with one a line, .jsonl (text or tokens), or a folder.")
    ] = None,
    files: Annotated[str, typer.Option(help="Which files of that folder.")] = "*.txt",
    prompt_tokens: Annotated[
        int | None,
        typer.Option(help="Cut prompts of so many tokens out of --prompts, one for each stretch that it fills."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Plain text instead of the chat template.")] = False,
    samples: Annotated[int, typer.Option(help="Answers to each prompt.")] = 4,
    limit: Annotated[int | None, typer.Option(help="Most prompts.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most new tokens of an answer.")] = 128,
    temperature: Annotated[float, typer.Option(help="Of the law that is sampled.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 keeps all.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="0 keeps all.")] = 0.0,
    drafter: Annotated[str, typer.Option(help="Speed only.")] = "none",
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
    batch: Annotated[int, typer.Option(help="Rows decoded together.")] = 8,
    shard: Annotated[int, typer.Option(help="Samples of a file.")] = 64,
    dtype: Annotated[str | None, typer.Option(help="int8, float32 or bfloat16.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Cores to use; all of them if not given.")] = None,
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
        samples=samples,
        max_new_tokens=max_new_tokens,
        seed=seed,
        shard=shard,
    )
    engine = betoken.load(model, drafter=drafter, dtype=dtype, device=device, threads=threads, nodes=8)
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


def _choose(option: str, value: str, among: tuple[str, ...]) -> None:
    if value not in among:
        raise InputError(f"unknown {option} {value!r}; choose one of {', '.join(among)}")


def _loaded(threads: int | None) -> Any:
    """The module that trains: slow to import, so not before the options are read."""
    import torch

    from betoken.training import jobs

    if threads is not None:
        if threads < 1:
            raise InputError(f"threads must be at least 1, not {threads}")
        torch.set_num_threads(threads)
    return jobs


def _model(model: str | None, config: Path | None, tokenizer: str | None, device: str) -> ModelSettings:
    from betoken.training.jobs import ModelSettings

    return ModelSettings(model=model, config=config, tokenizer=tokenizer, device=device)


def _data(
    source: str, files: str, sequence: int, pack: bool, validation: str | None, held_out: float, rows: int
) -> DataSettings:
    from betoken.training.jobs import DataSettings

    return DataSettings(
        source=source,
        files=files,
        sequence=sequence,
        pack=pack,
        validation=validation,
        held_out=held_out,
        validation_rows=rows,
    )


def _fit(
    steps: int,
    batch: int,
    accumulate: int,
    lr: float,
    warmup: int,
    schedule: str,
    weight_decay: float,
    autocast: str,
    checkpoint_every: int,
    seed: int,
) -> FitSettings:
    from betoken.training.fit import FitSettings

    return FitSettings(
        steps=steps,
        batch=batch,
        accumulate=accumulate,
        lr=lr,
        warmup=warmup,
        schedule=schedule,  # type: ignore[arg-type]  # checked there
        weight_decay=weight_decay,
        autocast=autocast,  # type: ignore[arg-type]
        checkpoint_every=checkpoint_every,
        seed=seed,
    )


def _say(as_json: bool, found: dict[str, Any]) -> None:
    import json

    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    told = (f"{name.replace('_', ' ')} {value:.3f}" for name, value in found.items() if isinstance(value, float))
    typer.echo(f"{found['out']}: {', '.join(told)}")
