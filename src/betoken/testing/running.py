"""Decoding under watch, and the plain answers that everything is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from betoken.decode import Decoder, Request
from betoken.drafters.drafter import Drafter
from betoken.drafters.plain import Plain
from betoken.models.target import Target
from betoken.state import Row, SamplingSettings, StopSettings
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Replay
from betoken.verifiers.verifier import Verifier


class ConformanceError(AssertionError):
    """A drafter or verifier breaks its contract. The message names the rule and what was seen."""


def require(condition: bool, broken: str) -> None:
    """Raises ConformanceError unless `condition`."""
    if not condition:
        raise ConformanceError(broken)


def plain_tokens(target: Target, request: Request, verifier: Verifier | None = None) -> list[int]:
    """New tokens that plain decoding gives a request."""
    return decode(target, Plain(), verifier or Replay(), [request], 1)[0].new_tokens


def decode(
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    requests: Sequence[Request],
    nodes: int,
    *,
    prefill_chunk: int = 5,
) -> list[Row]:
    """All requests together to their end, with a started drafter; the finished rows, released."""
    decoder = Decoder(target, drafter, verifier, FixedNodes(nodes), prefill_chunk=prefill_chunk, max_rows=len(requests))
    rows = [decoder.admit(request) for request in requests]
    finish(decoder, rows)
    for row in rows:
        decoder.release(row)
    return rows


def finish(decoder: Decoder, rows: Sequence[Row]) -> None:
    """Step until all rows have ended."""
    while any(row.finish_reason is None for row in rows):
        decoder.step()


def sample_requests(target: Target) -> list[Request]:
    """Prompts of several lengths under settings of every kind; ends, limits and the context fall inside drafts."""
    size = min(target.vocab_size, 50)
    long_stop = StopSettings(max_new_tokens=24, ignore_eos=True)

    def prompt(length: int, step: int) -> list[int]:
        return [(1 + index * step) % size for index in range(length)]

    def drawn(seed: int, temperature: float, **settings: float) -> SamplingSettings:
        return SamplingSettings(temperature=temperature, seed=seed, **settings)  # type: ignore[arg-type]

    return [
        Request(prompt(1, 1), stop=long_stop),
        Request(prompt(7, 2), stop=StopSettings(max_new_tokens=24)),
        Request(prompt(12, 1), drawn(1, 0.7), long_stop),
        Request(prompt(4, 3), drawn(2, 1.3, top_k=3, top_p=0.9), long_stop, sample=2),
        Request(prompt(9, 1), drawn(3, 0.3, min_p=0.05), StopSettings(max_new_tokens=24, stop_ids=(2,))),
        Request(prompt(6, 1), SamplingSettings(presence_penalty=0.6, frequency_penalty=0.4), long_stop),
        Request(prompt(5, 2), drawn(4, 0.9, repetition_penalty=1.4), StopSettings(max_new_tokens=24, min_new_tokens=9)),
        Request(prompt(3, 1), SamplingSettings(logit_bias={1: 1.5}), StopSettings(max_new_tokens=1)),
        Request(prompt(3, 1), drawn(5, 1.0), StopSettings(max_new_tokens=5, ignore_eos=True)),
    ]


def context_request(target: Target) -> Request:
    """A request that ends because the context is full."""
    prompt = [(1 + index) % target.vocab_size for index in range(target.context - 11)]
    return Request(prompt, stop=StopSettings(max_new_tokens=target.context, ignore_eos=True))
