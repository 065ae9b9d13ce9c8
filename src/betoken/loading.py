"""`load`: names, folders and files to an engine that is ready to generate."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from betoken.drafters import DRAFTERS, Drafter
from betoken.drafters.draft_model import check_draft_dtype, check_vocabularies
from betoken.drafters.ptp import PTP, replaces_weights
from betoken.engine import Engine
from betoken.errors import InputError
from betoken.models.files import Progress, SilentProgress
from betoken.models.load import Backend, Loaded, backend_for, check_place, load_target
from betoken.models.store import cache_root, resolve
from betoken.registry import create
from betoken.tuning.auto import AutoNodes
from betoken.tuning.cost import load as load_cost
from betoken.tuning.nodes import FixedNodes, NodePolicy
from betoken.verifiers import VERIFIERS, Verifier
from betoken.verifiers.replay import Replay


def load(
    model: str,
    *,
    draft_model: str | None = None,
    drafter: str | None = None,
    verifier: str | None = None,
    drafter_settings: Mapping[str, object] | None = None,
    verifier_settings: Mapping[str, object] | None = None,
    dtype: str | None = None,
    draft_dtype: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    nodes: int | Literal["auto"] = "auto",
    cache_dir: str | Path | None = None,
    trust_remote_code: bool = False,
    cuda_graphs: bool = True,
    progress: Progress | None = None,
) -> Engine:
    """Load a model, ready to generate.

    `model`, `draft_model`: a store name, a folder, a GGUF file or a Hub id (owner/name). `drafter`: a name of
    `betoken drafters`; suffix, or draft-model where one is given, if None. `verifier`: a name of `betoken
    verifiers`; greedy at temperature 0 and replay above it if None. `draft_dtype`: of the draft model; `dtype` if None.
    `nodes`: most tokens that a step scores, or auto, which measures what pays. `cuda_graphs`: on CUDA, record passes
    and replay them. `progress`: told how far a download is. Raises InputError for names, settings and files that
    cannot be used.
    """
    chosen = drafter or ("suffix" if draft_model is None else "draft-model")
    drafting: Drafter = create("drafter", DRAFTERS, chosen, drafter_settings or {})
    verifying: Verifier = create("verifier", VERIFIERS, verifier or "replay", verifier_settings or {})
    _check_choices(chosen, draft_model, nodes)
    check_draft_dtype(draft_dtype, has_draft=draft_model is not None)
    check_coupling(drafting, verifying)
    for one in (dtype, draft_dtype):
        check_place(one, device)
    fetch = partial(
        _fetch,
        progress=progress or SilentProgress(),
        device=device,
        threads=threads,
        cache_dir=Path(cache_dir) if cache_dir is not None else None,
        trust_remote_code=trust_remote_code,
        cuda_graphs=cuda_graphs,
    )
    loaded = fetch(model, dtype=dtype, backend=backend_for(dtype, device, in_torch=replaces_weights(drafting)))
    draft = fetch(draft_model, dtype=draft_dtype or dtype, backend="auto") if draft_model is not None else None
    if draft is not None:
        check_vocabularies(loaded.tokenizer, draft.tokenizer)
    drafting.start(loaded.target, draft.target if draft is not None else None)
    cores = threads or torch.get_num_threads()
    measure = partial(load_cost, loaded.target, cache_root(cache_dir) / "cost", threads=cores)
    most = 1 if chosen == "none" else nodes
    policy: NodePolicy = AutoNodes(measure()) if most == "auto" else FixedNodes(most)
    return Engine(loaded.target, loaded.tokenizer, drafting, verifying, policy, threads=cores, measure=measure)


def _fetch(
    name: str,
    *,
    dtype: str | None,
    backend: Backend,
    progress: Progress,
    device: str,
    threads: int | None,
    cache_dir: Path | None,
    trust_remote_code: bool,
    cuda_graphs: bool,
) -> Loaded:
    """A model, downloaded first if need be."""
    resolve(name, cache_dir, progress)
    return load_target(
        name,
        dtype=dtype,
        device=device,
        threads=threads,
        cache_dir=cache_dir,
        trust_remote_code=trust_remote_code,
        backend=backend,
        cuda_graphs=cuda_graphs,
    )


def check_coupling(drafter: Drafter, verifier: Verifier) -> None:
    """Raises InputError for a verifier whose random numbers the drafter's student was not trained to read."""
    if isinstance(drafter, PTP) and isinstance(verifier, Replay) and verifier.rule == "gumbel":
        raise InputError("drafter ptp reads the numbers of the inverse CDF: leave verifier.rule=gumbel out")


def _check_choices(drafter: str, draft_model: str | None, nodes: object) -> None:
    if (drafter == "draft-model") != (draft_model is not None):
        told = "needs a draft model" if draft_model is None else "does not use a draft model"
        raise InputError(f"drafter {drafter} {told}: --draft-model (draft_model) goes with drafter draft-model")
    if nodes != "auto" and (isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1):
        raise InputError(f"nodes must be auto or a whole number, at least 1, not {nodes!r}")
