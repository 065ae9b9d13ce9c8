"""Chat messages to one prompt, by the template that comes with a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from betoken.errors import InputError

Message = Mapping[str, Any]
"""{"role": str, "content": str, ...}"""

Prompt = str | Sequence[Message]
"""A text, or a conversation."""


def messages_of(prompt: Prompt) -> Sequence[Message]:
    """A prompt as a conversation: a text is what the user says."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


@dataclass(frozen=True)
class ChatTemplate:
    """A model's own template, or that it has none."""

    source: str | None
    """Jinja; None for a model without a template."""
    special_names: Mapping[str, str] = field(default_factory=dict)
    """Tokens that it may name, such as {"bos_token": "<s>"}."""

    def apply(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text that makes the model answer a conversation; encode it with `add_special=False`.

        `add_generation_prompt`: end where the model's own turn begins. `variables`: what else the template may read,
        such as {"enable_thinking": False}. Raises InputError for a model without a template, for messages that are
        malformed, and for those that the template itself refuses.
        """
        if self.source is None:
            raise InputError("this model has no chat template: pass plain text (--raw)")
        _check_messages(messages)
        try:
            return _compile(self.source).render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **(dict(self.special_names) | dict(variables or {})),
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"the model's chat template refuses these messages: {reason}") from error


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list | tuple) or not messages:
        raise InputError('chat messages must be a non-empty list of {"role": ..., "content": ...}')
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise InputError(f"chat message {number} must be an object with role and content, not {message!r:.60}")
        for key in ("role", "content"):
            value = message.get(key)
            if not isinstance(value, str):
                raise InputError(f"chat message {number}: {key} must be text, not {value!r:.60}")
        if not message["role"]:
            raise InputError(f"chat message {number}: role is empty")


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`: marks a template's answers for training; here just its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@cache
def _compile(template: str) -> Any:
    """Chat templates come with a model: they run in a sandbox that can neither reach Python nor change anything."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
