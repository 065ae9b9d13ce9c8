"""The comparison with llama.cpp: what it asks of llama-bench, and what it makes of the answers."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from scripts import TOOLS, script

SCRIPT = TOOLS / "peer_llama_cpp.py"

FAKE = """#!{python}
import json, sys
asked = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert asked["-t"] == "2" and asked["-ngl"] == "0" and asked["-o"] == "json", asked
if asked["-n"] == "0":
    speed = 100.0 if asked["-p"] == "64" and "-d" not in asked else None
else:
    speed = 20.0 if (asked["-p"], asked["-n"], asked["-d"]) == ("0", "16", "64") else None
print(json.dumps([{{"avg_ts": speed, "build_commit": "abc"}}]))
"""


@pytest.fixture
def peer() -> ModuleType:
    return script("peer_llama_cpp")


def test_llama_bench_is_asked_for_the_same_work(peer: ModuleType, tmp_path: Path) -> None:
    program = tmp_path / "llama-bench"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(0o755)
    found = peer.run_llama_bench(str(program), peer.Job("model.gguf", 2, 64, 16))
    assert found == peer.Timing("llama.cpp by llama-bench abc", 100.0, 20.0, 0.05)
    program.write_text("#!/bin/sh\necho no such model >&2; exit 3")
    with pytest.raises(SystemExit, match="no such model"):
        peer.run_llama_bench(str(program), peer.Job("model.gguf", 2, 64, 16))


def test_the_table_has_medians_and_the_ratio_by_round(peer: ModuleType) -> None:
    own = [peer.Timing("betoken", 400.0, speed, 1 / speed) for speed in (20.0, 30.0, 25.0)]
    other = [peer.Timing("llama.cpp", 200.0, speed, 1 / speed) for speed in (10.0, 10.0, 20.0)]
    text = peer.told({"betoken": own, "other": other})
    assert "| betoken | 400.0 | 25.0 | 40.00 | 20.0 30.0 |" in text
    assert "| llama.cpp | 200.0 | 10.0 | 100.00 | 10.0 20.0 |" in text
    assert "2.00x of llama.cpp (1.25 to 3.00 by round)" in text


def test_prompts_are_the_same_for_both_and_hold_many_tokens(peer: ModuleType) -> None:
    assert peer.prompt_of(300) == peer.prompt_of(400)[:300]
    assert len(set(peer.prompt_of(300))) == 300 and 0 <= min(peer.prompt_of(300)) <= max(peer.prompt_of(300)) < 30_000


def test_without_llama_cpp_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    for module in ("llama_cpp", "xllamacpp"):
        if find_spec(module) is not None:
            pytest.skip("there is one")
    done = subprocess.run([sys.executable, SCRIPT, tmp_path / "m.gguf"], capture_output=True, text=True)
    assert done.returncode == 1 and "pip install one of llama-cpp-python, xllamacpp" in done.stderr
    done = subprocess.run([sys.executable, SCRIPT, tmp_path / "none.gguf"], capture_output=True, text=True)
    assert done.returncode == 2 and "name a GGUF file" in done.stderr
