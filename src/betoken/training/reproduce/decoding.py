"""What students and draft models bring in decoding: real sampled answers, each compared with plain sampling.

Every answer is decoded by the same decoder in float32 under verifier replay, one at a time, with a fixed node count.
An answer that is not plain sampling's of the same seed is counted and said, never left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from betoken.bench.results import Record, ResultFile
from betoken.bench.subject import Loader, Method, ModelSpec, load_subject
from betoken.bench.trial import digest
from betoken.decode import Decoder, Request
from betoken.models.student import law_numbers
from betoken.models.target import Scores
from betoken.state import SamplingSettings, State, StopSettings
from betoken.training import jobs
from betoken.training.checkpoint import NAME as CHECKPOINT
from betoken.tree import Role, TokenTree
from betoken.verifiers.verifier import Verdict

MODES = {"partial": "partial quadratic", "full": "full quadratic", "sequential": "sequential"}


class Way(NamedTuple):
    """One way of decoding."""

    drafter: str
    """What tables call it."""
    mode: str
    method: Method


@dataclass(frozen=True)
class Decoded:
    """What one way of decoding came to."""

    drafter: str
    mode: str
    nodes: int
    """Most nodes of a forward pass."""
    answers: int
    equal: int
    """Answers that are plain sampling's, token for token."""
    tokens: int
    forwards: int
    """Of the target; those of a draft model are not counted."""
    scored: int
    """Nodes of all those forward passes."""
    verifications: int
    """Forward passes that had drafts to verify."""
    accepted: int
    """Drafts that they accepted."""

    @property
    def tokens_per_forward(self) -> float:
        """1 for plain decoding."""
        return self.tokens / self.forwards if self.forwards else 0.0

    def plus(self, other: Decoded) -> Decoded:
        """The same way of decoding over more answers."""
        counts = [item.name for item in fields(self) if item.name not in ("drafter", "mode", "nodes")]
        sums = {name: getattr(self, name) + getattr(other, name) for name in counts}
        return Decoded(self.drafter, self.mode, self.nodes, **sums)


def ptp_ways(students: Mapping[str, Path], nodes: Iterable[int]) -> list[Way]:
    """Students, by what tables call them, in every mode and with every node count."""
    return [
        Way(drafter, told, Method(_label(drafter, told, count), "ptp", _settings(folder, mode), nodes=count))
        for drafter, folder in students.items()
        for mode, told in MODES.items()
        for count in nodes
    ]


def draft_model_way(drafter: str, nodes: int) -> Way:
    """The subject's draft model: a chain of as many tokens as the nodes of a step allow."""
    return Way(
        drafter, "chain", Method(_label(drafter, "chain", nodes), "draft-model", {"depth": nodes - 1}, nodes=nodes)
    )


class Answers(NamedTuple):
    """What is asked for: prompt n with seed n."""

    prompts: Sequence[Sequence[int]]
    max_new_tokens: int
    law: SamplingSettings
    """Which the answers are drawn from."""

    def request(self, n: int) -> Request:
        """That of prompt n."""
        return Request(self.prompts[n], replace(self.law, seed=n), StopSettings(self.max_new_tokens))


def decode(
    spec: ModelSpec, ways: Sequence[Way], answers: Answers, out: Path, bar: jobs.Bar, load: Loader = load_subject
) -> tuple[Decoded, ...]:
    """Answer each prompt plainly and in every way; returns a line a way.

    Each answer is appended to `out`, a result file, and a second call makes only those that are missing. Raises
    InputError for a file of other settings or weights.
    """
    plain, prompts = Way("none", "", Method.plain()), answers.prompts
    told = {
        "model": spec.model,
        "draft_model": spec.draft_model,
        "weights": {str(folder): _weights(folder) for folder in _folders(spec, ways)},
        "prompts": hashlib.sha256(repr([list(prompt) for prompt in prompts]).encode()).hexdigest()[:16],
        "max_new_tokens": answers.max_new_tokens,
        "law": law_numbers(answers.law),
        "ways": [way.method.describe() for way in ways],
    }
    with ResultFile(out, told) as results, bar(f"the same command continues {out}") as tell:
        done = {(record["way"], record["prompt"]) for record in results.records}
        subject = None
        for way in (plain, *ways):
            missing = [n for n in range(len(prompts)) if (way.method.label, n) not in done]
            if not missing:
                continue
            subject = subject or load(spec)
            decoder = way.method.decoder(subject)
            for n in missing:
                results.append({"way": way.method.label, "prompt": n, **_answered(decoder, answers.request(n))})
                tell(len(results.records), (1 + len(ways)) * len(prompts), f"decoding, {way.method.label}")
        return tuple(_summary(way, plain, results.records) for way in ways)


def decoding_table(seeds: Sequence[Sequence[Decoded]]) -> str:
    """The lines of all seeds together as a Markdown table, and a sentence on whether all answers were plain's."""
    found = together(seeds)
    lines = [
        "| drafter | mode | nodes | tokens a forward | drafts accepted a verification | nodes a forward | equal |",
        "| --- | --- | --: | --: | --: | --: | --: |",
    ]
    for one in found:
        accepted = f"{one.accepted / one.verifications:.2f}" if one.verifications else "-"
        equal = f"{one.equal} of {one.answers}"
        lines.append(
            f"| {one.drafter} | {one.mode} | {one.nodes} | {one.tokens_per_forward:.2f} | {accepted} "
            f"| {one.scored / one.forwards:.1f} | {equal if one.equal == one.answers else f'**{equal}**'} |"
        )
    answers, equal_ones = sum(one.answers for one in found), sum(one.equal for one in found)
    if answers == equal_ones:
        verdict = f"All {answers} answers are plain sampling's with the same seeds, token for token."
    else:
        verdict = f"**{answers - equal_ones} of {answers} answers are NOT plain sampling's with the same seeds.**"
    return "\n".join([*lines, "", verdict])


def together(seeds: Sequence[Sequence[Decoded]]) -> list[Decoded]:
    """The lines of several seeds added up."""
    first, *others = seeds
    found = list(first)
    for other in others:
        found = [one.plus(more) for one, more in zip(found, other, strict=True)]
    return found


@dataclass
class _Counts:
    """An observer of the decoder."""

    verifications: int = 0
    accepted: int = 0
    scored: int = 0

    def __call__(self, tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        self.verifications += int((tree.roles == Role.CANDIDATE).any(axis=1).sum())
        self.accepted += sum(len(row.path) - 1 for row in verdict.rows)
        self.scored += int(tree.counts.sum())


def _answered(decoder: Decoder, request: Request) -> Record:
    decoder.observer = counts = _Counts()
    row = decoder.admit(request)
    while row.finish_reason is None:
        decoder.step()
    decoder.release(row)
    return {"tokens": row.generated, "sha256": digest(row.new_tokens), "forwards": row.steps, **asdict(counts)}


def _summary(way: Way, plain: Way, records: Sequence[Record]) -> Decoded:
    expected = {record["prompt"]: record["sha256"] for record in records if record["way"] == plain.method.label}
    own = [record for record in records if record["way"] == way.method.label]
    counts: dict[str, Any] = {
        name: sum(record[name] for record in own)
        for name in ("tokens", "forwards", "scored", "verifications", "accepted")
    }
    equal = sum(record["sha256"] == expected[record["prompt"]] for record in own)
    return Decoded(way.drafter, way.mode, int(way.method.nodes), answers=len(own), equal=equal, **counts)


def _label(drafter: str, mode: str, nodes: int) -> str:
    return f"{drafter}, {mode}, {nodes} nodes"


def _settings(student: Path, mode: str) -> dict[str, object]:
    return {"student": str(student), "mode": mode}


def _folders(spec: ModelSpec, ways: Sequence[Way]) -> list[Path]:
    """Whose weights make the answers."""
    models = [spec.model] if spec.draft_model is None else [spec.model, spec.draft_model]
    students = [str(way.method.settings["student"]) for way in ways if "student" in way.method.settings]
    return [Path(name) for name in dict.fromkeys([*models, *students])]


def _weights(folder: Path) -> str:
    """A hash of the weights in a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        if path.name != CHECKPOINT:
            found.update(path.read_bytes())
    return found.hexdigest()[:16]
