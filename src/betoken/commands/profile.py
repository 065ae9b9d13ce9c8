"""`betoken profile`: what a forward pass costs on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from betoken.commands import options
from betoken.commands.groups import Machine, grouped

if TYPE_CHECKING:
    from betoken.models.target import Target
    from betoken.tuning.profile import Point, Profile

_TITLE = "ms of a pass over n nodes a row (t(n) / t(1)), and its share outside the matrix products"

HELP = """Measure t(n): the time of a forward pass over n nodes, by context and batch size.

Also how much of it lies outside the matrix products (attention, norms, quantisation, waiting, Python), and the memory
speed that decoding reaches.

The curve is kept in the cache, where --nodes auto finds it.

[bold]Examples[/bold]

  betoken profile

  betoken profile --model qwen2.5-coder-1.5b --contexts 64,1024 --batches 1,4 --plot t.png"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(help=HELP)(profile)


@grouped
def profile(
    machine: Machine,
    model: options.Model = options.DEFAULT_MODEL,
    nodes: Annotated[str, typer.Option(help="Node counts, separated by commas.")] = "1,2,3,4,6,8,12,16,24,32,48,64",
    contexts: Annotated[str, typer.Option(help="Cached positions, separated by commas.")] = "64,512",
    batches: Annotated[str, typer.Option(help="Rows decoded together, separated by commas.")] = "1",
    repeats: Annotated[int, typer.Option(help="Rounds over all node counts; medians count.")] = 5,
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw t(n) into this PNG or SVG file.")] = None,
    cache_dir: options.CacheDir = None,
    cuda_graphs: options.CudaGraphs = True,
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.AsJson = False,
) -> None:
    counts = options.parse_whole_numbers("--nodes", nodes)
    lengths = options.parse_whole_numbers("--contexts", contexts)
    sizes = options.parse_whole_numbers("--batches", batches)
    from betoken.commands.progress import counting
    from betoken.models.load import load_target
    from betoken.models.store import cache_root
    from betoken.tuning import profile as profiling
    from betoken.tuning.cost import save

    loaded = load_target(
        model,
        dtype=machine.dtype,
        device=machine.device,
        threads=machine.threads,
        cache_dir=cache_dir,
        trust_remote_code=trust_remote_code,
        cuda_graphs=cuda_graphs,
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
            products=_products(target),
            tell=tell,
        )
    if 1 in counts and 1 in sizes:
        save(found.timings(), target, cache_root(cache_dir) / "cost", threads=machine.threads)
    if picture is not None:
        profiling.plot(found, picture)
    if as_json:
        print(json.dumps(_told(found)))  # noqa: T201
    else:
        show(found)


def show(found: Profile) -> None:
    """The profile as a table on standard output."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"{found.model}, {found.dtype}, {found.device}, {found.threads} threads", highlight=False)
    told = _TITLE if any(point.products for point in found.points) else _TITLE.partition(",")[0]
    console.print(told, highlight=False, soft_wrap=True)
    table = Table()
    for column in ("n", *(f"batch {batch}\ncontext {context}" for batch, context in found.settings)):
        table.add_column(column, justify="right")
    for n in _node_counts(found):
        points = [found.point(n, *setting) for setting in found.settings]
        firsts = [found.seconds(1, *setting) for setting in found.settings]
        table.add_row(str(n), *map(_cell, points, firsts))
    console.print(table)
    reached, peak = found.reached_bytes_per_s, found.peak_bytes_per_s
    if reached is not None and found.weight_bytes is not None:
        of_peak = f", {100 * reached / peak:.0f}% of the {peak / 1e9:.1f} GB/s this machine reads" if peak else ""
        size = f"{found.weight_bytes / 1e9:.3f} GB"
        console.print(
            f"a pass reads {size} of weights: with one node at {reached / 1e9:.1f} GB/s{of_peak}", soft_wrap=True
        )


def _cell(point: Point | None, first: float | None) -> str:
    """Milliseconds, over those of one node, and the share outside the products."""
    if point is None:
        return ""
    told = f"{1000 * point.seconds:.1f}"
    if first is not None and point.nodes > 1:
        told += f" ({point.seconds / first:.2f})"
    return told if point.outside_share is None else f"{told}, {point.outside_share:.0%}"


def _products(target: Target) -> Callable[[int], float] | None:
    """What times the matrix products alone: the compiled CPU target's can be run so, others cannot."""
    if not target.exact:
        return None  # and where there is no compiled target, its module must not be imported
    from betoken.models.native.products import time_products
    from betoken.models.native.target import NativeTarget

    if not isinstance(target, NativeTarget):
        return None
    return lambda nodes: time_products(target, nodes).seconds


def _told(found: Profile) -> dict[str, Any]:
    told = asdict(found) | {"reached_bytes_per_s": found.reached_bytes_per_s}
    for point, values in zip(found.points, told["points"], strict=True):
        values["outside_share"] = point.outside_share
    return told


def _node_counts(found: Profile) -> list[int]:
    return sorted({point.nodes for point in found.points})
