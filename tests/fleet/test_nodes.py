"""A node is lost with its replica: streams that ran there go on at another node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_process import fleet_process
from serving import wait_until
from stream_events import StreamedCall

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402 - behind the check that Ray is there

pytestmark = [pytest.mark.fleet, pytest.mark.slow]
_STORE_BYTES = 80 * 2**20
BODY = {"prompt": "Once", "max_tokens": 450, "ignore_eos": True, "temperature": 0, "seed": 0}


@pytest.fixture
def cluster(monkeypatch) -> Iterator[Cluster]:
    """A head that runs no replica, and two nodes with room for one each."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    )
    head = {"num_cpus": 0, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    yield made
    made.shutdown()


def test_the_loss_of_a_node_loses_no_answer(checkpoint, cluster):
    """Streams on a lost node go on elsewhere with the same bits; new requests are answered."""
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES) for _ in range(2)]
    with fleet_process(checkpoint("rand-llama-tied"), "--ray-address", cluster.address) as fleet:
        alone = StreamedCall(fleet.url, BODY).join().content
        calls = [StreamedCall(fleet.url, BODY) for _ in range(8)]
        assert wait_until(lambda: all(len(call.events) > 5 for call in calls), 60)
        cluster.remove_node(nodes[1], allow_graceful=False)
        calls += [StreamedCall(fleet.url, BODY) for _ in range(4)]
        assert [call.join().content == alone for call in calls] == [True] * 12
