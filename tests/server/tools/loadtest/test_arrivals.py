"""Arrival times have the mean and the spread that were asked for."""

import numpy as np
import pytest

from server.tools.loadtest.arrivals import arrival_times


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_are_gamma_distributed(burstiness):
    """Mean 1 / rate, and a variance that falls as the burstiness number rises."""
    times = np.array(arrival_times(40_000, rate=8.0, burstiness=burstiness, seed=1))
    gaps = np.diff(times)
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 8 / np.sqrt(burstiness), rel=0.05)


def test_poisson_counts_have_the_variance_of_their_mean():
    """Arrivals in each second of a Poisson process vary as much as their mean."""
    times = np.array(arrival_times(50_000, rate=10.0, seed=2))
    counts = np.bincount(times.astype(int))[:-1]
    assert counts.mean() == pytest.approx(10, rel=0.03)
    assert counts.var() == pytest.approx(10, rel=0.1)


def test_seeds_repeat():
    """The same seed makes the same times, another one others."""
    first, again, other = (arrival_times(5, rate=1.0, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
