"""The random numbers of sampling: a pure function of (seed, choice, position), without state.

It never looks at a clock, a batch or a device, so a request draws the same numbers whoever else
runs, after a preemption, and on every machine.
The sampler calls it on the engine thread; nothing here is owned.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]

# The increment and the two multipliers of SplitMix64.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def uniforms(
    seeds: UInt64Array, choices: UInt64Array, positions: UInt64Array
) -> npt.NDArray[np.float64]:
    """Return one uniform number in [0, 1), a multiple of 2**-53, for each row.

    A row's stream is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014) started at a hash of its seed and choice; the position says which
    element of the stream is wanted.

    Args:
        seeds: (B,) seeds modulo 2**64.
        choices: (B,) which of a request's n choices.
        positions: (B,) index in its sequence of the token to be drawn.
    """
    return uniforms_of(streams(seeds, choices), positions)


def streams(seeds: UInt64Array, choices: UInt64Array) -> UInt64Array:
    """Return where the stream (B,) of each seed and choice begins."""
    return stream_element(stream_element(np.zeros_like(seeds), seeds), choices)


def uniforms_of(starts: UInt64Array, positions: UInt64Array) -> npt.NDArray[np.float64]:
    """Return the elements of `streams` at these positions as uniform numbers (B,)."""
    top_bits = stream_element(starts, positions) >> np.uint64(11)
    return top_bits.astype(np.float64) * 2.0**-53


def words(values: Sequence[int]) -> UInt64Array:
    """Return integers of either sign modulo 2**64."""
    return np.array([value & 0xFFFFFFFFFFFFFFFF for value in values], np.uint64)


def stream_element(start: UInt64Array, index: UInt64Array) -> UInt64Array:
    """Return element `index`, counted from 0, of the SplitMix64 streams that begin at `start`."""
    mixed: UInt64Array = start + (index + np.uint64(1)) * _GAMMA
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MULTIPLIERS[0]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MULTIPLIERS[1]
    return mixed ^ (mixed >> np.uint64(31))
