"""The records that the compiled forward pass reads: one for the model, one for the pass. Addresses are int64."""

from __future__ import annotations

import numpy as np

PAGE = 64
"""Positions of one page of the KV cache; a multiple of the 16 lanes of a key block."""
MAX_THREADS = 64

MATRIX = np.dtype(
    [
        ("weight", np.int64),
        ("scale", np.int64),  # float32 [N], integer weights only
        ("shift", np.int64),  # int32 [N]: 128 * column sum where inputs are stored as value + 128, else zeros
        ("bias", np.int64),  # float32 [N], or 0
        ("inputs", np.int64),  # K, padded to 16
        ("outputs", np.int64),  # N
        ("groups", np.int64),  # of 32 inputs, where the weights have 4 bits; else 0
    ]
)
"""Weights of 8 or 4 bits with a scale per output channel, or float32 weights."""

PRODUCT = np.dtype([("matrix", MATRIX), ("down", MATRIX), ("up", MATRIX)])
"""One matrix product, and how a student changes it: inputs to a few numbers (`down`), those to outputs (`up`).
Both have no outputs where there is no change."""

LAYER = np.dtype(
    [
        ("attn_norm", np.int64),
        ("qkv", PRODUCT),
        ("q_norm", np.int64),  # float32 [head_dim], or 0
        ("k_norm", np.int64),
        ("out", PRODUCT),
        ("mlp_norm", np.int64),
        ("gate_up", PRODUCT),  # blocks of 32 gate channels and 32 up channels in turn
        ("down", PRODUCT),
    ]
)

MODEL = np.dtype(
    [
        ("layers", np.int64),
        ("num_layers", np.int64),
        ("hidden", np.int64),
        ("hidden_padded", np.int64),
        ("ffn", np.int64),
        ("ffn_padded", np.int64),
        ("heads", np.int64),
        ("kv_heads", np.int64),
        ("head_dim", np.int64),
        ("head_padded", np.int64),
        ("attn_padded", np.int64),  # heads * head_dim, padded to 16
        ("int8", np.int64),  # 1: products of int8 inputs, 0: of float32
        ("offset", np.int64),  # 128 where the int8 product wants unsigned inputs, else 0
        ("rms_eps", np.float32),
        ("query_scale", np.float32),  # 1 / sqrt(head_dim)
        ("layer_bytes", np.int64),  # of one layer in a page of the cache
        ("embeddings", np.int64),  # float16 or float32 [vocabulary, hidden]
        ("half", np.int64),  # 1: they are float16
        ("student", np.int64),  # 1: auxiliary inputs can be scored
        ("final_norm", np.int64),
        ("head", PRODUCT),
    ]
)

PASS = np.dtype(
    [
        ("nodes", np.int64),
        ("wanted", np.int64),  # how many nodes' logits are read
        ("threads", np.int64),
        ("cos", np.int64),  # float32 [positions, head_dim / 2]
        ("sin", np.int64),
        ("x", np.int64),  # float32 [nodes, hidden_padded], the residual stream
        ("wide", np.int64),  # float32 [nodes, widest], whatever a product reads or writes besides x
        ("wide_stride", np.int64),  # bytes of one row of it
        ("attended", np.int64),  # float32 [nodes, attn_padded]
        ("queries", np.int64),  # float32 [nodes, heads, head_padded]
        ("quantised", np.int64),  # int8 [nodes, widest input]
        ("quantised_stride", np.int64),
        ("row_scale", np.int64),  # float32 [nodes]
        ("scratch", np.int64),  # bytes for each thread
        ("scratch_stride", np.int64),
        ("scores_stride", np.int64),  # bytes of one head's scores in it
        ("tokens", np.int64),  # int64 [nodes]
        ("position", np.int64),  # int64 [nodes]
        ("slot", np.int64),  # int64 [nodes]: where its keys and values go, a position of its row's cache
        ("table", np.int64),  # int64 [nodes]: address of its row's page addresses
        ("length", np.int64),  # int64 [nodes]: committed positions of its row
        ("seen", np.int64),  # int64 [nodes]: slots 0..seen-1 are its text in order
        ("branch_at", np.int64),  # int64 [nodes + 1]: its ancestors beyond those, itself last, in `branch`
        ("branch", np.int64),  # int64: their slots, in position order
        ("auxiliary", np.int64),  # how many nodes are a student's
        ("auxiliary_at", np.int64),  # int64 [nodes]: place among them, or -1
        ("vectors", np.int64),  # float32 [auxiliary, hidden]: what they read instead of a token
        ("low", np.int64),  # float32 [auxiliary, ranks]: what `down` makes of their inputs
        ("low_rounded", np.int64),  # the same as int8, in rows of the same size
        ("low_scale", np.int64),  # float32 [auxiliary]
        ("low_stride", np.int64),
        ("wanted_nodes", np.int64),  # int64 [wanted]
        ("logits", np.int64),  # float32 [wanted, vocabulary]
        ("hidden_out", np.int64),  # float32 [layers asked for, nodes, hidden], or 0
        ("hidden_at", np.int64),  # int64 [layers + 1]: which of them a layer's input is, or -1
        ("counters", np.int64),  # int64 [phases, 8], zero when the pass begins: next block to take
    ]
)
