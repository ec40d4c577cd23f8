"""Arrivals: when the requests of an open loop are meant to be sent."""

from __future__ import annotations

import numpy as np


def arrival_times(
    count: int, *, rate: float, burstiness: float = 1.0, seed: int = 0
) -> list[float]:
    """Draw the intended times of requests, in seconds from the start.

    Gaps are independent and gamma distributed with mean 1 / rate. A burstiness of 1 makes them
    exponential, a Poisson process; less makes bursts, more makes them even.

    Args:
        count: Requests.
        rate: Requests per second; infinity sends all at once.
        burstiness: The shape of the gamma distribution.
        seed: Of the gaps.
    """
    gaps = np.random.default_rng(seed).gamma(burstiness, 1 / (rate * burstiness), count)
    times: list[float] = np.cumsum(gaps).tolist()
    return times
