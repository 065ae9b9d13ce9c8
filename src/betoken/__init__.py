"""betoken: the fastest honest way to generate text with open-weight language models, by speculating."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from betoken.errors import BetokenError, InputError

if TYPE_CHECKING:
    from betoken.conversation import Conversation
    from betoken.engine import Engine, Stream
    from betoken.loading import load
    from betoken.result import Chunk, Result, Stats
    from betoken.settings import GenerationSettings

__version__ = "0.1.0"

__all__ = [
    "BetokenError",
    "Chunk",
    "Conversation",
    "Engine",
    "GenerationSettings",
    "InputError",
    "Result",
    "Stats",
    "Stream",
    "__version__",
    "load",
]

_LAZY = {
    "Chunk": "betoken.result",
    "Conversation": "betoken.conversation",
    "Engine": "betoken.engine",
    "GenerationSettings": "betoken.settings",
    "Result": "betoken.result",
    "Stats": "betoken.result",
    "Stream": "betoken.engine",
    "load": "betoken.loading",
}
"""Public name -> its module, imported when it is first used: torch takes seconds, `betoken --help` must not."""


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'betoken' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
