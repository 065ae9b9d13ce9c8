"""Committed tokens to text, one chunk a token, the same chunks whichever drafter found the tokens.

A chunk may be empty: half a character waits for its other half, and text that could be the beginning of a stop
string waits until it is clear that it is not. Joined, the chunks are the text of all tokens, special ones left out,
up to the first stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from betoken.models.tokenizer import Tokenizer


class TextStream:
    """The text of one answer while its tokens arrive."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        """`stop`: texts that end the answer and are not part of it."""
        self._tokenizer = tokenizer
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._started = False
        self._filter = StopFilter(stop)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come; nothing is written after it."""
        return self._filter.stopped

    def push(self, token: int) -> str:
        """The text that is certain now that this token is committed."""
        if token in self._tokenizer.special_ids:
            return ""
        spelled = self._tokenizer.token_bytes(token)
        if spelled and not self._started:
            self._started = True
            spelled = self._first(token, spelled)
        return self._filter.push(self._characters.decode(spelled))

    def finish(self) -> str:
        """What was held back, when no token follows. Half a character becomes U+FFFD."""
        return self._filter.push(self._characters.decode(b"", final=True)) + self._filter.finish()

    def _first(self, token: int, spelled: bytes) -> bytes:
        """A SentencePiece tokenizer leaves out the space in front of a text: ask it."""
        if spelled.startswith(b" ") and self._tokenizer.decode([token]) == spelled[1:].decode("utf-8", "replace"):
            return spelled[1:]
        return spelled


class StopFilter:
    """Passes text on up to the stop string that is complete first; what is passed depends on the text alone."""

    def __init__(self, stop: Sequence[str]) -> None:
        """`stop`: non-empty texts."""
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The part of what came so far that no stop string can begin in."""
        if self.stopped:
            return ""
        seen = self._held + text
        self.stopped, end = self._search(seen)
        self._held = "" if self.stopped else seen[end:]
        return seen[:end]

    def finish(self) -> str:
        """What was held back for a stop string that did not come."""
        held, self._held = self._held, ""
        return held

    def _search(self, text: str) -> tuple[bool, int]:
        """Whether `text` has a stop string, and how much of it may be passed on.

        Of several stop strings the one that ends first counts, and of those the longest: what a reader who sees one
        character at a time would have found.
        """
        found = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            return True, min(found)[1]
        return False, min((_keep(text, stop) for stop in self._stop), default=len(text))


def _keep(text: str, stop: str) -> int:
    """Where the longest end of `text` that begins `stop` starts."""
    first = max(0, len(text) - len(stop) + 1)
    return next((at for at in range(first, len(text)) if stop.startswith(text[at:])), len(text))
