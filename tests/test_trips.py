"""Grid trips: the generator keeps to its published law, and its entropy is right."""

from __future__ import annotations

import numpy as np
import pytest

from betoken.errors import InputError
from betoken.training import trips


def test_trips_stay_on_the_grid_and_move_one_cell_at_a_time() -> None:
    found = trips.trips(200, seed=3)
    assert found.shape == (200, 100)
    columns, rows = found % 5, found // 5
    steps = np.abs(np.diff(columns, axis=1)) + np.abs(np.diff(rows, axis=1))
    assert (steps == 1).all()
    assert found.min() >= 0 and found.max() <= 24


def test_turns_happen_as_often_as_published() -> None:
    """Counted in the three inner rows and columns, where no move leaves the grid."""
    found = trips.trips(2000, seed=1)
    columns, rows = found % 5, found // 5
    inner = ((columns > 0) & (columns < 4) & (rows > 0) & (rows < 4))[:, 1:-1]
    moves = np.diff(columns, axis=1) + 1j * np.diff(rows, axis=1)
    turn = (moves[:, 1:] / moves[:, :-1])[inner]
    n = turn.size
    for name, quarter in (("straight", 1), ("right", 1j), ("back", -1), ("left", -1j)):
        share = float(np.isclose(turn, quarter).mean())
        chance = trips.TURNS[name]
        assert abs(share - chance) < 5 * np.sqrt(chance * (1 - chance) / n), name


def test_entropy_is_the_mean_surprise_of_the_generator() -> None:
    found = trips.trips(4000, seed=2)
    per_trip = [trips.loss([trip]) for trip in found]
    error = np.std(per_trip) / np.sqrt(len(per_trip))
    assert abs(np.mean(per_trip) - trips.entropy()) < 4 * error
    assert trips.entropy() == pytest.approx(0.7348, abs=5e-5)


def test_a_trip_depends_on_its_seed_and_number_alone() -> None:
    whole = trips.trips(6, seed=5)
    assert np.array_equal(whole[4:], trips.trips(2, seed=5, first=4))
    assert not np.array_equal(whole, trips.trips(6, seed=6))
    assert trips.trips(0, seed=5).shape == (0, 100)
    with pytest.raises(InputError, match="must not be negative"):
        trips.trips(-1, seed=0)
