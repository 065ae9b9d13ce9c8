"""A model behind HTTP: what is asked of it, and how it writes and is read as a judge.

Where its chat template is known, from a tokenizer here or from llama.cpp's /props, prompts are made here and sent as
text: then a text can be continued anywhere. Where it is not, messages are sent to the chat endpoint.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urldefrag

from betoken.errors import InputError
from betoken.models.chat_template import ChatTemplate, Message, Prompt, messages_of
from betoken.models.tokenizer import Tokenizer
from betoken.remote.endpoint import Endpoint, Patience
from betoken.remote.replies import Usage, alternatives, said, usage
from betoken.settings import GenerationSettings
from betoken.state import FinishReason

Asked = str | list[Message]
"""A text to continue, or messages; of messages that end with the assistant's the last is continued."""

LLAMA_CPP, VLLM = "llamacpp", "vllm"
"""What these servers call themselves in /v1/models."""
_OPEN = {LLAMA_CPP, VLLM, "sglang", "betoken"}
"""Servers that take more settings than OpenAI's, and continue a last message of the assistant's."""


def is_url(name: str) -> bool:
    """Whether a model's name is a server's address."""
    return name.startswith(("http://", "https://"))


@dataclass(frozen=True)
class RemoteModel:
    """A model of an OpenAI-compatible server. `open` is the way here."""

    endpoint: Endpoint
    served: str
    """The server's name for it."""
    owner: str = ""
    """What the server calls itself; "" if it does not say."""
    template: ChatTemplate | None = None
    """Its chat template; None: the server applies it."""
    begins: str = ""
    """What the server puts in front of every text, which templates write too."""
    tokenizer: Tokenizer | None = None
    """Its tokenizer, where there is one here."""
    concurrent: int = 8
    """Most requests at a time."""

    @classmethod
    def open(
        cls,
        url: str,
        *,
        served: str | None = None,
        key: str | None = None,
        tokenizer: Tokenizer | None = None,
        patience: Patience | None = None,
        concurrent: int = 8,
    ) -> RemoteModel:
        """Ask a server what it serves, and how its prompts are made.

        `url`: http://HOST:PORT/v1, maybe with #NAME, which is `served`, the model's name there; a server of one model
        need not be told. `tokenizer`: the model's, with its chat template. Raises ServerError for a server that
        cannot be reached, InputError for a model that is not clear.
        """
        if concurrent < 1:
            raise InputError(f"concurrent must be at least 1, not {concurrent}")
        address, name = urldefrag(url)
        if name and served and name != served:
            raise InputError(f"{url}: names model {name}, and the served model is to be {served}: leave one out")
        endpoint = Endpoint(address, key=key, patience=patience)
        try:
            known = _models(endpoint)
            chosen = served or name or _only(endpoint, list(known))
            owner = known.get(chosen, next(iter(known.values()), ""))
            template, begins = _template(endpoint, owner, tokenizer)
        except BaseException:
            endpoint.close()
            raise
        return cls(endpoint, chosen, owner, template, begins, tokenizer, concurrent)

    @property
    def name(self) -> str:
        """For reports."""
        return f"{self.endpoint.url}#{self.served}"

    @property
    def continues(self) -> bool:
        """Whether it can go on from the middle of an answer to chat messages."""
        return self.template is not None or self.owner in _OPEN

    def ask(self, prompt: Prompt, *, raw: bool = False, answer: str = "") -> Asked:
        """What makes it answer `prompt`, going on after `answer`, the beginning of its answer.

        Raises InputError for an empty prompt, and for messages where `raw` takes a text.
        """
        if raw and not isinstance(prompt, str):
            raise InputError("a raw prompt is a text, not chat messages")
        if isinstance(prompt, str) and not prompt.strip():
            raise InputError("the prompt is empty: write something to answer")
        if raw:
            return f"{prompt}{answer}"
        messages = list(messages_of(prompt))
        if self.template is not None:
            return self.template.apply(messages).removeprefix(self.begins) + answer
        return [*messages, {"role": "assistant", "content": answer}] if answer else messages

    def write(self, asked: Asked, settings: GenerationSettings, most: int) -> Reply:
        """Its answer of at most `most` tokens, piece by piece. Stop texts are the reader's affair.

        Raises InputError for settings that cannot be asked of a server.
        """
        _check(settings)
        body = self._body(asked, most) | self._sampling(settings)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        return Reply(self.endpoint, self.endpoint.stream(_path(asked), body))

    def judge(self, asked: Asked) -> tuple[dict[str, float], Usage]:
        """Log-probabilities of the most probable next tokens by their text, and what that cost."""
        body = self._body(asked, 1) | {"temperature": 0.0}
        if isinstance(asked, str):
            body["logprobs"] = 256 if self.owner == LLAMA_CPP else 20  # more than vLLM gives
        else:
            body |= {"logprobs": True, "top_logprobs": 20}
            if self.owner in _OPEN:
                body["chat_template_kwargs"] = {"enable_thinking": False}
        reply = self.endpoint.post(_path(asked), body)
        try:
            found = alternatives(reply)
        except ValueError as error:
            raise self.endpoint.fault(f"answered in a form that is not understood: {error}") from None
        if not found:
            raise self.endpoint.fault("reports no log-probabilities, which a judge needs")
        return found, usage(reply)

    @property
    def tokenizes(self) -> bool:
        """Whether the server tells how it cuts words into tokens."""
        return self.owner == LLAMA_CPP

    def first_tokens(self, word: str) -> set[str]:
        """Texts of the tokens that may begin a word, after nothing, a space or a line break, in every case."""
        found = set()
        for spelled in {word, word.lower(), word.upper()}:
            for ahead in ("", " ", "\n"):
                reply = self.endpoint.post("/tokenize", {"content": ahead + spelled, "with_pieces": True}, root=True)
                tokens = reply.get("tokens")
                pieces = (
                    [one.get("piece") for one in tokens if isinstance(one, dict)] if isinstance(tokens, list) else []
                )
                found.update([one.strip() for one in pieces if isinstance(one, str) and one.strip()][:1])
        return found

    def close(self) -> None:
        """Give the connections back."""
        self.endpoint.close()

    def _body(self, asked: Asked, most: int) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.served, "max_tokens": most}
        if isinstance(asked, str):
            body["prompt"] = asked
            if self.owner == VLLM:
                body["add_special_tokens"] = False
        else:
            body["messages"] = [dict(message) for message in asked]
            if asked[-1]["role"] == "assistant":
                body |= {"add_generation_prompt": False, "continue_final_message": True}
        return body

    def _sampling(self, settings: GenerationSettings) -> dict[str, Any]:
        """Settings in the server's words: all of them where its own usual ones may be others."""
        body: dict[str, Any] = {"temperature": settings.temperature, "top_p": settings.top_p}
        if settings.temperature > 0.0:
            body["seed"] = settings.seed % (1 << 31)
        more = {
            "top_k": (settings.top_k, 0),
            "min_p": (settings.min_p, 0.0),
            "repetition_penalty": (settings.repetition_penalty, 1.0),
            "repeat_penalty": (settings.repetition_penalty, 1.0),  # llama.cpp's word
            "presence_penalty": (settings.presence_penalty, 0.0),
            "frequency_penalty": (settings.frequency_penalty, 0.0),
        }
        body |= {key: value for key, (value, usual) in more.items() if value != usual or self.owner in _OPEN}
        if settings.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in settings.logit_bias.items()}
        return body


class Reply(Iterator[str]):
    """The pieces of an answer as they come, none empty. Close it to hang up."""

    def __init__(self, endpoint: Endpoint, events: Iterator[Mapping[str, Any]]) -> None:
        """`RemoteModel.write` is the way here."""
        self._endpoint, self._events = endpoint, cast("Generator[Mapping[str, Any], None, None]", events)
        self._pieces = 0
        self.finish: FinishReason | None = None
        """Set at the end."""
        self.usage = Usage(None, None, None)

    @property
    def written(self) -> int:
        """Tokens of the answer; pieces where the server does not count."""
        return self._pieces if self.usage.written is None else self.usage.written

    def __next__(self) -> str:
        """The next piece. Raises ServerError where the answer breaks off."""
        for event in self._events:
            try:
                text, finish = said(event)
            except ValueError as error:
                raise self._endpoint.fault(f"answered in a form that is not understood: {error}") from None
            if "usage" in event:
                self.usage = usage(event)
            if finish is not None:
                self.finish = self._finish(finish)
            if text:
                self._pieces += 1
                return text
        if self.finish is None:
            raise self._endpoint.fault("the answer broke off before its end: did the server die?")
        raise StopIteration

    def close(self) -> None:
        """Hang up."""
        self._events.close()

    def _finish(self, reason: str) -> FinishReason:
        if reason == "length":
            return "length"
        if reason in ("stop", "eos"):
            return "stop"
        raise self._endpoint.fault(f"ended the answer with {reason!r:.40}")


def _check(settings: GenerationSettings) -> None:
    """Raises InputError for settings that servers have no word for."""
    given = {
        "logprobs": settings.logprobs is not None,
        "stop_ids": bool(settings.stop_ids),
        "ignore_eos": settings.ignore_eos,
        "min_new_tokens": settings.min_new_tokens > 0,
        "budget": settings.budget is not None,
    }
    found = [name for name, is_given in given.items() if is_given]
    if found:
        raise InputError(f"{', '.join(found)}: cannot be asked of a server; leave it out, or use a model here")


def _path(asked: Asked) -> str:
    return "/completions" if isinstance(asked, str) else "/chat/completions"


def _models(endpoint: Endpoint) -> dict[str, str]:
    """Name of each model that is served -> what the server calls itself; none where it does not tell."""
    found = endpoint.get("/models")
    data = found.get("data") if isinstance(found, dict) else None
    if found is not None and not isinstance(data, list):
        raise endpoint.fault("does not say which models it serves: is it an OpenAI-compatible server?")
    entries = [entry for entry in data or [] if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
    return {entry["id"]: str(entry.get("owned_by", "")) for entry in entries}


def _only(endpoint: Endpoint, names: list[str]) -> str:
    if len(names) != 1:
        which = f"serves {', '.join(names)[:200]}" if names else "does not say what it serves"
        raise InputError(f"{endpoint.url}: {which}: name the model, as {endpoint.url}#NAME")
    return names[0]


def _template(endpoint: Endpoint, owner: str, tokenizer: Tokenizer | None) -> tuple[ChatTemplate | None, str]:
    """The chat template, and the text that the server puts in front of every prompt."""
    props = endpoint.get("/props", root=True) if owner == LLAMA_CPP else None
    if isinstance(props, dict):
        found = endpoint.post("/tokenize", {"content": "", "add_special": True}, root=True)
        begins = str(props.get("bos_token", "")) if found.get("tokens") else ""
    elif tokenizer is not None and owner != VLLM and tokenizer.encode(""):
        begins = tokenizer.special_names.get("bos_token", "")
    else:
        begins = ""
    if tokenizer is not None and tokenizer.chat_template is not None:
        return tokenizer.template, begins
    if isinstance(props, dict) and isinstance(props.get("chat_template"), str):
        special = {key: str(props[key]) for key in ("bos_token", "eos_token") if key in props}
        return ChatTemplate(props["chat_template"], special), begins
    return None, begins
