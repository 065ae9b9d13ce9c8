"""Models behind HTTP: any server that speaks OpenAI's completions or chat completions."""

from __future__ import annotations

from betoken.remote.endpoint import Endpoint, Patience
from betoken.remote.model import RemoteModel, Reply, is_url

__all__ = ["Endpoint", "Patience", "RemoteModel", "Reply", "is_url"]
