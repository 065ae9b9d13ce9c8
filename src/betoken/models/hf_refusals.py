"""Which models of Hugging Face transformers cannot score trees, and what their configs say of the others."""

from __future__ import annotations

from typing import Any

from betoken.errors import InputError

_FULL = {"full_attention", "attention", "global"}
_RECURRENT = ("linear", "mamba", "conv", "recurrent")
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "max_sequence_length")
_CHUNKS = ("attention_chunk_size", "chunk_size", "local_attention_window", "attention_window")


def refuse(config: Any, model_class: Any, name: str) -> None:
    """Raise InputError for a model whose state is no tree of keys and values that a mask can select from."""
    text, kind = config.get_text_config(), config.model_type
    if config.is_encoder_decoder:
        raise InputError(f"{name}: {kind} is an encoder-decoder; betoken decodes decoder-only models")
    layers = {str(layer) for layer in getattr(text, "layer_types", None) or []}
    if model_class._is_stateful or any(word in layer for layer in layers for word in _RECURRENT):
        raise InputError(f"{name}: {kind} has recurrent state, which cannot score a tree; take a transformer")
    if getattr(text, "alibi", False) or kind in ("bloom", "mpt"):
        raise InputError(f"{name}: {kind} biases attention by distance (ALiBi), which is not supported")
    layers |= {str(layer) for layer in getattr(text, "attention_layers", None) or []}
    if layers - _FULL or _window(text):
        raise InputError(f"{name}: {kind} limits attention to a window or to chunks; only full attention works")


def context_of(text: Any, name: str) -> int:
    """Most positions of a row. Raises InputError where the text config does not say."""
    for key in _CONTEXT_NAMES:
        size = getattr(text, key, None)
        if isinstance(size, int) and size > 0:
            return size
    raise InputError(f"{name}: config.json names no context length ({', '.join(_CONTEXT_NAMES)})")


def eos_ids_of(model: Any) -> tuple[int, ...]:
    """Ids that end a text, by the model's configs."""
    found: list[int] = []
    for source in (model.generation_config, model.config.get_text_config()):
        ids = getattr(source, "eos_token_id", None)
        found += ids if isinstance(ids, list) else [] if ids is None else [ids]
    return tuple(dict.fromkeys(int(i) for i in found if int(i) >= 0))


def _window(text: Any) -> bool:
    """Whether the config of a model without `layer_types` limits attention below the context."""
    if getattr(text, "layer_types", None):
        return False
    context = max((getattr(text, key, None) or 0 for key in _CONTEXT_NAMES), default=0)
    window = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    sizes = [window, *(getattr(text, key, None) for key in _CHUNKS)]
    return any(isinstance(size, int) and 0 < size < context for size in sizes)
