"""A server that does what a test tells it, on a thread of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

Handler = BaseHTTPRequestHandler
Act = Callable[[Handler, dict[str, Any]], None]
"""Answers one POST request with that body."""


@dataclass
class Scripted:
    """What it does, and what it was asked."""

    acts: Sequence[Act]
    """One for each POST request; the last goes on."""
    owner: str = "vllm"
    names: Sequence[str] = ("m",)
    models: Act | None = None
    """Answers /v1/models; None: with `names` and `owner`."""
    url: str = ""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Path and body of each POST request."""
    keys: list[str | None] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)


@contextmanager
def scripted(*acts: Act, **own: Any) -> Iterator[Scripted]:
    """A running server."""
    script = Scripted(acts, **own)

    class Scene(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            script.keys.append(self.headers.get("authorization"))
            if script.models is not None:
                script.models(self, {})
                return
            data = [{"id": name, "object": "model", "owned_by": script.owner} for name in script.names]
            if self.path == "/v1/models":
                answer(self, {"object": "list", "data": data})
            else:
                answer(self, {"error": "no such path"}, 404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with script.lock:
                script.asked.append((self.path, body))
                act = script.acts[min(len(script.asked), len(script.acts)) - 1]
            act(self, body)

        def log_message(self, *told: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Scene)
    server.daemon_threads = True
    server.block_on_close = False
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(handler: Handler, document: object, status: int = 200, **headers: str) -> None:
    """A JSON document, or bytes as they are."""
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    handler.send_response(status)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", str(len(data)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(data)


def status(code: int, document: object = None, **headers: str) -> Act:
    """An error that may be asked about again at once."""
    return lambda handler, body: answer(handler, document or {"error": {"message": "busy"}}, code, **headers)


def events(handler: Handler, *data: str, end: bool = True) -> None:
    """A stream of events; without `end` the connection breaks off behind them."""
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.send_header("transfer-encoding", "chunked")
    handler.end_headers()
    for line in data:
        chunk = f"data: {line}\n\n".encode()
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        handler.wfile.flush()
    if end:
        handler.wfile.write(b"0\r\n\r\n")
    else:
        handler.close_connection = True


def writes(*pieces: str, finish: str = "stop") -> Act:
    """Streams pieces of text in the form of the endpoint that was asked."""

    def act(handler: Handler, body: dict[str, Any]) -> None:
        events(handler, *[said(handler, piece) for piece in pieces], said(handler, "", finish), "[DONE]")

    return act


def said(handler: Handler, text: str, finish: str | None = None) -> str:
    """One event."""
    part = {"delta": {"content": text}} if "chat" in handler.path else {"text": text}
    return json.dumps({"choices": [part | {"index": 0, "finish_reason": finish}]})


def verdict(correct: float, incorrect: float) -> Act:
    """Log-probabilities of both words in OpenAI's two forms."""

    def act(handler: Handler, body: dict[str, Any]) -> None:
        top = {"Correct": correct, " Incorrect": incorrect}
        if "chat" in handler.path:
            listed = [{"token": token, "logprob": logprob} for token, logprob in top.items()]
            logprobs: dict[str, Any] = {"content": [{"token": "Correct", "logprob": correct, "top_logprobs": listed}]}
        else:
            logprobs = {"tokens": ["Correct"], "top_logprobs": [top]}
        answer(handler, {"choices": [{"text": "Correct", "logprobs": logprobs, "finish_reason": "length"}]})

    return act
