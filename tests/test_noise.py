"""The random numbers: fixed values, independence of the keys, and the range."""

import numpy as np
import pytest

from betoken.errors import InputError
from betoken.noise import Stream, gumbels, uniform, uniforms


def philox_4x64(counter: list[int], key: list[int]) -> list[int]:
    """Ten rounds, from the definition in Salmon et al. (SC'11)."""
    mask = (1 << 64) - 1
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c[0], 1 << 64)
        high1, low1 = divmod(0xCA5A826395121157 * c[2], 1 << 64)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B97F4A7C15) & mask, (k[1] + 0xBB67AE8584CAA73B) & mask]
    return c


@pytest.mark.parametrize("stream", list(Stream))
@pytest.mark.parametrize("seed", [0, 7, -3, 2**64 + 7])
def test_numbers_are_philox_of_their_key(seed: int, stream: Stream) -> None:
    key = [seed % 2**64, int(stream)]
    # numpy advances the counter before it makes a block.
    words = philox_4x64([1, 5, 3, 2], key) + philox_4x64([2, 5, 3, 2], key)
    expected = [(word >> 11) * 2.0**-53 for word in words]
    assert uniforms(seed, 2, 5, 8, stream=stream, step=3).tolist() == expected


def test_the_first_number_does_not_depend_on_how_many_are_asked_for() -> None:
    assert uniform(4, 1, 9) == uniforms(4, 1, 9, 1)[0] == uniforms(4, 1, 9, 77)[0]


def test_every_part_of_the_key_matters() -> None:
    base = uniform(1, 1, 1, stream=Stream.DRAFT, step=1)
    others = [
        uniform(2, 1, 1, stream=Stream.DRAFT, step=1),
        uniform(1, 2, 1, stream=Stream.DRAFT, step=1),
        uniform(1, 1, 2, stream=Stream.DRAFT, step=1),
        uniform(1, 1, 1, stream=Stream.ACCEPT, step=1),
        uniform(1, 1, 1, stream=Stream.DRAFT, step=2),
    ]
    assert base not in others
    assert len(set(others)) == len(others)


def test_numbers_are_even_and_unrelated_between_positions() -> None:
    u = np.array([uniform(3, 0, position) for position in range(4000)])
    assert u.min() >= 0.0 and u.max() < 1.0
    assert np.histogram(u, bins=8, range=(0, 1))[0] == pytest.approx(np.full(8, 500), abs=90)
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.05


def test_gumbels_are_finite_and_have_their_mean() -> None:
    g = gumbels(1, 0, 0, 20_000)
    assert np.isfinite(g).all()
    assert g.mean() == pytest.approx(0.5772, abs=0.03)


def test_negative_keys_are_refused() -> None:
    for key in ({"sample": -1, "position": 0}, {"sample": 0, "position": -1}):
        with pytest.raises(InputError):
            uniform(0, **key)
    with pytest.raises(InputError):
        uniform(0, 0, 0, step=-1)
