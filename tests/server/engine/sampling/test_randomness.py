"""The random numbers of sampling against SplitMix64 in plain integers."""

from __future__ import annotations

import numpy as np

from server.engine.sampling.randomness import stream_element, uniforms

_MASK = (1 << 64) - 1


def _splitmix64(state: int, count: int) -> list[int]:
    numbers = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        numbers.append(mixed ^ (mixed >> 31))
    return numbers


def _words(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def test_stream_equals_published_numbers() -> None:
    """The stream of SplitMix64 from 1234567 begins with the numbers everyone's begins with."""
    numbers = stream_element(np.full(3, 1234567, np.uint64), np.arange(3, dtype=np.uint64))
    assert numbers.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_uniform_is_an_element_of_the_stream_of_seed_and_choice() -> None:
    """A uniform number is the top 53 bits of the stream that seed and choice select."""
    seed, choice = _MASK - 5, 3
    by_seed = int(stream_element(_words(0), _words(seed))[0])
    begin = _splitmix64(by_seed, choice + 1)[choice]
    expected = [number >> 11 for number in _splitmix64(begin, 40)]
    drawn = uniforms(
        np.full(40, seed, np.uint64), np.full(40, choice, np.uint64), np.arange(40, dtype=np.uint64)
    )
    assert (drawn * 2.0**53).astype(np.int64).tolist() == expected


def test_uniforms_are_spread_evenly_over_each_of_the_three_keys() -> None:
    """Whichever of seed, choice and position counts up, the numbers look uniform and unrelated."""
    count = np.arange(20_000, dtype=np.uint64)
    fixed = np.full_like(count, 7)
    for keys in ((count, fixed, fixed), (fixed, count, fixed), (fixed, fixed, count)):
        drawn = uniforms(*keys)
        assert 0 <= drawn.min() < drawn.max() < 1
        bins = np.bincount((drawn * 100).astype(int), minlength=100)
        chi_square = ((bins - 200.0) ** 2 / 200.0).sum()
        assert chi_square < 160  # 99 degrees of freedom: exceeded once in ten thousand
        assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.03
