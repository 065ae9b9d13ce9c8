"""`betoken profile` on a target and a clock whose times are known."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from betoken.commands.profile import show
from betoken.errors import InputError
from betoken.models.config import DecoderConfig
from betoken.models.target import Scores
from betoken.testing import ToyTarget
from betoken.testing.toy import ToyCache
from betoken.tree import TokenTree
from betoken.tuning.cost import CostModel
from betoken.tuning.profile import Profile, memory_speed, plot, profile, weight_bytes


class Clocked(ToyTarget):
    """A pass takes 8 ms, 2 ms a node of any row, and 20 us a node and cached position."""

    def __init__(self) -> None:
        super().__init__(context=2048)
        self.now = 0.0

    def forward(
        self, tree: TokenTree, cache: ToyCache, slots: Sequence[int], hidden_layers: Sequence[int] = ()
    ) -> Scores:
        assert tree.batch == len(slots) == len(set(slots))
        assert len({cache.length(slot) for slot in slots}) == 1
        self.now += cost(tree.batch * tree.width, cache.length(slots[0]))
        return super().forward(tree, cache, slots, hidden_layers)

    def clock(self) -> float:
        return self.now


def cost(nodes: int, context: int) -> float:
    return 0.008 + 0.002 * nodes + 0.00002 * nodes * context


@pytest.fixture
def found() -> Profile:
    target = Clocked()
    return profile(
        target,
        nodes=(1, 4, 16),
        contexts=(200, 50),
        batches=(4, 1),
        repeats=3,
        weight_bytes=10**8,
        peak=1e10,
        clock=target.clock,
    )


def test_every_combination_is_measured(found: Profile) -> None:
    assert found.settings == [(1, 50), (4, 50), (1, 200), (4, 200)]
    for batch, context in found.settings:
        for nodes in (1, 4, 16):
            assert found.seconds(nodes, batch, context) == pytest.approx(cost(batch * nodes, context))
    assert found.seconds(2, 1, 50) is None


def test_memory_speed_is_weights_over_the_time_of_one_node(found: Profile) -> None:
    assert found.reached_bytes_per_s == pytest.approx(1e8 / cost(1, 50))


def test_the_curve_that_is_kept_predicts_other_contexts(found: Profile) -> None:
    model = CostModel(found.timings())
    for nodes in (1, 4, 10, 16):
        assert model.seconds(nodes, 120) == pytest.approx(cost(nodes, 120))


def test_one_outlier_does_not_move_a_median() -> None:
    target = Clocked()
    calls = 0

    def clock() -> float:
        nonlocal calls
        calls += 1
        if calls == 6:  # the end of the second measured pass
            target.now += 100.0
        return target.now

    found = profile(target, nodes=(1,), contexts=(50,), repeats=5, clock=clock)
    assert found.seconds(1, 1, 50) == pytest.approx(cost(1, 50))


@pytest.mark.parametrize(
    ("nodes", "contexts", "batches", "repeats", "told"),
    [
        ((0,), (64,), (1,), 5, "nodes"),
        ((), (64,), (1,), 5, "nodes"),
        ((1,), (0,), (1,), 5, "contexts"),
        ((1,), (64,), (-1,), 5, "batches"),
        ((1,), (64,), (1,), 0, "repeats"),
        ((1,), (1024,), (1,), 5, "context, 1024"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    nodes: tuple[int, ...], contexts: tuple[int, ...], batches: tuple[int, ...], repeats: int, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        profile(Clocked(), nodes=nodes, contexts=contexts, batches=batches, repeats=repeats)


def test_without_a_single_row_there_is_no_curve_to_keep() -> None:
    target = Clocked()
    found = profile(target, nodes=(1, 2), contexts=(50,), batches=(2,), repeats=1, clock=target.clock)
    with pytest.raises(InputError, match="batch 1"):
        found.timings()
    assert found.reached_bytes_per_s is None


def test_weight_bytes_by_hand(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 100,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    matrices = 100 * 16 + 16 * 16 + 2 * 8 * 16 + 16 * 16 + 3 * 16 * 32
    norms = 3 * 16
    assert weight_bytes(tmp_path, "float32") == 4 * (matrices + norms)
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    assert not DecoderConfig.from_folder(tmp_path).tied_embeddings
    assert weight_bytes(tmp_path, "float32") == 4 * (matrices + norms), "the head is read, the embedding is not"
    scales = 4 * (100 + 16 + 2 * 8 + 16 + 2 * 32 + 16)
    assert weight_bytes(tmp_path, "int8") == matrices + scales + 4 * norms
    assert weight_bytes(tmp_path, "int4") == matrices * 9 // 16 + scales + 4 * norms
    assert weight_bytes(tmp_path / "none", "int8") is None


def test_memory_speed_takes_the_fastest_read() -> None:
    ticks = iter([0.0, 2.0, 2.0, 2.5, 3.0, 4.0])
    assert memory_speed(megabytes=1, repeats=3, clock=lambda: next(ticks)) == pytest.approx(2**20 / 0.5)


def test_the_table_shows_milliseconds_ratios_and_memory(found: Profile, capsys: pytest.CaptureFixture[str]) -> None:
    show(found)
    out = capsys.readouterr().out
    assert "11.0" in out  # cost(1, 50) in ms
    assert "(1.82)" in out  # cost(4, 50) / cost(1, 50)
    assert "9.1 GB/s, 91% of the 10.0 GB/s" in out
    assert "outside" not in out


def test_what_the_products_do_not_take_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    target = Clocked()
    asked: list[int] = []

    def products(nodes: int) -> float:
        asked.append(nodes)
        return 0.75 * cost(nodes, 50)

    found = profile(
        target, nodes=(1, 4), contexts=(50,), batches=(1, 3), repeats=2, products=products, clock=target.clock
    )
    assert asked == [1, 4, 1, 4, 3, 12, 3, 12], "nodes of all rows, behind each pass"
    assert [point.outside_share for point in found.points] == pytest.approx([0.25] * 4)
    show(found)
    assert "25%" in capsys.readouterr().out


def test_the_plot_is_written_or_refused(found: Profile, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(found, tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    for bad in (tmp_path / "t.nonsense", tmp_path / "no" / "t.png"):
        with pytest.raises(InputError, match="cannot be written"):
            plot(found, bad)
