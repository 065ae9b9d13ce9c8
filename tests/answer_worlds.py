"""Tiny random models that judge, and plain requests to compare packed passes with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

import betoken
import tiny_models
from betoken.decode import Decoder, Request
from betoken.drafters.plain import Plain
from betoken.engine import Engine
from betoken.models.native.image import in_memory
from betoken.models.native.model import pack_model
from betoken.models.native.pages import PagedCache
from betoken.models.native.target import NativeTarget
from betoken.models.target import Cache, Scores, Target
from betoken.state import State, StopSettings
from betoken.tree import TokenTree
from betoken.tuning.nodes import FixedNodes
from betoken.verifiers.replay import Replay
from betoken.verifiers.verifier import Verdict
from cli_home import TEMPLATE

pairs = cache(tiny_models.pair)


@cache
def native(family: str, dtype: str) -> NativeTarget:
    """The random model of a family in our own kernels."""
    tensors = pairs(family).reference.state_dict()
    config = pairs(family).decoder.config
    arrays = in_memory(pack_model(tensors, config, dtype))
    embeddings = tensors["model.embed_tokens.weight"].to(torch.float32 if dtype == "float32" else torch.float16).numpy()
    return NativeTarget(config, arrays, embeddings, name=family, dtype=dtype, threads=1)


def plain_logits(target: Target, prompt: Sequence[int], prefill_chunk: int = 256) -> np.ndarray:
    """[V] logits of the next token of a plain request of its own: prefill, then one pending token and no tree."""
    seen: list[np.ndarray] = []

    def observe(tree: TokenTree, scores: Scores, verdict: Verdict, state: State) -> None:
        assert tree.tokens.shape == (1, 1)
        seen.append(np.array(scores.logits(0, 0)))

    decoder = Decoder(target, Plain(), Replay(), FixedNodes(1), prefill_chunk=prefill_chunk)
    decoder.observer = observe
    row = decoder.admit(Request(list(prompt), stop=StopSettings(max_new_tokens=1, ignore_eos=True)))
    while row.finish_reason is None:
        decoder.step()
    decoder.release(row)
    return seen[0]


def tiny_folder(folder: Path, seed: int, *texts: str) -> str:
    """A model folder with random weights and a byte-level tokenizer that knows the words of `texts`."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False))
    core.add_special_tokens([AddedToken("<|end|>", special=True)])
    size = {"vocab_size": core.get_vocab_size(), "max_position_embeddings": 1024, "eos_token_id": None}
    model = tiny_models.random_model(
        transformers.LlamaConfig(**tiny_models.SIZES | size | {"bos_token_id": None}), seed
    )
    model.save_pretrained(folder)
    core.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


def trio(folder: Path, *words: str) -> tuple[Engine, Engine, Engine]:
    """Target, a draft model with its tokens, and one with others."""
    folders = [tiny_folder(folder / name, seed, *words) for name, seed in (("a", 1), ("b", 2))]
    folders.append(tiny_folder(folder / "other", 3, "is the answer free of mistakes? a quick brown dog"))
    cache = folder / "cache"  # packed weights are not for the user's own cache
    one, two, three = (betoken.load(name, drafter="none", dtype="int8", threads=1, cache_dir=cache) for name in folders)
    return one, two, three


class Counting:
    """A target that counts what it is asked for."""

    exact = True

    def __init__(self, target: Target) -> None:
        self.inner = target
        self.name, self.vocab_size, self.num_layers = target.name, target.vocab_size, target.num_layers
        self.hidden_size, self.context, self.eos_ids = target.hidden_size, target.context, target.eos_ids
        self.dtype, self.device = target.dtype, target.device
        self.passes: list[int] = []
        """Nodes of each forward pass."""
        self.wanted = 0

    def new_cache(self) -> Cache:
        return self.inner.new_cache()

    def forward(self, tree: TokenTree, cache: Cache, slots: Sequence[int], hidden_layers: Sequence[int] = ()) -> Scores:
        self.passes.append(int(tree.counts.sum()))
        self.wanted += int(tree.wanted.sum())
        return self.inner.forward(tree, cache, slots, hidden_layers)


def counted(engine: Engine, nodes: int) -> Engine:
    """The engine's model, with a decoder of its own that drafts nothing, behind a `Counting` target."""
    return Engine(Counting(engine.target), engine.tokenizer, Plain(), Replay(), FixedNodes(nodes))


def passes(engine: Engine) -> list[int]:
    """Nodes of each forward pass so far; clear it to begin anew."""
    assert isinstance(engine.target, Counting)
    return engine.target.passes


def idle(engine: Engine) -> bool:
    """Whether nothing is left of what was decoded."""
    cache = engine.decoder.cache
    assert isinstance(cache, PagedCache)
    return not (engine.decoder.rows or engine.decoder.waiting or engine.decoder.prefixes or cache._slots)


def plain(engine: Engine, prompt: list[int], length: int) -> list[int]:
    """Tokens of plain decoding."""
    decoder = Decoder(engine.target, Plain(), Replay(), FixedNodes(1))
    row = decoder.admit(Request(prompt, stop=StopSettings(max_new_tokens=length)))
    while row.finish_reason is None:
        decoder.step()
    return row.new_tokens
