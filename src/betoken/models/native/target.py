"""The target on a CPU, by our own kernels: exact by construction, and little of its time outside the products."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from operator import add
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from betoken.errors import BetokenError, InputError
from betoken.models.config import DecoderConfig
from betoken.models.native.crew import Crew, crew
from betoken.models.native.emit import BLOCK, TILE
from betoken.models.native.forward import PHASES
from betoken.models.native.image import Arrays
from betoken.models.native.job import PAGE, PASS
from betoken.models.native.model import records
from betoken.models.native.pack import padded
from betoken.models.native.pages import PagedCache
from betoken.models.native.reading import TOO_FAR, UNKNOWN_TOKEN, read_tree
from betoken.models.native.student import NativeStudent
from betoken.models.rope import inverse_frequencies
from betoken.models.student import Student
from betoken.models.target import Cache, Scores
from betoken.tree import Role, RowTree, TokenTree

_PATIENCE_S = 2.0
"""Seconds of a first pass after which a user is told what takes so long: compiled code is loaded in less."""

log = logging.getLogger("betoken")


class NativeTarget:
    """A Llama-family decoder in int8, int4 or float32 on the CPU. A node's logits have the same bits however scored."""

    device = "cpu"
    exact = True

    def __init__(
        self,
        config: DecoderConfig,
        arrays: Arrays,
        embeddings: NDArray[np.generic],
        *,
        name: str,
        dtype: str,
        threads: int | None = None,
    ) -> None:
        """`arrays`: packed weights (model.py); `embeddings` [V, hidden]; `threads`: cores, None for all."""
        self.name, self.dtype, self.config = name, dtype, config
        self.vocab_size, self.num_layers = config.vocab_size, config.num_layers
        self.hidden_size, self.context, self.eos_ids = config.hidden_size, config.context, config.eos_ids
        self.crew: Crew = crew(threads or len(os.sched_getaffinity(0)))
        self.threads = self.crew.threads
        self._arrays, self._embeddings = arrays, np.ascontiguousarray(embeddings)
        self._model, self._layers = records(config, arrays, self._embeddings, dtype != "float32")
        self._run = np.zeros(1, dtype=PASS)
        self._no_hidden = np.empty((0, 0, self.hidden_size), dtype=np.float32)
        self._frequencies = inverse_frequencies(config)
        self._student: NativeStudent | None = None
        self._space: Arrays = {}
        self._room = (0, 0)
        self._alone: dict[int, float] = {}

    def attach(self, student: Student) -> None:
        """Score auxiliary nodes by this student; see `TakesStudent.attach`."""
        self._student = NativeStudent(student, self.config, self.name, self._arrays, self._model[0], self._layers)
        self._model[0]["student"] = 1
        self._room = (0, 0)  # the next pass makes room for what its nodes need

    def new_cache(self) -> PagedCache:
        """An empty cache."""
        return PagedCache(self.num_layers, self.config.num_kv_heads, int(self._model[0]["head_padded"]))

    def last_pass(self) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Copies of the records of the model and of the last pass; their addresses hold until a larger pass."""
        return self._model.copy(), self._run.copy()

    def forward(self, tree: TokenTree, cache: Cache, slots: Sequence[int], hidden_layers: Sequence[int] = ()) -> Scores:
        """Score the trees of the rows in `slots`; see `Target.forward`. `hidden_layers`: 0 to L.

        Raises BetokenError for a cache of another target, and for auxiliary inputs without a student.
        """
        if not isinstance(cache, PagedCache):
            raise BetokenError(f"a {type(cache).__name__} is not this target's cache: use new_cache()")
        if any(not 0 <= layer <= self.num_layers for layer in hidden_layers):
            raise InputError(f"hidden layers {list(hidden_layers)}: this model has states 0..{self.num_layers}")
        index, wanted = self._read(tree, cache, slots)
        size = (tree.batch * tree.width).bit_length()  # node counts within a factor of two
        logits = np.empty((wanted, self.vocab_size), dtype=np.float32)
        if not hidden_layers:
            self.crew.forward(self._model, self._run, logits, self._no_hidden, size, self._alone)
            return Scores(logits, index)
        hidden_at = self._space["hidden_at"]
        hidden_at.fill(-1)
        hidden_at[list(hidden_layers)] = range(len(hidden_layers))
        hidden = np.empty((len(hidden_layers), int(tree.counts.sum()), self.hidden_size), dtype=np.float32)
        self.crew.forward(self._model, self._run, logits, hidden, size, self._alone)
        return Scores(logits, index, self._hidden(hidden, hidden_layers, tree))

    def _read(self, tree: TokenTree, cache: PagedCache, slots: Sequence[int]) -> tuple[NDArray[np.int64], int]:
        """Prepare the pass over a tree. Returns the place [B, N] of each node's logits, and how many are wanted."""
        counts = tree.counts.tolist()
        lengths = [cache.length(slot) for slot in slots]
        entries = tree.batch * tree.width * (tree.width + 1) // 2
        space = self._reserve(sum(counts), max(map(add, lengths, counts)), entries)
        tables = [cache.room_for(slot, count) for slot, count in zip(slots, counts, strict=True)]
        index = np.empty(tree.tokens.shape, dtype=np.int64)
        wanted = read_tree(
            tree.tokens,
            tree.parents,
            tree.roles,
            tree.anchors,
            tree.shifts,
            tree.inputs,
            tree.wanted,
            np.array([lengths, tables], dtype=np.int64),
            len(space["cos"]),
            index,
            self._model,
            self._run,
        )
        if wanted < 0:
            raise self._fault(wanted)
        if self._student is not None and self._run[0]["auxiliary"]:
            inputs = tree.inputs[(tree.roles != Role.PADDING) & ~np.isnan(tree.inputs)]
            space["vectors"][: len(inputs)] = self._student.vectors(inputs)
        return index, wanted

    def _fault(self, found: int) -> BetokenError:
        if found == UNKNOWN_TOKEN:
            return InputError(f"the tree has a token id outside 0..{self.vocab_size - 1}")
        if found == TOO_FAR:
            return BetokenError("the tree has a position far beyond its row's text and nodes")
        return BetokenError(f"{self.name} has no student for auxiliary inputs; only tokens can be scored")

    def _hidden(self, hidden: NDArray[np.float32], layers: Sequence[int], tree: TokenTree) -> dict[int, torch.Tensor]:
        out, real = {}, np.flatnonzero(tree.roles.ravel())
        for place, layer in enumerate(layers):
            full = np.zeros((tree.tokens.size, self.hidden_size), dtype=np.float32)
            full[real] = hidden[place]
            out[layer] = torch.from_numpy(full.reshape(*tree.tokens.shape, self.hidden_size))
        return out

    def _reserve(self, nodes: int, span: int, entries: int) -> Arrays:
        """Work space for a pass over `nodes` nodes whose longest row spans `span` positions; grown when needed.

        `entries`: most that the nodes' branches have together.
        """
        if nodes > self._room[0] or span + PAGE > self._room[1]:
            self._grow(nodes, span)
        if entries > self._space["branch"].size:
            self._space["branch"] = np.empty(entries, dtype=np.int64)
            self._run[0]["branch"] = self._space["branch"].ctypes.data
        return self._space

    def _grow(self, nodes: int, span: int) -> None:
        nodes = max(padded(nodes, 16), self._room[0])
        span = max(2 * (span + PAGE), self._room[1], 1024)
        self._room = (nodes, span)
        model, run = self._model[0], self._run[0]
        config = self.config
        attn, ffn = int(model["attn_padded"]), padded(config.intermediate_size, BLOCK)
        qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        widest = padded(max(config.hidden_size, qkv, ffn), BLOCK)
        group = min(8, config.num_heads // config.num_kv_heads)
        scores_stride = span * 4
        scratch = max(group * scores_stride + int(model["head_padded"]) * 4, 3 * TILE * BLOCK * 4)
        turned = torch.arange(min(span, config.context + PAGE), dtype=torch.float32)[:, None] * self._frequencies
        self._space = {
            "cos": turned.cos().numpy(),
            "sin": turned.sin().numpy(),
            "x": _zeros((nodes, int(model["hidden_padded"])), np.float32),
            "wide": _zeros((nodes, 2 * widest), np.float32),
            "attended": _zeros((nodes, attn), np.float32),
            "queries": _zeros((nodes, config.num_heads, int(model["head_padded"])), np.float32),
            "quantised": _zeros((nodes, padded(max(widest, attn), 64)), np.uint8),
            "row_scale": _zeros((nodes,), np.float32),
            "scratch": _zeros((self.threads, padded(scratch, 4096) + 4096), np.uint8),
            **{name: _zeros((nodes,), np.int64) for name in ("tokens", "position", "slot", "table", "length", "seen")},
            "auxiliary_at": _zeros((nodes,), np.int64),
            "vectors": _zeros((nodes if self._student else 0, config.hidden_size), np.float32),
            "low": _zeros((nodes, self._student.width if self._student else 0), np.float32),
            "low_rounded": _zeros((nodes, 4 * self._student.width if self._student else 0), np.uint8),
            "low_scale": _zeros((nodes,), np.float32),
            "branch_at": _zeros((nodes + 1,), np.int64),
            "branch": _zeros((nodes,), np.int64),
            "wanted_nodes": _zeros((nodes,), np.int64),
            "hidden_at": _zeros((config.num_layers + 1,), np.int64),
            "counters": _zeros((config.num_layers * PHASES + 1, 8), np.int64),
        }
        for name in self._space:
            run[name] = self._space[name].ctypes.data
        run["wide_stride"] = 2 * widest * 4
        run["low_stride"] = self._space["low"].shape[1] * 4
        run["quantised_stride"] = self._space["quantised"].shape[1]
        run["scratch_stride"] = self._space["scratch"].shape[1]
        run["scores_stride"] = scores_stride


def _zeros(shape: tuple[int, ...], dtype: type) -> NDArray[np.generic]:
    """Zeros that begin on a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def load_native(
    folder: Path, config: DecoderConfig, dtype: str, threads: int | None = None, cache_dir: Path | None = None
) -> NativeTarget:
    """The target of a model folder; integer weights are packed once and kept in the cache."""
    from betoken.models.native.prepare import prepared

    arrays, embeddings = prepared(folder, config, dtype, cache_dir)
    notice = threading.Timer(_PATIENCE_S, log.warning, ["compiling the kernels for this machine (once, half a minute)"])
    notice.start()
    try:
        target = NativeTarget(config, arrays, embeddings, name=folder.name, dtype=dtype, threads=threads)
        _warm_up(target)
    finally:
        notice.cancel()
    return target


def _warm_up(target: NativeTarget) -> None:
    """Run all that is compiled once, so that no answer waits for a compiler: a pass, and a branch that is kept."""
    tree = RowTree.chain(0, [0])
    tree.add(0, 0)
    cache = target.new_cache()
    slot = cache.open()
    target.forward(TokenTree.stack([tree]), cache, [slot])
    cache.keep([slot], [[0, 2]])
