"""The native crew's workers: there while a target is, gone with the last one and before the interpreter ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from betoken.models.config import DecoderConfig
from betoken.models.native.crew import Pace
from betoken.models.native.isa import isa
from betoken.models.native.target import load_native
from betoken.tree import RowTree, TokenTree
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


def rested(pace: Pace, alone: dict[int, float], seconds: float = 0.010) -> int:
    """Passes alone, each of so many seconds, until the threads are tried together again."""
    count = 0
    while pace.left:
        pace.learn(together=False, naps=0, seconds=seconds, size=3, alone=alone)
        count += 1
    return count


def stalls(pace: Pace, alone: dict[int, float], naps: int, seconds: float, size: int = 3) -> bool:
    """Whether passes run alone after one like this."""
    pace.learn(together=True, naps=naps, seconds=seconds, size=size, alone=alone)
    return pace.left > 0


def test_a_pass_that_stalls_is_followed_by_some_alone_and_twice_as_many_while_that_is_faster() -> None:
    pace, alone, rests = Pace(), dict[int, float](), []
    for _ in range(6):
        assert stalls(pace, alone, naps=400, seconds=0.040)
        rests.append(rested(pace, alone))
    assert rests == [4, 8, 16, 32, 64, 64]


def test_threads_stay_together_where_that_is_faster_in_spite_of_sleeps() -> None:
    pace, alone = Pace(), dict[int, float]()
    assert stalls(pace, alone, naps=100, seconds=0.030)
    assert rested(pace, alone) == 4
    assert not stalls(pace, alone, naps=30, seconds=0.007)  # a worker that took a millisecond or two to wake
    assert stalls(pace, alone, naps=100, seconds=0.030)
    assert rested(pace, alone) == 4, "a good try sets the number back"


def test_what_a_pass_alone_takes_is_known_by_its_size() -> None:
    pace, alone = Pace(), dict[int, float]()
    assert stalls(pace, alone, naps=100, seconds=0.030)
    rested(pace, alone)
    assert not stalls(pace, alone, naps=100, seconds=0.009)
    assert stalls(pace, alone, naps=100, seconds=0.009, size=1), "nothing is known of this size yet"


def test_a_few_sleeps_in_a_long_pass_are_no_stall() -> None:
    pace, alone = Pace(), dict[int, float]()
    assert not stalls(pace, alone, naps=60, seconds=0.050)
    assert not stalls(pace, alone, naps=20, seconds=0.002)
    assert stalls(pace, alone, naps=60, seconds=0.030)


def test_a_pass_alone_runs_on_one_thread(tmp_path: Path) -> None:
    folder = make_home(tmp_path) / "tiny"
    target = load_native(folder, DecoderConfig.from_folder(folder), "float32", 2)

    def threads(alone: int) -> int:
        target.crew.pace.left = alone
        cache = target.new_cache()
        target.forward(TokenTree.stack([RowTree.chain(5, [6, 7, 8])]), cache, [cache.open()])
        return int(target.crew.run[0]["threads"])

    assert (threads(2), target.crew.pace.left) == (1, 1)
    assert threads(0) == 2
