"""A folder for the command line to run in, and what it prints there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import tokenizers
import torch
import transformers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from betoken.models.config import DecoderConfig
from betoken.models.native.isa import isa
from betoken.models.native.target import load_native

BETOKEN = [sys.executable, "-m", "betoken.cli"]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"


def make_home(folder: Path) -> Path:
    """Put a tiny model `tiny` that never ends by itself into an empty folder, and files to read prompts from."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(["the quick brown fox, it says", "def add(a, b): return a"], trainer)
    core.add_special_tokens([AddedToken("<|end|>", special=True)])
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=core.get_vocab_size(),
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=None,
    )
    tiny = folder / "tiny"
    transformers.LlamaForCausalLM(config).save_pretrained(tiny)
    core.save(str(tiny / "tokenizer.json"))
    (tiny / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "good.txt").write_text("the fox\n")
    (folder / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (folder / "empty.txt").write_text("\n")
    (folder / "long.txt").write_text("the quick brown fox " * 4000)
    (folder / "talk.json").write_text(json.dumps([{"role": "user", "content": "the fox"}]))
    (folder / "bad.json").write_text("[{'role': 1}]")
    (folder / "shape.json").write_text('{"role": "user"}')
    if isa() != "none":
        # Kernels are compiled here, so that the line that tells a user of it stands in no test's output.
        load_native(tiny, DecoderConfig.from_folder(tiny), "float32", 2)
    return folder


def environment(home: Path) -> dict[str, str]:
    """The user's, with a cache of its own and no network."""
    own = {"BETOKEN_CACHE": str(home / "cache"), "HF_HUB_OFFLINE": "1", "COLUMNS": "200", "NUMBA_NUM_THREADS": "1"}
    return os.environ | own


def betoken(home: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command line in `home`."""
    return subprocess.run(
        [*BETOKEN, *arguments],
        cwd=home,
        env=environment(home),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


TINY = ("--model", "tiny", "--dtype", "float32", "--threads", "1", "--nodes", "4")


def refused(ran: subprocess.CompletedProcess[str], told: str) -> None:
    """Exit code 2, nothing on standard output, and one line on standard error."""
    assert told in ran.stderr
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 1
    assert ran.stderr.startswith("betoken: ")
