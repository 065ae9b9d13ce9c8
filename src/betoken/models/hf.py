"""Any other causal language model of Hugging Face transformers as a target.

The model's own forward runs with sdpa attention, our 4-D mask and our positions; keys and values go to our cache
through transformers' cache interface. What cannot score a tree that way is refused: recurrent models, windows,
encoder-decoders. Because a mask that a model ignores would change its text without a sign, `check_masks` scores one
branching tree before the model is used.

This module imports transformers, which takes seconds: import it only where a model of another family is loaded.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from betoken.errors import BetokenError, InputError
from betoken.models.batch import Outputs, TreeBatch, check_tree, index_of
from betoken.models.cache import TorchCache, Window
from betoken.models.config import read_json
from betoken.models.decoder import DTYPES
from betoken.models.graphs import Capture, capture_for
from betoken.models.hf_refusals import context_of, eos_ids_of, refuse
from betoken.models.memory import available_bytes
from betoken.models.static import StaticCache
from betoken.models.target import Cache, Scores
from betoken.tree import RowTree, TokenTree

_RUNTIME = 600 << 20
"""Interpreter, torch and transformers."""


class _TreeCache(transformers.Cache):
    """What a transformers model sees of our cache during one forward pass."""

    def __init__(self, cache: TorchCache, window: Window) -> None:
        super().__init__(layers=[])
        self._cache, self._window = cache, window

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all columns; the arguments are transformers'."""
        return self._cache.extend(layer_idx, self._window, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns before the new ones."""
        return self._window.span - self._window.nodes


class HfTarget:
    """A `Target` around a transformers causal language model. Not exact."""

    exact = False

    def __init__(self, model: Any, *, name: str, capture: Capture | None = None) -> None:
        """`model`: loaded with attn_implementation="sdpa". Raises InputError for one that cannot score trees.

        `capture`: how passes are recorded (static.py), if they shall be.
        """
        refuse(model.config, type(model), name)
        if model.config._attn_implementation != "sdpa":
            raise InputError(f'{name}: load the model with attn_implementation="sdpa"; a tree needs a mask of its own')
        text = model.config.get_text_config()
        self.model, self.name = model.eval(), name
        self.dtype, self.device = str(model.dtype).removeprefix("torch."), str(model.device)
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.num_layers, self.hidden_size = int(text.num_hidden_layers), int(text.hidden_size)
        self.context = context_of(text, name)
        self.eos_ids = eos_ids_of(model)
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"  # renamed in transformers 5.20
        self._keeps_logits = "logits_to_keep" in parameters
        self._capture = capture
        self._endings: dict[int, torch.Tensor] = {}
        """By their number of nodes, where recorded passes leave their logits: those of one size share the memory."""
        if "position_ids" not in parameters:
            raise InputError(f"{name}: {type(model).__name__} takes no position_ids, so it cannot score trees")

    def new_cache(self) -> TorchCache:
        """An empty cache."""
        if self._capture is not None:
            return StaticCache(self.num_layers, self.model.device, capture=self._capture, dtype=self.model.dtype)
        return TorchCache(self.num_layers, self.model.device)

    @torch.no_grad()
    def forward(self, tree: TokenTree, cache: Cache, slots: Sequence[int], hidden_layers: Sequence[int] = ()) -> Scores:
        """Score the trees; see `Target.forward`. `hidden_layers`: 0 (embeddings) to L (before the final norm).

        Raises BetokenError for a cache of another target, and for probes that have auxiliary inputs.
        """
        if not isinstance(cache, TorchCache):
            raise BetokenError(f"a {type(cache).__name__} is not this target's cache: use new_cache()")
        if any(not 0 <= n <= self.num_layers for n in hidden_layers):
            raise InputError(f"hidden layers {list(hidden_layers)}: this model has states 0..{self.num_layers}")
        check_tree(tree, self.vocab_size)
        outputs, columns = None, None
        if isinstance(cache, StaticCache):
            outputs = cache.run(tree, slots, hidden_layers, partial(self._padded, cache, hidden_layers))
        if outputs is None:
            window = cache.begin(slots, tree.width)
            batch = TreeBatch.of(tree, window, device=self.model.device, dtype=self.model.dtype, always_mask=True)
            if self._keeps_logits:  # the output layer runs on the columns that some row wants, at least on one
                columns = np.flatnonzero(tree.wanted.any(axis=0))
                columns = columns if columns.size else np.zeros(1, dtype=np.int64)
            outputs = self._pass(cache, hidden_layers, columns, batch.tokens, batch.positions, batch.mask, window)
        return Scores(outputs.wanted(tree, columns), index_of(tree), outputs.states(tree))

    def _padded(self, cache: TorchCache, hidden_layers: Sequence[int], *inputs: Any) -> Outputs:
        """The `Body` of a pass of fixed shape: all columns' logits, left where others of its size leave theirs."""
        outputs = self._pass(cache, hidden_layers, None, *inputs)
        size = outputs.last.shape[0] * outputs.last.shape[1]
        if size not in self._endings:  # in the first pass of a shape, which is not recorded
            self._endings[size] = torch.empty_like(outputs.last.flatten(0, 1))
        ending = self._endings[size].view(outputs.last.shape)
        return Outputs(ending.copy_(outputs.last), outputs.hidden)

    def _pass(
        self,
        cache: TorchCache,
        hidden_layers: Sequence[int],
        columns: np.ndarray | None,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        window: Window,
    ) -> Outputs:
        """The model over tokens and positions [B, N]; logits of all columns, or of `columns` alone."""
        options: dict[str, Any] = {self._cache_name: _TreeCache(cache, window), "use_cache": True}
        if columns is not None:
            options["logits_to_keep"] = torch.from_numpy(columns).to(tokens.device)
        with self._last_state(self.num_layers in hidden_layers) as last:
            output = self.model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions.clamp(max=self.context - 1),  # learned tables end at the context
                output_hidden_states=any(n < self.num_layers for n in hidden_layers),
                **options,
            )
        hidden = {n: last[0] if n == self.num_layers else output.hidden_states[n] for n in hidden_layers}
        return Outputs(output.logits, hidden)

    @contextmanager
    def _last_state(self, asked: bool) -> Iterator[list[torch.Tensor]]:
        """What leaves the last layer: transformers' own hidden states end with the normed one."""
        found: list[torch.Tensor] = []
        if not asked:
            yield found
            return

        def record(module: nn.Module, args: object, output: Any) -> None:
            found.append(output if isinstance(output, torch.Tensor) else output[0])

        handle = self._layers()[-1].register_forward_hook(record)
        try:
            yield found
        finally:
            handle.remove()

    def _layers(self) -> nn.ModuleList:
        decoder = self.model.get_decoder()
        lists = [part for part in decoder.modules() if isinstance(part, nn.ModuleList)]
        stacks = [part for part in lists if len(part) == self.num_layers]
        if len(stacks) != 1:
            kind = type(self.model).__name__
            raise InputError(f"{self.name}: {kind} hides its layers, so state {self.num_layers} cannot be read")
        return stacks[0]


def load_hf(
    folder: Path,
    *,
    name: str,
    dtype: str = "float32",
    device: str = "cpu",
    trust_remote_code: bool = False,
    cuda_graphs: bool = True,
) -> HfTarget:
    """The model in a folder. Raises InputError for one that cannot be read, does not fit, or cannot score trees."""
    if dtype not in DTYPES:
        raise InputError(f"{name}: dtype {dtype} is not one of transformers models ({', '.join(DTYPES)})")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}: no config.json, so this is not a model folder")
    known = read_json(folder / "config.json")
    native = known.get("model_type") in transformers.CONFIG_MAPPING
    if known.get("auto_map") and not native and not trust_remote_code:
        raise InputError(f"{name}: the model runs its own code; if you trust it, allow that with trust_remote_code")
    auto: Any = transformers.AutoModelForCausalLM
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": True}
    with _one_line(name), _quiet():
        config = transformers.AutoConfig.from_pretrained(folder, **options)
        if native:
            refuse(config, _model_class(config, name), name)
        with torch.device("meta"):
            empty = auto.from_config(config, trust_remote_code=trust_remote_code)
        _check_memory(sum(p.numel() for p in empty.parameters()), dtype, device, name)
        model, report = auto.from_pretrained(
            folder,
            config=config,
            dtype=DTYPES[dtype],
            attn_implementation="sdpa",
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    for problem in ("missing_keys", "mismatched_keys", "error_msgs"):
        if report.get(problem):
            first = sorted(map(str, report[problem]))[0]
            raise InputError(f"{name}: the weights do not fit the config ({problem}: {first})")
    target = HfTarget(model.to(device), name=name, capture=capture_for(device, cuda_graphs))
    check_masks(target)
    return target


def check_masks(target: HfTarget) -> None:
    """Raise InputError unless a node in a branching tree scores as at the end of its own path."""
    trunk = [1 % target.vocab_size, 2 % target.vocab_size, 3 % target.vocab_size]
    tree = RowTree.under(trunk[0])
    tree.add(4 % target.vocab_size, 0)
    node = tree.add(trunk[2], tree.add(trunk[1], 0))
    branching = target.forward(TokenTree.stack([tree]), *_opened(target)).logits(0, node)
    cache, slots = _opened(target)
    target.forward(TokenTree.stack([RowTree.chain(trunk[0], trunk[1:2])]), cache, slots)
    cache.keep(slots, [[0, 1]])
    alone = target.forward(TokenTree.stack([RowTree.under(trunk[2])]), cache, slots).logits(0, 0)
    tolerance = 1e-3 if target.dtype in ("float32", "float64") else 0.1
    if not np.abs(branching - alone).max() <= tolerance * max(1.0, float(np.abs(alone).max())):
        kind = type(target.model).__name__
        raise InputError(f"{target.name}: {kind} scores a tree differently from plain text, so it cannot be used here")


def _opened(target: HfTarget) -> tuple[TorchCache, list[int]]:
    cache = target.new_cache()
    return cache, [cache.open()]


def _model_class(config: Any, name: str) -> Any:
    try:
        return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        raise InputError(f"{name}: transformers has no causal language model of type {config.model_type}") from None


def _check_memory(parameters: int, dtype: str, device: str, name: str) -> None:
    needed = parameters * DTYPES[dtype].itemsize + _RUNTIME
    free = torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else available_bytes()
    if free is not None and needed > free:
        raise InputError(
            f"{name}: the model needs about {needed / 1e9:.1f} GB as {dtype}, {free / 1e9:.1f} GB are free: "
            "take a smaller model or dtype"
        )


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Whatever transformers says about a folder it cannot load, in one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # a stranger's file or code can fail in any way
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{name}: transformers cannot load this model ({first})") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar of transformers while we load."""
    log: Any = transformers.utils.logging
    before = log.is_progress_bar_enabled()
    log.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            log.enable_progress_bar()
