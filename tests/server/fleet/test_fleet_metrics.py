"""server.fleet.fleet_metrics: one text for all replicas, which Prometheus' own parser reads."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from server.fleet.fleet_metrics import merge_metrics


def metrics(count: int) -> str:
    registry = CollectorRegistry()
    counter = Counter("requests", 'How "many".', ["path"], registry=registry)
    counter.labels(path='/a{b}"c').inc(count)
    Histogram("seconds", "How long.", registry=registry, buckets=(1, 2)).observe(1.5)
    return generate_latest(registry).decode()


def test_each_sample_says_whose_it_is():
    """Every sample of every replica is there once, with its labels and the replica's name."""
    text = merge_metrics([("r1", metrics(1)), ("r2", metrics(2))])
    families = {family.name: family for family in text_string_to_metric_families(text)}
    counts = {
        sample.labels["replica"]: (sample.labels["path"], sample.value)
        for sample in families["requests"].samples
        if sample.name == "requests_total"
    }
    assert counts == {"r1": ('/a{b}"c', 1.0), "r2": ('/a{b}"c', 2.0)}
    buckets = [s for s in families["seconds"].samples if s.name == "seconds_bucket"]
    assert len(buckets) == 6
    assert text.count("# TYPE seconds histogram") == 1


def test_no_replicas_have_no_metrics():
    """A fleet without replicas shows an empty page and no error."""
    assert merge_metrics([]) == ""
