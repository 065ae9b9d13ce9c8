"""The forms in which servers answer: texts as they stream, and the alternatives of a token.

Servers agree on requests more than on answers. Understood are OpenAI's chat completions, its older completions (also
vLLM's and llama-cpp-python's), and those of llama.cpp's own server, old and new.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class Said(NamedTuple):
    """What one event of a stream says."""

    text: str
    finish: str | None
    """Why the answer ends here; None while it goes on."""


class Usage(NamedTuple):
    """What a server says it has counted; None where it says nothing."""

    prompt: int | None
    cached: int | None
    """Tokens of the prompt that were in its cache."""
    written: int | None


def said(event: Mapping[str, Any]) -> Said:
    """The text of an event. Raises ValueError for a form that is not understood."""
    choices = event.get("choices")
    if not isinstance(choices, list):
        raise ValueError("no choices")
    if not choices:  # the last event of a stream may tell the usage alone
        return Said("", None)
    choice = choices[0]
    if not isinstance(choice, Mapping):
        raise ValueError("a choice that is no object")
    part = choice.get("delta", choice.get("message"))
    text = part.get("content") if isinstance(part, Mapping) else choice.get("text")
    finish = choice.get("finish_reason")
    if not isinstance(text, str | None) or not isinstance(finish, str | None):
        raise ValueError("a text that is none")
    return Said(text or "", finish or None)


def usage(event: Mapping[str, Any]) -> Usage:
    """The counts of an event, as far as it has any."""
    found = event.get("usage")
    if not isinstance(found, Mapping):
        return Usage(None, None, None)
    details = found.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return Usage(_count(found.get("prompt_tokens")), _count(cached), _count(found.get("completion_tokens")))


def alternatives(reply: Mapping[str, Any]) -> dict[str, float]:
    """Token text -> log-probability at the first place of an answer; of equal texts the sum.

    Empty where the server reports none. Raises ValueError for a form that is not understood.
    """
    pairs: list[tuple[Any, Any]] = []
    for entry in _entries(reply):
        if isinstance(entry, Mapping):
            token = entry.get("token", entry.get("tok_str"))
            logprob = entry.get("logprob")
            pairs.append((token, _log(entry.get("prob")) if logprob is None else logprob))
        else:
            pairs.append(entry)
    found: dict[str, float] = {}
    for token, logprob in pairs:
        if not isinstance(token, str) or not isinstance(logprob, int | float):
            raise ValueError("an alternative without a token or log-probability")
        found[token] = float(logprob) if token not in found else _sum(found[token], float(logprob))
    return found


def _entries(reply: Mapping[str, Any]) -> list[Any]:
    choices = reply.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    logprobs = choice.get("logprobs") if isinstance(choice, Mapping) else None
    places = reply.get("completion_probabilities")  # llama.cpp's own form
    if isinstance(logprobs, Mapping):
        places = logprobs.get("content") or logprobs.get("top_logprobs")
    if not isinstance(places, list) or not places or not isinstance(places[0], Mapping):
        return []
    for key in ("top_logprobs", "top_probs", "probs"):
        if isinstance(places[0].get(key), list):
            return list(places[0][key])
    # A token may be spelled "token": what tells a list of names from a dictionary of tokens is the value's kind.
    return [places[0]] if isinstance(places[0].get("token"), str) else list(places[0].items())


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _log(probability: object) -> float | None:
    if not isinstance(probability, int | float):
        return None
    return math.log(probability) if probability > 0.0 else -math.inf


def _sum(one: float, other: float) -> float:
    top = max(one, other)
    return top if top == -math.inf else top + math.log(math.exp(one - top) + math.exp(other - top))
