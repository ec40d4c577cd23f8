"""One fleet for all tests here, as starting one takes half a minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'kvserve[fleet]'")

from fleet_process import FleetProcess, fleet_process


@pytest.fixture(scope="session")
def fleet(checkpoint: Callable[[str], Path]) -> Iterator[FleetProcess]:
    """Two replicas of a tiny model; a test that kills one waits until it is replaced."""
    with fleet_process(checkpoint("rand-llama-tied")) as running:
        yield running
