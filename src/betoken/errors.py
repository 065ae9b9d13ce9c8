"""What betoken raises.

    BetokenError            everything betoken raises on purpose
    +-- InputError          the caller's input cannot be used: one line that says what to do (exit code 2)
        +-- ServerError     a server that the caller named cannot be reached or does not answer as it should

Anything else that escapes is a fault of ours (exit code 1).
"""

from __future__ import annotations


class BetokenError(Exception):
    """Base of every error that betoken raises on purpose."""


class InputError(BetokenError):
    """A name, setting, file or prompt that cannot be used. The message is one line and says what to do."""


class ServerError(InputError):
    """A server that cannot be reached, refuses a request, or breaks off. The message is one line with its URL."""
