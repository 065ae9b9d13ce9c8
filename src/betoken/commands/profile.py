"""`betoken profile`: what a forward pass costs on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.commands import options
from betoken.errors import InputError

if TYPE_CHECKING:
    from betoken.tuning.profile import Profile

HELP = """Measure t(n): the time of a forward pass over n nodes, by context and batch size.

The curve is kept in the cache, where --nodes auto finds it.

[bold]Examples[/bold]

  betoken profile

  betoken profile --model qwen2.5-coder-1.5b --contexts 64,1024 --batches 1,4 --plot t.png"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(help=HELP)(profile)


def profile(
    model: options.Model = options.DEFAULT_MODEL,
    nodes: Annotated[str, typer.Option(help="Node counts, separated by commas.")] = "1,2,3,4,6,8,12,16,24,32,48,64",
    contexts: Annotated[str, typer.Option(help="Cached positions, separated by commas.")] = "64,512",
    batches: Annotated[str, typer.Option(help="Rows decoded together, separated by commas.")] = "1",
    repeats: Annotated[int, typer.Option(help="Rounds over all node counts; medians count.")] = 5,
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw t(n) into this PNG or SVG file.")] = None,
    dtype: options.Dtype = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    cache_dir: options.CacheDir = None,
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.AsJson = False,
) -> None:
    counts, lengths, sizes = _numbers("nodes", nodes), _numbers("contexts", contexts), _numbers("batches", batches)
    from betoken.commands.progress import counting
    from betoken.models.load import load_target
    from betoken.models.store import cache_root
    from betoken.tuning import profile as profiling
    from betoken.tuning.cost import save

    loaded = load_target(
        model, dtype=dtype, device=device, threads=threads, cache_dir=cache_dir, trust_remote_code=trust_remote_code
    )
    target = loaded.target
    with counting("profile: run it again to measure anew") as tell:
        found = profiling.profile(
            target,
            nodes=counts,
            contexts=lengths,
            batches=sizes,
            repeats=repeats,
            weight_bytes=profiling.weight_bytes(loaded.folder, target.dtype),
            peak=profiling.memory_speed() if target.device == "cpu" else None,
            tell=tell,
        )
    if 1 in counts and 1 in sizes:
        save(found.timings(), target, cache_root(cache_dir) / "cost", threads=threads)
    if picture is not None:
        profiling.plot(found, picture)
    if as_json:
        print(json.dumps(asdict(found) | {"reached_bytes_per_s": found.reached_bytes_per_s}))  # noqa: T201
    else:
        show(found)


def show(found: Profile) -> None:
    """The profile as a table on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{found.model}, {found.dtype}, {found.device}, {found.threads} threads: ms (t(n) / t(1))")
    for column in ("batch", "context", *(f"n = {n}" for n in _node_counts(found))):
        table.add_column(column, justify="right")
    for batch, context in found.settings:
        cells = []
        first = found.seconds(1, batch, context)
        for n in _node_counts(found):
            taken = found.seconds(n, batch, context)
            ratio = f" ({taken / first:.2f})" if first and taken and n > 1 else ""
            cells.append("" if taken is None else f"{1000 * taken:.1f}{ratio}")
        table.add_row(str(batch), str(context), *cells)
    console = Console()
    console.print(table)
    reached, peak = found.reached_bytes_per_s, found.peak_bytes_per_s
    if reached is not None and found.weight_bytes is not None:
        of_peak = f", {100 * reached / peak:.0f}% of the {peak / 1e9:.1f} GB/s this machine reads" if peak else ""
        size = f"{found.weight_bytes / 1e9:.3f} GB"
        console.print(
            f"a pass reads {size} of weights: with one node at {reached / 1e9:.1f} GB/s{of_peak}", soft_wrap=True
        )


def _node_counts(found: Profile) -> list[int]:
    return sorted({point.nodes for point in found.points})


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--{name} takes whole numbers separated by commas, not {text}") from None
