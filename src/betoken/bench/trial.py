"""One measurement: some requests decoded together by a fresh decoder, and what it cost."""

from __future__ import annotations

import gc
import hashlib
import resource
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from betoken.bench import metrics
from betoken.decode import Advance, Decoder, Request
from betoken.state import Row


@dataclass
class _Clock:
    """What is noted about one row while it is decoded."""

    row: Row
    nodes: int = 0
    first_s: float = 0.0
    """Seconds from the start of the trial to the row's first token."""
    token_s: list[float] = field(default_factory=list)
    """For each token, the seconds of its step divided by the tokens that the step gave this row."""


def measure(decoder: Decoder, requests: Sequence[Request]) -> dict[str, Any]:
    """Decode the requests together, from admission to the last token, and return one record of JSON values.

    Times are wall seconds of the whole batch. `prefill_s` is the prefill alone; `decode_s` everything else
    (admission, drafting, forwards, verification). `outside_s` is the part of `decode_s` that was not spent in the
    target's forward pass. `token_p50_s`/`token_p95_s`: a step's time over the tokens it gave a row.
    """
    gc.collect()
    _reset_peak(decoder.target.device)
    began = perf_counter()
    clocks = {row.id: _Clock(row) for row in map(decoder.admit, requests)}
    draft = target = verify = prefill = 0.0
    while any(clock.row.finish_reason is None for clock in clocks.values()):
        tick, filled = perf_counter(), prefill
        advances = decoder.step()
        now = perf_counter()
        prefill = sum(decoder.prefill_s[row] for row in clocks)
        _note(clocks, advances, now - tick - (prefill - filled), now - began)
        if advances:
            times = advances[0].times
            draft, target, verify = draft + times.draft, target + times.target, verify + times.verify
    total = perf_counter() - began
    peak = _peak_bytes(decoder.target.device)
    rows = [_told(clock) for clock in clocks.values()]
    for clock in clocks.values():
        decoder.release(clock.row)
    tokens = sum(row["tokens"] for row in rows)
    gaps = [gap for clock in clocks.values() for gap in clock.token_s]
    return {
        "tokens": tokens,
        "total_s": total,
        "prefill_s": prefill,
        "decode_s": total - prefill,
        "draft_s": draft,
        "target_s": target,
        "verify_s": verify,
        "outside_s": total - prefill - target,
        "tokens_per_s": tokens / (total - prefill),
        "tokens_per_s_with_prefill": tokens / total,
        "first_token_s": metrics.median([row["first_token_s"] for row in rows]),
        "token_p50_s": metrics.percentile(gaps, 50),
        "token_p95_s": metrics.percentile(gaps, 95),
        "peak_bytes": peak,
        "rows": rows,
    }


def digest(tokens: Sequence[int]) -> str:
    """SHA-256 of token ids, each as 8 little-endian bytes."""
    return hashlib.sha256(struct.pack(f"<{len(tokens)}q", *tokens)).hexdigest()


def _note(clocks: dict[int, _Clock], advances: Sequence[Advance], step_s: float, since: float) -> None:
    for advance in advances:
        clock = clocks[advance.row.id]
        clock.first_s = clock.first_s or since
        clock.nodes += advance.nodes
        clock.token_s += [step_s / len(advance.tokens)] * len(advance.tokens)


def _told(clock: _Clock) -> dict[str, Any]:
    row = clock.row
    return {
        "prompt_tokens": len(row.prompt),
        "tokens": row.generated,
        "sha256": digest(row.new_tokens),
        "finish_reason": row.finish_reason,
        "forwards": row.steps,
        "acceptance_length": row.generated / row.steps,
        "nodes_per_forward": clock.nodes / row.steps,
        "first_token_s": clock.first_s,
    }


def _reset_peak(device: str) -> None:
    """Start the high-water mark anew where the system can (Linux: proc(5), clear_refs)."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # the mark then counts from the start of the process: never too low


def _peak_bytes(device: str) -> int:
    """Most memory held at once: resident memory of the process, or what torch allocated on a GPU."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated())
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
