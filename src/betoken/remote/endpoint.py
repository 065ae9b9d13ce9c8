"""One server's address: requests in JSON, answers in JSON or as server-sent events.

Whatever goes wrong is a ServerError: one line that names the URL. A request is asked again only while nothing of its
answer has come: after status 429 or 5xx and after a dropped connection, not after a time-out, which was long enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import sleep
from typing import Any, Self

import httpx2

from betoken.errors import InputError, ServerError

_AGAIN = {429, 500, 502, 503, 504}
"""Statuses of a server that may do better in a moment."""
_DROPPED = (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError)
_LONGEST_WAIT = 30.0
"""Most seconds that a server's Retry-After is obeyed."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a server is waited for, and how often it is asked again."""

    connect: float = 5.0
    """Seconds to connect."""
    silence: float = 120.0
    """Seconds without a sign of life, before an answer and within it."""
    retries: int = 3
    """How often a request is asked again."""
    backoff: float = 0.5
    """Seconds before it is asked again, doubled each time; a server's Retry-After counts instead."""

    def __post_init__(self) -> None:
        """Raises InputError for values out of range."""
        for name in ("connect", "silence"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} must be a number of seconds above 0, not {getattr(self, name):g}")
        if self.retries < 0 or not 0.0 <= self.backoff < float("inf"):
            raise InputError(f"retries and backoff must be at least 0, not {self.retries} and {self.backoff:g}")


class Endpoint:
    """The base URL of an OpenAI-compatible server. For several threads at once."""

    def __init__(self, url: str, *, key: str | None = None, patience: Patience | None = None) -> None:
        """`url`: http://HOST:PORT/v1; a path that is left out is /v1. `key`: sent as a bearer token, never shown.

        Raises InputError for what is no such URL or key.
        """
        base = _base(url)
        self._shown = base.copy_with(username=None, password=None)
        self.url = str(self._shown)
        """For messages: without user name and password."""
        self.patience = patience or Patience()
        self._key = _checked_key(key)
        self._base = str(base)
        self._client = httpx2.Client(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx2.Timeout(self.patience.silence, connect=self.patience.connect),
        )

    def get(self, path: str, *, root: bool = False) -> Any | None:
        """A document; None where the server has none (status 404, 405 or 501). `root`: beside /v1, not below it."""
        response = self._send("GET", self._at(path, root), None, whole=True, allowed={404, 405, 501})
        return self._json(response.text) if response.is_success else None

    def post(self, path: str, body: Mapping[str, Any], *, root: bool = False) -> dict[str, Any]:
        """The answer to a request."""
        response = self._send("POST", self._at(path, root), body, whole=True)
        return self._object(self._json(response.text))

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of an answer, as they come. Closing it hangs up. An end without [DONE] is no error here."""
        response = self._send("POST", self._at(path, False), body, whole=False)
        try:
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise self.fault(f"answered with {kind or 'no type'!r:.60}, not with a stream of events")
            for line in response.iter_lines():
                data = line.removeprefix("data:").strip() if line.startswith(("data:", "error:")) else ""
                if data == "[DONE]":
                    return
                if data:
                    yield self._object(self._json(data.removeprefix("error:").strip()))
        except httpx2.TransportError as error:
            raise self._broken(error) from None
        finally:
            response.close()

    def fault(self, what: str) -> ServerError:
        """What the server did, with its URL in front, and never the key."""
        line = " ".join(what.split())
        if self._key:
            line = line.replace(self._key, "***")
        return ServerError(f"{self.url}: {line}")

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _at(self, path: str, root: bool) -> str:
        return (self._base.removesuffix("/v1") if root else self._base) + path

    def _send(
        self, verb: str, url: str, body: Mapping[str, Any] | None, *, whole: bool, allowed: set[int] | None = None
    ) -> httpx2.Response:
        """A response with a good status (or an `allowed` one), read to its end if `whole`."""
        for attempt in range(self.patience.retries + 1):
            last = attempt == self.patience.retries
            wait = self.patience.backoff * 2.0**attempt
            try:
                response = self._client.send(self._client.build_request(verb, url, json=body), stream=True)
                if whole or not response.is_success:
                    _read(response)
            except _DROPPED as error:
                if last:
                    raise self._broken(error) from None
            except httpx2.HTTPError as error:
                raise self._broken(error) from None
            else:
                if response.is_success or response.status_code in (allowed or ()):
                    return response
                if response.status_code not in _AGAIN or last:
                    raise self._refused(response, attempt + 1)
                wait = _retry_after(response, wait)
            sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def _broken(self, error: httpx2.HTTPError) -> ServerError:
        if isinstance(error, httpx2.ConnectTimeout):
            return self.fault(f"no connection within {self.patience.connect:g} s: is the server running?")
        if isinstance(error, httpx2.TimeoutException):
            return self.fault(f"silent for {self.patience.silence:g} s: the server hangs, or needs a longer --timeout")
        if isinstance(error, httpx2.ConnectError):
            return self.fault(f"cannot be reached ({error}): is the server running?")
        if isinstance(error, _DROPPED):
            return self.fault("the connection broke off before the answer was complete: did the server die?")
        return self.fault(f"cannot be talked to ({type(error).__name__}: {error})")

    def _refused(self, response: httpx2.Response, times: int) -> ServerError:
        said = _message(response.text)
        status = f"status {response.status_code}"
        if response.status_code in (401, 403):
            return self.fault(f"{status}, {said}: give its key with --api-key or BETOKEN_API_KEY")
        if response.status_code in _AGAIN:
            return self.fault(f"{status} ({times} {'time' if times == 1 else 'times'}), {said}")
        return self.fault(f"refuses the request with {status}, {said}")

    def _json(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise self.fault(f"answered with something that is no JSON: {text[:40]!r}") from None

    def _object(self, found: Any) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise self.fault(f"answered with a {type(found).__name__}, not with a JSON object")
        if found.get("error"):
            raise self.fault(f"reports an error: {_message(json.dumps(found))}")
        return found


def _base(url: str) -> httpx2.URL:
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise InputError(f"{url!r:.80} is no URL ({error})") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        shown = parsed.copy_with(username=None, password=None)
        raise InputError(f"{shown}: a server is http://HOST:PORT/v1, or https, without a query")
    return parsed.copy_with(path=parsed.path.rstrip("/") or "/v1")


def _checked_key(key: str | None) -> str | None:
    """A key that a header can hold; what is wrong with another is said without showing it."""
    key = (key or "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InputError("the API key has a character that no key can have: look for spaces or line breaks")
    return key or None


def _read(response: httpx2.Response) -> None:
    try:
        response.read()
    finally:
        response.close()


def _retry_after(response: httpx2.Response, otherwise: float) -> float:
    try:
        return min(_LONGEST_WAIT, max(0.0, float(response.headers["retry-after"])))
    except (KeyError, ValueError):  # absent, or a date
        return otherwise


def _message(text: str) -> str:
    """What a server says about an error, whatever the form, in at most 200 characters."""
    try:
        found = json.loads(text)
        for key in ("error", "message", "detail"):
            found = found[key] if isinstance(found, dict) and key in found else found
    except ValueError:
        found = text
    return str(found).strip()[:200] or "no message"
