"""server.fleet.fleet_config: what must agree is checked, and nothing of a key reaches a replica."""

from __future__ import annotations

import pytest

from server.config import configure
from server.errors import ConfigurationError
from server.fleet.fleet_config import FleetConfig


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"replicas": 3, "max_replicas": 2},
            "--max-replicas: must be at least --replicas, 3 .got 2",
        ),
        ({"drain": 540}, "--drain: must be more than --request-timeout, 540.0 seconds .got 540"),
        ({"request_timeout": 700}, "must be more than --request-timeout, 700.0 seconds .got 600"),
        ({"replicas": 0}, "--replicas: Input should be greater than or equal to 1"),
    ],
)
def test_what_does_not_agree_is_refused(options, words):
    """The message names the options, the bound and the value."""
    with pytest.raises(ConfigurationError, match=words):
        configure(FleetConfig, options)


def test_a_replica_is_told_everything_but_keys(monkeypatch):
    """The environment of a replica changes nothing: every field is given, and keys are not."""
    monkeypatch.setenv("KVSERVE_API_KEY", "secret")
    told = FleetConfig(max_num_seqs=7).of_a_replica()
    assert told.keys() == FleetConfig.model_fields.keys()
    monkeypatch.setenv("KVSERVE_MAX_NUM_SEQS", "9")
    config = FleetConfig(**told)
    assert config.max_num_seqs == 7
    assert config.api_key is None
    assert "secret" not in str(told)
