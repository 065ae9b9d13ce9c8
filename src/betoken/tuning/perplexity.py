"""How much a target's numbers cost: perplexity on text, and how often its greedy choice is another's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from betoken.bench.results import Progress
from betoken.bench.subject import Loader, ModelSpec
from betoken.bench.suites import suite_text
from betoken.errors import InputError
from betoken.models.target import Target
from betoken.tree import RowTree, TokenTree

_CHUNK = 128
_WINDOW = 512


class TextScore(NamedTuple):
    """What a target makes of a text."""

    perplexity: float
    """exp of the mean negative log-probability of each token but the first of a window."""
    argmax: NDArray[np.int64]
    """Greedy choice after each token but the last of a window, [windows * (window - 1)]."""
    tokens: int


def windows(tokens: Sequence[int], window: int = _WINDOW) -> list[Sequence[int]]:
    """A text in parts of `window` tokens that do not see each other; a shorter rest is left out, if it is one."""
    whole = max(1, len(tokens) // window)
    return [tokens[begin : begin + window] for begin in range(0, whole * window, window)]


def score_text(
    target: Target, tokens: Sequence[int], window: int = _WINDOW, advance: Callable[[int], None] = lambda scored: None
) -> TextScore:
    """Score a text of at least 2 tokens by its `windows`. `advance`: told how many tokens were scored, now and then."""
    losses: list[float] = []
    choices: list[int] = []
    for part in windows(tokens, window):
        cache = target.new_cache()
        slot = cache.open()
        for at in range(0, len(part) - 1, _CHUNK):
            chunk = part[at : min(at + _CHUNK, len(part) - 1)]
            scores = target.forward(TokenTree.stack([RowTree.chain(chunk[0], chunk[1:])]), cache, [slot])
            cache.keep([slot], [range(len(chunk))])
            for node in range(len(chunk)):
                logits = scores.logits(0, node).astype(np.float64)
                top = logits.max()
                losses.append(float(top + np.log(np.exp(logits - top).sum()) - logits[part[at + node + 1]]))
                choices.append(int(logits.argmax()))
            advance(len(chunk))
        cache.close(slot)
    return TextScore(float(np.exp(np.mean(losses))), np.array(choices, dtype=np.int64), len(losses))


@dataclass(frozen=True)
class Price:
    """What rounded weights cost on one text."""

    text: str
    """Its file."""
    tokens: int
    """Tokens that were predicted."""
    float32: float
    """Perplexity."""
    dtype: str
    """What float32 was compared with: int8 or int4."""
    rounded: float
    """Perplexity in it."""
    agreement: float
    """Share of the places where both dtypes' greedy choices are the same."""

    @property
    def increase(self) -> float:
        """How much greater the perplexity is in `dtype`, in percent."""
        return 100.0 * (self.rounded / self.float32 - 1.0)

    def describe(self) -> dict[str, Any]:
        """The report as JSON values; the perplexity in `dtype` has its name."""
        values = asdict(self) | {"increase": self.increase}
        values[values.pop("dtype")] = values.pop("rounded")
        return values


def price_of_rounding(
    spec: ModelSpec,
    texts: Sequence[Path],
    load: Loader,
    tokens: int = 4096,
    progress: Progress = lambda done, total, what: None,
    dtype: str = "int8",
) -> Iterator[Price]:
    """Perplexity in `dtype`, int8 or int4, and in float32 on the first `tokens` tokens of each text.

    The models are loaded in turn. Raises InputError for another dtype, texts that cannot be read or are too short, and
    what the loader refuses.
    """
    if dtype not in ("int8", "int4"):
        raise InputError(f"dtype must be int8 or int4, whose price in float32 is asked for, not {dtype!r}")
    if tokens < 2:
        raise InputError(f"tokens must be at least 2, the first of which only leads the second, not {tokens}")
    read = [(path, _read(path)) for path in texts]
    found: dict[str, list[TextScore]] = {}
    for turn, loaded in enumerate((dtype, "float32")):
        subject = load(replace(spec, dtype=loaded))
        encoded = [(path.name, _encoded(path, subject.codec.encode(text), tokens)) for path, text in read]

        def tell(done: int, total: int, what: str, turn: int = turn, loaded: str = loaded) -> None:
            progress(done + turn * total, 2 * total, f"{what}, {loaded}")

        found[loaded] = _score_all(subject.target, encoded, tell)
        del subject  # before the next one is loaded: two models may not fit
    for path, small, full in zip(texts, found[dtype], found["float32"], strict=True):
        agreement = float((small.argmax == full.argmax).mean())
        yield Price(str(path), full.tokens, full.perplexity, dtype, small.perplexity, agreement)


def _score_all(target: Target, texts: Sequence[tuple[str, Sequence[int]]], tell: Progress) -> list[TextScore]:
    """`texts`: name and token ids of each."""
    window = min(_WINDOW, target.context)
    total = sum(len(part) - 1 for _, ids in texts for part in windows(ids, window))
    done = 0
    scores = []
    for name, ids in texts:

        def advance(scored: int, name: str = name) -> None:
            nonlocal done
            done += scored
            tell(done, total, name)

        scores.append(score_text(target, ids, window, advance))
    return scores


def _read(path: Path) -> str:
    """A suite's questions and answers, or the file as it is."""
    if path.suffix == ".jsonl":
        return suite_text(path)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None


def _encoded(path: Path, ids: Sequence[int], tokens: int) -> Sequence[int]:
    if len(ids) < 2:
        raise InputError(f"{path}: fewer than 2 tokens, so there is nothing to predict; give a longer text")
    return ids[:tokens]
