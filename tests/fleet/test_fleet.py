"""A fleet as its clients see it: one server, whose replicas may be replaced while it answers."""

from __future__ import annotations

import signal

import httpx
import pytest
from fleet_process import FleetProcess
from prometheus_client.parser import text_string_to_metric_families
from serving import wait_until
from stream_events import StreamedCall

pytestmark = [pytest.mark.fleet, pytest.mark.slow]


def test_it_answers_as_a_server_does(fleet: FleetProcess):
    """Health, readiness, models, errors and the page's own headers are those of one server."""
    fleet.wait_until_whole(2)
    with httpx.Client(base_url=fleet.url, timeout=60) as client:
        assert client.get("/health").json() == {
            "status": "ready", "replicas": 2, "ready_replicas": 2,
        }  # fmt: skip
        assert client.get("/v1/models").json()["data"][0]["id"] == "rand-llama-tied"
        refused = client.post("/v1/completions", json={"prompt": "a", "nonsense": 1})
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "unknown_parameter"
        named = client.get("/nothing", headers={"X-Request-Id": "mine"})
        assert (named.status_code, named.headers["x-request-id"]) == (404, "mine")
        preflight = client.options(
            "/v1/models",
            headers={"Origin": "http://there", "Access-Control-Request-Method": "GET"},
        )
        assert preflight.headers["access-control-allow-origin"] == "*"


def test_metrics_say_whose_they_are(fleet: FleetProcess):
    """Every replica's metrics are on one page, told apart by a label."""
    fleet.wait_until_whole(2)
    text = httpx.get(f"{fleet.url}/metrics", timeout=60).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    names = {s.labels["replica"] for s in families["vllm:num_requests_running"].samples}
    assert len(names) == 2


def test_a_prompt_goes_where_its_beginning_is(fleet: FleetProcess):
    """A second request with a long known beginning finds it in its replica's cache."""
    fleet.wait_until_whole(2)
    for topic in "abcdef":
        prompt = topic * 300
        body = {"prompt": prompt, "max_tokens": 2}
        for ending in ("x", "y"):
            answer = httpx.post(f"{fleet.url}/v1/completions", json=body, timeout=60).json()
            body = body | {"prompt": prompt + ending}
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 288


def test_an_upgrade_under_load_loses_nothing(fleet: FleetProcess):
    """SIGHUP replaces every replica; streams that run and streams that come all end well."""
    fleet.wait_until_whole(2)
    old = fleet.replica_pids
    body = {"prompt": "Once", "max_tokens": 450, "ignore_eos": True, "temperature": 0}
    calls = [StreamedCall(fleet.url, body) for _ in range(4)]
    fleet.process.send_signal(signal.SIGHUP)

    def are_replaced() -> bool:
        if sum(not call.finished for call in calls) < 4 and len(calls) < 400:
            calls.append(StreamedCall(fleet.url, body))
        return not set(old) & set(fleet.replica_pids) and fleet.num_ready == 2

    assert wait_until(are_replaced, 120)
    texts = {"".join(event["choices"][0]["text"] for event in call.join().events) for call in calls}
    assert len(texts) == 1
    assert {call.status for call in calls} == {200}
    assert all(call.finished for call in calls)
