"""What auxiliary nodes are fed and what they should say: the objectives of PTP (arXiv 2512.21323, section 3).

Node q of a branch with start s belongs to token k = s + q.

    o-ptp         input u_k; says the token itself. Cross-entropy on t_k.
    c-ptp         input u_{k-1} (the start vector at q = 0); says the law of t_k. KL to the teacher's law.
    scratch       the same inputs and meaning without a teacher: each u is drawn in the interval of the observed token
                  under the student's own law, node after node (inverse autoregressive); then cross-entropy.
    independent   input: the start vector everywhere; says the token. The baseline without u.

Why `scratch` is the right loss: given the tokens before s, t_k is a function of u_s..u_k. Drawing u_j uniformly in
the interval of t_j makes (u_s.., u_k-1) uniform when the text follows the student's law, and then the law of t_k given
the tokens is its law given the u's. Any u of the same intervals stands for the same tokens.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional as F  # noqa: N812 - the name every torch user knows

from betoken.models.student import Objective
from betoken.state import SamplingSettings
from betoken.training.intervals import places, token_intervals
from betoken.training.model import GrowingKeys, StudentModel, Text
from betoken.training.windows import Windows

Divergence = Literal["kl", "reverse-kl"]
PLAIN = SamplingSettings(temperature=1.0)
"""The model's own law: what `scratch` trains for."""


def input_vectors(model: StudentModel, objective: Objective, u: torch.Tensor | None, windows: Windows) -> torch.Tensor:
    """[B, L * C, H] inputs of all nodes. `u`: [B, L, C] the number of each node's own token; None: independent."""
    rows, window, cuts = windows.index.shape
    start = model.start.expand(rows, 1, cuts, -1)
    if objective == "independent":
        vectors = start.expand(-1, window, -1, -1)
    elif u is None or model.embedding is None:
        raise ValueError(f"{objective} needs the numbers of the tokens and an embedding for them")
    elif objective == "o-ptp":
        vectors = model.embedding(u)
    else:
        vectors = torch.cat([start, model.embedding(u[:, :-1])], 1)
    return vectors.flatten(1, 2)


@torch.no_grad()
def inverse_autoregressive(
    model: StudentModel, text: Text, windows: Windows, labels: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """[B, L, C] numbers that pick the observed tokens under the student's own law, one depth of all branches a pass.

    `labels`: [B, L, C] observed tokens; `v`: [B, L, C] places in their intervals. The last depth's are not computed,
    since no node reads them: they are 0. Keys and values of earlier depths are kept, so each node is computed once.
    """
    rows, window, cuts = labels.shape
    columns = text.hidden.shape[1]
    u = torch.zeros(labels.shape, dtype=torch.float64, device=labels.device)
    if window == 1 or model.embedding is None:
        return u
    keys = GrowingKeys(text.keys, cuts * (window - 1))
    vectors = model.start.expand(rows, cuts, -1)
    for q in range(window - 1):
        nodes = slice(q * cuts, (q + 1) * cuts)
        mask = windows.mask[:, :, nodes, : columns + nodes.stop]
        states = model.branch(vectors, mask, windows.positions[:, nodes], keys)
        keys.advance(cuts)
        logits = model.student.head(states).flatten(0, 1)
        where = token_intervals(logits, labels[:, q].flatten(), PLAIN)
        u[:, q] = places(where, v[:, q].flatten()).view(rows, cuts)
        vectors = model.embedding(u[:, q])
    return u


def node_loss(
    objective: Objective,
    logits: torch.Tensor,
    labels: torch.Tensor,
    teacher: torch.Tensor | None,
    law: SamplingSettings,
    divergence: Divergence = "kl",
) -> torch.Tensor:
    """Mean loss of W nodes with logits [W, V], tokens [W] and, for c-ptp, teacher logits [W, V].

    c-ptp compares the laws at the temperature of `law`, before top-k, top-p and min-p: a student whose logits are the
    teacher's has the teacher's law under any of them, and both directions of the divergence stay finite.
    """
    if objective != "c-ptp":
        return F.cross_entropy(logits, labels)
    if teacher is None:
        raise ValueError("c-ptp needs the teacher's logits")
    ours = F.log_softmax(logits / law.temperature, -1)
    theirs = F.log_softmax(teacher / law.temperature, -1)
    if divergence == "reverse-kl":
        ours, theirs = theirs, ours
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def alive_nodes(objective: Objective, possible: torch.Tensor) -> torch.Tensor:
    """[B, L, C] nodes whose inputs exist, given which tokens [B, L, C] some number picks.

    A token outside top-k or top-p has no number, so no branch passes it; the law after the tokens before it exists.
    """
    if objective == "independent":
        return torch.ones_like(possible)
    whole = possible.cumprod(1).bool()
    if objective == "o-ptp":
        return whole
    return torch.cat([torch.ones_like(whole[:, :1]), whole[:, :-1]], 1)
