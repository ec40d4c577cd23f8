"""Draws: the random numbers of a batch's requests, a pure function of seed, choice and position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from server.engine.sampling.randomness import streams, uniforms_of, words
from server.request import Request

_STEPS_AHEAD = 32


class Draws:
    """The random numbers of some requests, found for many steps at once: one step takes as long.

    Args:
        requests: (B,) whose they are.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self._streams = streams(
            words([request.params.seed for request in requests]),
            words([request.choice for request in requests]),
        )
        self._positions: list[int] = []
        self._coming: Iterator[npt.NDArray[np.float64]] = iter(())

    def at(self, positions: list[int]) -> npt.NDArray[np.float64]:
        """The numbers (B,) for the tokens at these positions; fastest if each is the next one."""
        row = next(self._coming, None) if positions == self._positions else None
        if row is None:
            steps = np.arange(_STEPS_AHEAD, dtype=np.uint64)[:, np.newaxis]
            self._coming = iter(uniforms_of(self._streams, words(positions) + steps))
            row = next(self._coming)
        self._positions = [position + 1 for position in positions]
        return row
