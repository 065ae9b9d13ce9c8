"""Options of commands whose models may be behind HTTP, and how such models are opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from betoken.errors import InputError

if TYPE_CHECKING:
    from betoken.remote import RemoteModel

_PANEL = "Models behind HTTP"

Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        rich_help_panel=_PANEL,
        help="Of --model: store name, folder, GGUF file or Hub id. Not needed with llama.cpp's server.",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar=["BETOKEN_API_KEY", "OPENAI_API_KEY"],
        rich_help_panel=_PANEL,
        help="Sent to the servers named here; better given as a variable, which no list of processes shows.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", rich_help_panel=_PANEL, help="Longest silence of a server in seconds. Default: 120."),
]
ConnectTimeout = Annotated[
    float | None,
    typer.Option("--connect-timeout", rich_help_panel=_PANEL, help="Most seconds to connect. Default: 5."),
]
Retries = Annotated[
    int | None,
    typer.Option(
        "--retries",
        rich_help_panel=_PANEL,
        help="How often a request is asked again after status 429 or 5xx. Default: 3.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Servers:
    """How models behind HTTP are reached."""

    tokenizer: Tokenizer = None
    api_key: ApiKey = None
    timeout: Timeout = None
    connect_timeout: ConnectTimeout = None
    retries: Retries = None

    def open(self, url: str, cache_dir: Path | None, *, is_target: bool) -> RemoteModel:
        """A server's model; --tokenizer is the target's.

        Raises ServerError for a server that does not answer, InputError for what cannot be used.
        """
        from betoken.models.files import BarProgress
        from betoken.models.store import resolve
        from betoken.models.tokenizer import Tokenizer
        from betoken.remote import Patience, RemoteModel

        usual = Patience()
        patience = Patience(
            connect=usual.connect if self.connect_timeout is None else self.connect_timeout,
            silence=usual.silence if self.timeout is None else self.timeout,
            retries=usual.retries if self.retries is None else self.retries,
        )
        own = None
        if self.tokenizer is not None and is_target:
            own = Tokenizer.from_folder(resolve(self.tokenizer, cache_dir, BarProgress(), weights=False))
        return RemoteModel.open(url, key=self.api_key, tokenizer=own, patience=patience)


def refuse(options: Mapping[str, bool], why: str) -> None:
    """Raises InputError for options that were given where they say nothing."""
    given = [name for name, is_given in options.items() if is_given]
    if given:
        raise InputError(f"{', '.join(given)}: {why}")
