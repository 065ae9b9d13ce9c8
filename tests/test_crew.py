"""The native crew's workers: there while a target is, gone with the last one and before the interpreter ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from betoken.models.native.isa import isa
from cli_home import make_home

pytestmark = pytest.mark.skipif(isa() == "none", reason="this processor has no native kernels")

SCRIPT = """
import atexit
import sys

@atexit.register  # the first handler, so it runs after all others
def at_exit():
    same = (score() == before).all()
    print("at exit", workers(), "same bits", same, flush=True)

import gc
import logging
import threading
from pathlib import Path

import torch
from betoken.models.config import DecoderConfig
from betoken.models.native.target import load_native
from betoken.tree import RowTree, TokenTree

logging.getLogger("betoken").setLevel(logging.ERROR)  # a busy machine is told that kernels take long

def workers():
    return sorted(one.name for one in threading.enumerate() if one.name.startswith("betoken-"))

def load(threads):
    folder = Path(sys.argv[1])
    return load_native(folder, DecoderConfig.from_folder(folder), "float32", threads)

def score():
    cache = target.new_cache()
    return target.forward(TokenTree.stack([RowTree.chain(5, [6, 7, 8])]), cache, [cache.open()]).host

target, other, large = load(2), load(2), load(3)
print("shared", target.crew is other.crew, workers())
del large
gc.collect()
print("one crew", workers())
del other
gc.collect()
print("still used", workers())
before = score()
del target
gc.collect()
print("dropped", workers())
target = load(2)
print("again", workers(), (score() == before).all())
"""


def test_workers_end_with_their_targets_and_with_the_interpreter(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(home / "tiny")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        "shared True ['betoken-1', 'betoken-1', 'betoken-2']",
        "one crew ['betoken-1']",
        "still used ['betoken-1']",
        "dropped []",
        "again ['betoken-1'] True",
        "at exit [] same bits True",
    ]
