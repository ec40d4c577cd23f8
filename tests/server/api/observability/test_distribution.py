"""server.api.observability.distribution: the buckets of prometheus_client, for less."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from server.api.observability.distribution import Distribution, cumulative

BOUNDS = (0.1, 0.5, 1.0, 2.0)
VALUES = st.one_of(
    st.sampled_from(BOUNDS), st.integers(0, 5), st.floats(0, 5, allow_subnormal=False)
)


@given(st.lists(VALUES, max_size=30))
def test_it_counts_as_prometheus_does(values):
    """Buckets and sum are those of a Histogram of prometheus_client, on the bounds too."""
    ours = Distribution(BOUNDS)
    theirs = Histogram("theirs", "The same.", buckets=BOUNDS, registry=CollectorRegistry())
    for value in values:
        ours.observe(value)
        theirs.observe(value)
    (family,) = theirs.collect()
    buckets = [(s.labels["le"], s.value) for s in family.samples if s.name.endswith("_bucket")]
    total = next(s.value for s in family.samples if s.name.endswith("_sum"))
    assert ours.buckets == buckets
    assert ours.sum == total


def test_counts_between_bounds_add_up():
    """The last bucket holds everything."""
    assert cumulative((1, 8), (2, 0, 3)) == [("1.0", 2.0), ("8.0", 2.0), ("+Inf", 5.0)]
