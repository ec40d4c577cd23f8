"""Comparison: what the cache gains, from the times of single steps with it and without it.

Arithmetic on measurements that others made: totals, speed-ups, growth, and beside them what the
configuration says a step must compute and move. Runs no model and reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray

from model.cost import ForwardCost

Floats = NDArray[np.float64]
CACHED_DEGREE, UNCACHED_DEGREE = 1, 2
"""The power of the length that a step's time grows with; a whole answer has one more."""
GOOD_FIT = 0.9
"""The least R^2 at which a polynomial counts as what the times follow."""
NEIGHBOURS = 4
"""Measured steps to either side of a length that its step time is the median of."""


@dataclass(kw_only=True, slots=True)
class Run:
    """The measured steps of one way to generate, in order of length.

    A step of length n sees n tokens and chooses the one that follows. Where steps were left out,
    they are taken to lie on straight lines between their neighbours.
    """

    use_cache: bool
    lengths: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    """The token that each step chose."""

    def add(self, length: int, seconds: float, token_id: int) -> None:
        """Record the next step."""
        assert not self.lengths or length > self.lengths[-1], "steps come in order"
        self.lengths.append(length)
        self.seconds.append(seconds)
        self.token_ids.append(token_id)

    def step_seconds(self, length: int) -> float:
        """Time of a step of this length: the median of nearby steps, so that one hiccup is none."""
        if self.lengths[0] == length:  # the prompt: not like the steps that follow it
            return self.seconds[0]
        at = int(np.searchsorted(self.lengths, length))
        near = [
            seconds
            for other, seconds in zip(
                self.lengths[max(1, at - NEIGHBOURS) : at + NEIGHBOURS + 1],
                self.seconds[max(1, at - NEIGHBOURS) : at + NEIGHBOURS + 1],
                strict=True,
            )
            if abs(other - length) <= NEIGHBOURS
        ]
        return float(np.median(near) if near else np.interp(length, self.lengths, self.seconds))

    def cumulative(self, length: int) -> Floats:
        """Seconds until a sequence has reached each length from the prompt's to this one."""
        every = np.arange(self.lengths[0], length + 1)
        return np.cumsum(np.interp(every, self.lengths, self.seconds))

    def total_seconds(self, length: int) -> float:
        """Time of the whole generation, the prompt included, up to the step of this length."""
        return float(self.cumulative(length)[-1])

    def is_whole(self, length: int) -> bool:
        """Whether every step up to this length was measured, so that its total is no estimate."""
        count = length - self.lengths[0] + 1
        return len(self.lengths) >= count and self.lengths[count - 1] == length


@dataclass(frozen=True, slots=True)
class Growth:
    """A polynomial through the step times: seconds = c0 + c1 n + c2 n^2 ..."""

    coefficients: tuple[float, ...]
    r_squared: float
    """The part of the times' spread that the polynomial explains; 1 is all of it."""

    @property
    def degree(self) -> int:
        """The highest power."""
        return len(self.coefficients) - 1

    @property
    def is_supported(self) -> bool:
        """Whether the times show this growth: they lie on the polynomial, and it bends upwards."""
        return self.r_squared >= GOOD_FIT and self.coefficients[-1] > 0

    @staticmethod
    def fit(run: Run, degree: int) -> Growth | None:
        """Fit a run's steps, its prompt left out; None if there are too few.

        The degree is what theory gives and is never lowered to what noise would fit: whether the
        times support it is said apart. Residuals count in proportion to the time itself, so that
        short steps matter as well.
        """
        lengths, seconds = np.array(run.lengths[1:], float), np.array(run.seconds[1:])
        if len(lengths) < degree + 2:
            return None
        found = Polynomial.fit(lengths, seconds, degree, w=1 / seconds)
        residuals = (seconds - found(lengths)) / seconds
        spread = (seconds - seconds.mean()) / seconds
        r_squared = 1 - float(residuals @ residuals) / max(float(spread @ spread), 1e-12)
        return Growth(tuple(map(float, found.convert().coef)), r_squared)

    def __call__(self, length: Floats) -> Floats:
        """Seconds of a step."""
        seconds: Floats = Polynomial(self.coefficients)(length)
        return seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two runs over the same tokens, one with the cache and one without it.

    Args:
        cached: Every step, from the prompt on.
        uncached: Steps of the same sequence, some of which may have been left out.
        cost: What the model's passes cost.
    """

    cached: Run
    uncached: Run
    cost: ForwardCost

    @property
    def first_difference(self) -> int | None:
        """The length of the first step at which the two chose different tokens; None if none."""
        chosen = dict(zip(self.cached.lengths, self.cached.token_ids, strict=True))
        pairs = zip(self.uncached.lengths, self.uncached.token_ids, strict=True)
        return next((length for length, token in pairs if chosen[length] != token), None)

    @property
    def growth(self) -> dict[str, Growth | None]:
        """Step time with the cache as a line, without it as a parabola, as theory says.

        A step with the cache attends from one token to n, one without it from n tokens to n.
        """
        return {
            "cached": Growth.fit(self.cached, CACHED_DEGREE),
            "uncached": Growth.fit(self.uncached, UNCACHED_DEGREE),
        }

    def row(self, length: int) -> dict[str, object]:
        """Everything about one length, for tables and JSON."""
        cached, uncached = self._side(self.cached, length), self._side(self.uncached, length)
        totals = [run.total_seconds(length) for run in (self.cached, self.uncached)]
        steps = [run.step_seconds(length) for run in (self.cached, self.uncached)]
        return {
            "length": length,
            "cache_bytes": length * self.cost.cache_bytes_per_token,
            "step_speedup": steps[1] / steps[0],
            "total_speedup": totals[1] / totals[0],
            "cached": cached,
            "uncached": uncached,
        }

    def to_json(self, lengths: Sequence[int]) -> dict[str, object]:
        """The whole comparison, with a row for each of the lengths."""
        return {
            "num_prompt_tokens": self.cached.lengths[0],
            "equal": self.first_difference is None,
            "first_difference": self.first_difference,
            "num_tokens_compared": len(self.uncached.lengths),
            "rows": [self.row(length) for length in lengths],
            "growth": {
                name: found
                and {
                    "seconds": found.coefficients,
                    "r_squared": found.r_squared,
                    "is_supported": found.is_supported,
                }
                for name, found in self.growth.items()
            },
            "steps": {
                name: {"length": run.lengths, "ms": [1000 * s for s in run.seconds]}
                for name, run in (("cached", self.cached), ("uncached", self.uncached))
            },
        }

    def _side(self, run: Run, length: int) -> dict[str, object]:
        first = self.cached.lengths[0]
        start = length - 1 if run.use_cache and length > first else 0
        return {
            "step_ms": 1000 * run.step_seconds(length),
            "total_ms": 1000 * run.total_seconds(length),
            "total_is_estimate": not run.is_whole(length),
            "step_flops": self.cost.flops(start=start, stop=length),
            "step_bytes": self.cost.bytes_moved(start=start, stop=length),
        }
