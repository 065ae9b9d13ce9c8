"""t(n): measured on a target whose passes take a known time on a clock that never ticks by itself."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from betoken.models.target import Scores
from betoken.testing import ToyTarget
from betoken.testing.toy import ToyCache
from betoken.tree import TokenTree
from betoken.tuning.cost import MOST_NODES, CostModel, load, machine_key, save
from betoken.tuning.timings import Timings, measure

TIMINGS = Timings((1, 2, 4, 8, 16, 32), (1.0, 1.03, 1.1, 1.3, 2.0, 4.0), 64)


class SlowTarget(ToyTarget):
    """Passes take 10 ms, 1 ms a node and 10 us a node and cached position."""

    def __init__(self) -> None:
        super().__init__(context=4096)
        self.now = 0.0
        self.passes = 0

    def forward(
        self, tree: TokenTree, cache: ToyCache, slots: Sequence[int], hidden_layers: Sequence[int] = ()
    ) -> Scores:
        self.now += self.cost(tree.batch * tree.width, cache.length(slots[0]))
        self.passes += 1
        return super().forward(tree, cache, slots, hidden_layers)

    def clock(self) -> float:
        return self.now

    @staticmethod
    def cost(nodes: int, context: int) -> float:
        return 0.010 + 0.001 * nodes + 0.00001 * nodes * context


def test_measuring_finds_the_curve_and_the_price_of_context() -> None:
    target = SlowTarget()
    found = measure(target, contexts=(64, 512), clock=target.clock)
    assert found.nodes == (1, 2, 4, 8, 16, 32)
    for nodes, seconds in zip(found.nodes, found.seconds, strict=True):
        assert seconds == pytest.approx(target.cost(nodes, 64))
    assert found.per_position == pytest.approx(0.00001)
    model = CostModel(found)
    assert model.seconds(16, 300) == pytest.approx(target.cost(16, 300))
    assert model.seconds(64, 64) == pytest.approx(target.cost(64, 64))  # beyond the last measured point


def test_a_slow_target_is_measured_within_the_budget() -> None:
    target = SlowTarget()
    found = measure(target, budget_s=0.12, clock=target.clock)
    assert found.nodes[0] == 1 and len(found.nodes) >= 2
    assert target.now < 0.12 + 2 * target.cost(64, 64)


def test_a_busy_machine_does_not_bend_the_curve() -> None:
    """Four in ten passes are slowed down, some of them a lot, as when another program takes the cores."""

    class Disturbed(SlowTarget):
        rng = np.random.default_rng(3)

        def forward(
            self, tree: TokenTree, cache: ToyCache, slots: Sequence[int], hidden_layers: Sequence[int] = ()
        ) -> Scores:
            if self.rng.random() < 0.4:
                self.now += self.rng.exponential(0.05)
            return super().forward(tree, cache, slots, hidden_layers)

    for _ in range(10):
        target = Disturbed()
        found = measure(target, clock=target.clock)
        for nodes, seconds in zip(found.nodes, found.seconds, strict=True):
            assert seconds == pytest.approx(target.cost(nodes, 64), rel=0.4)
        assert target.now < 2.0


def test_the_second_load_reads_the_file(tmp_path: Path) -> None:
    target = SlowTarget()
    first = load(target, tmp_path, threads=2, clock=target.clock)
    measured = target.passes
    assert load(target, tmp_path, threads=2, clock=target.clock).timings == first.timings
    assert target.passes - measured < measured / 2, "a few passes to check the file, no measurement"
    checked = target.passes
    load(target, tmp_path, threads=1, clock=target.clock)
    assert target.passes - checked == measured, "another thread count is another measurement"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_from_a_busy_machine_is_measured_anew_and_a_busy_machine_keeps_the_file(tmp_path: Path) -> None:
    class Speed(SlowTarget):
        factor = 1.0

        def clock(self) -> float:
            return self.now * self.factor

    target = Speed()
    true = measure(target, clock=target.clock)
    slow = replace(true, seconds=tuple(3 * t for t in true.seconds))
    bent = replace(true, seconds=(true.seconds[0], *(3 * t for t in true.seconds[1:])))
    for kept in (slow, bent):
        save(kept, target, tmp_path, threads=2)
        assert load(target, tmp_path, threads=2, clock=target.clock).timings.seconds == pytest.approx(true.seconds)
    target.factor = 5.0
    assert load(target, tmp_path, threads=2, clock=target.clock).timings.seconds == pytest.approx(true.seconds)


@pytest.mark.parametrize("seconds", [(1.47, 0.51), (0.02, 0.015, 0.05), (0.018, 0.05, 0.03)])
def test_a_file_in_which_more_nodes_take_less_time_is_measured_anew(tmp_path: Path, seconds: tuple[float, ...]) -> None:
    """Passes now may be as slow as those in the file: the file alone says that something else ran."""
    target = SlowTarget()
    poisoned = Timings((1, 8, 16)[: len(seconds)], seconds, 64)
    save(poisoned, target, tmp_path, threads=2)
    target.clock = lambda: 200.0 * target.now  # type: ignore[method-assign]
    found = load(target, tmp_path, threads=2, clock=target.clock, budget_s=300.0).timings.seconds
    assert list(found) == sorted(found) and found != seconds
    target.passes = 0
    load(target, tmp_path, threads=2, clock=target.clock)
    assert target.passes < 20, "what was measured now is kept"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"key": 1}', '{"timings": {"nodes": [1], "seconds": [1.0], "context": 0, "per_position": 0}}'],
)
def test_a_file_that_cannot_be_used_is_measured_anew(tmp_path: Path, text: str) -> None:
    target = SlowTarget()
    path = save(TIMINGS, target, tmp_path, threads=2)
    assert path is not None
    path.write_text(text)
    assert load(target, tmp_path, threads=2, clock=target.clock).timings.seconds[0] == pytest.approx(target.cost(1, 64))
    assert json.loads(path.read_text())["timings"]["seconds"][0] == pytest.approx(target.cost(1, 64))


@pytest.mark.parametrize("seconds", [[0.0], [-1.0], [1.0, 2.0], [1e9]])
def test_impossible_numbers_in_a_file_are_measured_anew(tmp_path: Path, seconds: list[float]) -> None:
    target = SlowTarget()
    path = save(TIMINGS, target, tmp_path, threads=2)
    assert path is not None
    path.write_text(path.read_text().replace(str(list(TIMINGS.seconds))[1:-1], str(seconds)[1:-1]))
    kept = path.read_text().split('"seconds"')
    path.write_text(kept[0] + '"seconds": ' + str(seconds) + ', "context": 0, "per_position": 0}}')
    assert load(target, tmp_path, threads=2, clock=target.clock).timings.seconds[0] == pytest.approx(target.cost(1, 64))


def test_a_folder_that_cannot_be_written_costs_only_the_file(tmp_path: Path) -> None:
    target = SlowTarget()
    (tmp_path / "file").write_text("")
    assert load(target, tmp_path / "file" / "cost", clock=target.clock).timings.nodes[0] == 1


def test_the_key_names_what_a_measurement_depends_on() -> None:
    key = machine_key(ToyTarget(), 3)
    assert (key["model"], key["dtype"], key["threads"]) == ("toy", "float32", 3)
    assert key["processor"]


@given(
    seconds=st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=8),
    observed=st.lists(st.tuples(st.integers(1, 200), st.floats(1e-5, 100.0)), max_size=40),
)
def test_a_curve_never_decreases_whatever_was_seen(seconds: list[float], observed: list[tuple[int, float]]) -> None:
    model = CostModel(Timings(tuple(range(1, len(seconds) + 1)), tuple(seconds), 10, 1e-6))
    for nodes, taken in observed:
        model.observe(nodes, 100.0, taken)
    curve = model.curve(100.0)
    assert curve.shape == (MOST_NODES + 1,)
    assert (curve > 0).all() and np.isfinite(curve).all()
    assert (np.diff(curve) >= -1e-12 * curve[1:]).all()


def test_running_times_correct_a_stale_measurement_through_noise_and_outliers() -> None:
    rng = np.random.default_rng(0)
    model = CostModel(TIMINGS)
    true = {1: 2.0, 8: 5.2, 16: 8.0}  # the machine is half as fast now, and 8 and 16 nodes are dearer than measured
    for _ in range(200):
        nodes = int(rng.choice(list(true)))
        factor = (1 + 0.2 * rng.uniform(-1, 1)) * (10 if rng.random() < 0.02 else 1)
        model.observe(nodes, 64.0, true[nodes] * factor)
    # The measured shape keeps some weight, so the corrections go most of the way, not all of it.
    assert model.seconds(1, 64) == pytest.approx(2.0, rel=0.3)
    assert model.seconds(8, 64) / model.seconds(1, 64) > 1.8
    assert model.seconds(16, 64) / model.seconds(1, 64) > 2.6


def test_one_hiccup_changes_nothing() -> None:
    model = CostModel(TIMINGS)
    for _ in range(20):
        model.observe(4, 64.0, 1.1)
    before = model.curve(64.0).copy()
    model.observe(4, 64.0, 50.0)
    for _ in range(8):
        model.observe(4, 64.0, 1.1)
    np.testing.assert_allclose(model.curve(64.0), before, rtol=1e-9)
