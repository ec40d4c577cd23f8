"""Distribution: how often a measured value fell below each of some bounds.

What a Prometheus histogram shows, kept as plain integers: noting a value costs a fraction of a
microsecond, so that one may be noted for every token. Used by one thread; it takes no lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Distribution:
    """Counts of values, by the least bound that is not below them.

    Args:
        bounds: Ascending; what is above the last is counted too.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum = 0.0
        """Of all values."""

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Each bound, "+Inf" last, with the number of values up to it."""
        return cumulative(self._bounds, self._counts)


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Buckets as Prometheus wants them, from the counts between the bounds.

    Args:
        bounds: (K,) ascending.
        counts: (K + 1,) values up to each bound and above the one before; the last are the rest.
    """
    names = [*(str(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(names, map(float, accumulate(counts)), strict=True))
