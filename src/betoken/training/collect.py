"""Teacher samples with the exact interval of u that picks each token, in shards that a later run continues.

A folder of samples holds `collect.json` (how they were made) and `shard-00000.safetensors`, ...: S samples each, with

    lengths, prompts [S] int64      tokens of a sample, and how many of them are its prompt
    tokens [sum of lengths] int32   one sample after another
    u, low, high [sum of new tokens] float64    the number that picked each new token, and its whole interval
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from betoken import noise
from betoken.decode import Request
from betoken.engine import Engine
from betoken.errors import InputError
from betoken.models.config import read_json
from betoken.models.save import write_json
from betoken.models.student import LAW, law_numbers
from betoken.models.target import Scores
from betoken.sampling import law
from betoken.state import Row, SamplingSettings, State, StopSettings
from betoken.training.checkpoint import check_same, replace_file, writing
from betoken.training.data import Rows
from betoken.training.draws import Purpose
from betoken.training.fit import Tell
from betoken.training.intervals import Interval, interval
from betoken.tree import TokenTree
from betoken.verifiers.verifier import Verdict

NAME = "collect.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class CollectSettings:
    """What is sampled."""

    law: SamplingSettings
    samples: int = 4
    """Samples a prompt."""
    max_new_tokens: int = 128
    seed: int = 0
    shard: int = 64
    """Samples of a file: what an interruption loses at most."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.shard < 1:
            raise InputError("samples and shard must be at least 1")
        if self.law.greedy and self.samples > 1:
            raise InputError(f"at temperature 0 all {self.samples} samples of a prompt would be the same: collect one")

    @property
    def told(self) -> dict[str, Any]:
        """The settings as JSON."""
        return {**{item.name: getattr(self, item.name) for item in fields(self)}, "law": law_numbers(self.law)}


@dataclass(frozen=True)
class Sample:
    """One answer of the teacher."""

    tokens: list[int]
    """Prompt and answer."""
    prompt: int
    """Tokens of the prompt."""
    u: list[float]
    intervals: list[Interval]


class Recorder:
    """Watches a decoder: the interval of every token it commits, under the law it was picked from."""

    def __init__(self) -> None:
        self._found: dict[int, list[Interval]] = {}

    def __call__(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        """A `decode.Observer`."""
        for b, row in enumerate(state.rows):
            known = self._found.setdefault(row.id, [])
            tokens, path = verdict.tokens(tree, b), verdict.rows[b].path
            for node, token in list(zip(path, tokens, strict=True))[: row.generated - len(known)]:
                known.append(interval(law(scores.logits(b, node), row.sampling), token))

    def sample(self, row: Row) -> Sample:
        """What a finished row has written; it is forgotten here."""
        seed, number = row.sampling.seed, row.sample
        u = [noise.uniform(seed, number, k) for k in range(row.generated)]
        return Sample(list(row.tokens), len(row.prompt), u, self._found.pop(row.id))


def collect(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    settings: CollectSettings,
    out: Path,
    configuration: Mapping[str, Any],
    tell: Tell,
) -> int:
    """Sample every prompt, a shard at a time; shards that are there already are kept. Returns the samples.

    `engine` must verify with `replay` by inverse CDF, with any drafter. `configuration`: what else the samples depend
    on (model, prompts). Raises InputError for a folder with samples of another configuration.
    """
    whole = {"format": FORMAT, **configuration, **settings.told}
    _open(out, whole)
    tasks = [(prompt, number) for prompt in range(len(prompts)) for number in range(settings.samples)]
    for at in range(0, len(tasks), settings.shard):
        path = out / f"shard-{at // settings.shard:05d}.safetensors"
        if not path.is_file():
            tell(at, len(tasks), f"sampling into {path.name}")
            requests = [_request(prompts[p], p, n, settings) for p, n in tasks[at : at + settings.shard]]
            samples = _answers(engine, requests)
            with writing(out):
                replace_file(path, _tensors(samples), {})
        tell(min(at + settings.shard, len(tasks)), len(tasks), f"{path.name} is there")
    return len(tasks)


def is_samples(folder: Path) -> bool:
    """Whether a folder holds teacher samples."""
    return (folder / NAME).is_file()


def sampled_law(folder: Path) -> SamplingSettings:
    """The law that the samples of a folder were drawn from."""
    found = read_json(folder / NAME)
    if found.get("format") != FORMAT or not isinstance(found.get("law"), dict):
        raise InputError(f"{folder / NAME}: not written by this version of betoken; collect the samples again")
    return SamplingSettings(**found["law"])


def read_samples(folder: Path, sequence: int, *, vocab_size: int) -> Rows:
    """The samples of a folder as rows, each cut after `sequence` tokens; those with no new token left are dropped.

    Raises InputError for a folder without shards, a shard that cannot be read, or none that fits.
    """
    files = sorted(folder.glob("shard-*.safetensors"))
    found = [row for file in files for row in _read_shard(file, sequence)]
    if not found:
        raise InputError(f"{folder}: {_nothing(files)}")
    tokens = np.zeros((len(found), sequence), dtype=np.int64)
    low, high = (np.full(tokens.shape, np.nan) for _ in range(2))
    for row, (own, prompt, lows, highs) in enumerate(found):
        tokens[row, : len(own)] = own
        low[row, prompt : len(own)], high[row, prompt : len(own)] = lows, highs
    if tokens.max() >= vocab_size:
        raise InputError(f"{folder}: samples of a model with a larger vocabulary than {vocab_size}")
    lengths = np.array([len(own) for own, *_ in found], dtype=np.int64)
    return Rows(tokens, lengths, np.array([prompt for _, prompt, *_ in found], dtype=np.int64), low, high)


def _nothing(files: Sequence[Path]) -> str:
    """Why no sample can be used."""
    if not files:
        return "no shard in it: finish betoken train collect"
    prompts = [prompt for file in files for _, prompt, *_ in _read_shard(file, 1 << 40)]
    if not prompts:
        return "no sample has a new token: collect others"
    return f"no sample fits: the shortest prompt has {min(prompts)} tokens, so raise --sequence above that"


def _read_shard(path: Path, sequence: int) -> list[tuple[np.ndarray, int, np.ndarray, np.ndarray]]:
    """(tokens, prompt length, lower ends, upper ends) of each sample that keeps a new token."""
    try:
        parts = {name: tensor.numpy() for name, tensor in load_file(path).items()}
        lengths, prompts = parts["lengths"], parts["prompts"]
    except (SafetensorError, OSError, KeyError) as error:
        raise InputError(f"{path}: cannot be read ({error}); remove it and collect again") from error
    ends, fresh = np.cumsum(lengths), np.cumsum(lengths - prompts)
    rows = []
    for end, new, length, prompt in zip(ends, fresh, lengths, prompts, strict=True):
        kept = min(int(length), sequence)
        if kept > prompt >= 1:
            begin, count = int(new - (length - prompt)), kept - int(prompt)
            tokens = parts["tokens"][end - length : end - length + kept]
            low, high = (parts[name][begin : begin + count] for name in ("low", "high"))
            rows.append((tokens, int(prompt), low, high))
    return rows


def _open(out: Path, configuration: Mapping[str, Any]) -> None:
    path = out / NAME
    if path.is_file():
        check_same(path, read_json(path), configuration)
        return
    with writing(out):
        write_json(path, json.loads(json.dumps(configuration)))


def _request(prompt: Sequence[int], index: int, number: int, settings: CollectSettings) -> Request:
    """A prompt's own seed: with one for all, the same k would meet the same u in every prompt."""
    own = noise.uniform(settings.seed, int(Purpose.PROMPTS), index, stream=noise.Stream.TRAINING)
    sampling = SamplingSettings(**{name: getattr(settings.law, name) for name in LAW}, seed=int(own * 2**53))
    return Request(prompt, sampling, StopSettings(max_new_tokens=settings.max_new_tokens), number)


def _answers(engine: Engine, requests: Sequence[Request]) -> list[Sample]:
    decoder = engine.decoder
    recorder = Recorder()
    before, decoder.observer = decoder.observer, recorder
    rows = [decoder.admit(request) for request in requests]
    found: dict[int, Sample] = {}
    try:
        while len(found) < len(rows):
            decoder.step()
            for row in rows:
                if row.finish_reason is not None and row.id not in found:
                    found[row.id] = recorder.sample(row)
                    decoder.release(row)
    finally:
        decoder.observer = before
        for row in rows:
            if row.id not in found:
                decoder.release(row)
    return [found[row.id] for row in rows]


def _tensors(samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    new = [where for sample in samples for where in sample.intervals]
    return {
        "lengths": torch.tensor([len(sample.tokens) for sample in samples]),
        "prompts": torch.tensor([sample.prompt for sample in samples]),
        "tokens": torch.tensor([token for sample in samples for token in sample.tokens], dtype=torch.int32),
        "u": torch.tensor([u for sample in samples for u in sample.u], dtype=torch.float64),
        "low": torch.tensor([where.low for where in new], dtype=torch.float64),
        "high": torch.tensor([where.high for where in new], dtype=torch.float64),
    }
