"""Memory: the estimate against real models, free memory from made-up proc and cgroup trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from betoken.errors import InputError
from betoken.models.config import DecoderConfig
from betoken.models.memory import available_bytes, check_fits, needed_bytes
from model_files import FAMILIES, saved_model

CONFIG = DecoderConfig("LlamaForCausalLM", 2048, 8192, 16, 32, 8, 64, 128256, 1e-5, 5e5, 131072, tied_embeddings=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_estimate_covers_the_weights(family: str) -> None:
    model = saved_model(family)
    config = DecoderConfig.from_hf(model.config.to_dict())
    weights = sum(parameter.numel() for parameter in model.parameters())
    for dtype, width in (("int4", 0.5), ("int8", 1), ("bfloat16", 2), ("float32", 4), ("float64", 8)):
        assert needed_bytes(config, dtype, 16) > weights * width


def test_keys_and_values_are_counted() -> None:
    per_position = 2 * 16 * 8 * 64
    assert needed_bytes(CONFIG, "float32", 5000) - needed_bytes(CONFIG, "float32", 1000) == 4000 * per_position * 4
    assert needed_bytes(CONFIG, "bfloat16", 5000) - needed_bytes(CONFIG, "bfloat16", 1000) == 4000 * per_position * 2
    assert needed_bytes(CONFIG, "int8", 1000, 8) - needed_bytes(CONFIG, "int8", 1000) > 7 * 1000 * per_position * 4
    assert 1.2e9 < needed_bytes(CONFIG, "int8", 2048) < 4e9  # Llama 3.2 1B: 1.24 G parameters
    with pytest.raises(InputError, match="int3"):
        needed_bytes(CONFIG, "int3", 16)


def test_a_model_that_does_not_fit_is_refused_with_both_numbers() -> None:
    check_fits(CONFIG, "int8", 2048, available=10 << 30)
    with pytest.raises(InputError, match=r"needs about \d+\.\d GB as float32 .* 2\.0 GB are free"):
        check_fits(CONFIG, "float32", 2048, available=2_000_000_000)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 2000 kB\nMemFree: 100 kB\nMemAvailable: 1000 kB\n"}


def test_free_memory_of_the_machine(tmp_path: Path) -> None:
    assert available_bytes(tree(tmp_path / "a", MEMINFO)) == 1000 * 1024
    assert available_bytes(tmp_path / "nothing") is None
    here = available_bytes()
    assert here is None or here > 0


def test_cgroup_2_and_its_parents(tmp_path: Path) -> None:
    group = "sys/fs/cgroup"
    files = MEMINFO | {
        "proc/self/cgroup": "0::/slice/unit\n",
        f"{group}/slice/unit/memory.max": "max\n",
        f"{group}/slice/unit/memory.current": "5\n",
        f"{group}/slice/memory.max": "600000\n",
        f"{group}/slice/memory.current": "500000\n",
        f"{group}/slice/memory.stat": "anon 1\ninactive_file 20000\n",
    }
    assert available_bytes(tree(tmp_path, files)) == 120000


def test_cgroup_1(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/job"
    files = MEMINFO | {
        "proc/self/cgroup": "3:cpu,cpuacct:/job\n2:memory:/job\n",
        f"{group}/memory.limit_in_bytes": "300000\n",
        f"{group}/memory.usage_in_bytes": "250000\n",
    }
    assert available_bytes(tree(tmp_path, files)) == 50000
    (tmp_path / group / "memory.usage_in_bytes").write_text("999999\n")
    assert available_bytes(tmp_path) == 0
