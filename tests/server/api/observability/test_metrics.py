"""What a dashboard sees, over a socket, against what was sent and answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from engines import load_engine
from fakes import FakeEngine
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families
from serving import serving, wait_until

from server.engine.async_engine import AsyncEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
DASHBOARD = Path(__file__).parents[4] / "deploy" / "grafana-dashboard.json"
VLLM_NAMES = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "num_preemptions": "counter",
    "prompt_tokens": "counter",
    "generation_tokens": "counter",
    "request_success": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "time_per_output_token_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_inference_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "request_params_n": "histogram",
    "request_params_max_tokens": "histogram",
    "iteration_tokens_total": "histogram",
}


@pytest.fixture
def client(checkpoint) -> Iterator[httpx.Client]:
    """A server of its own, so that its counts begin at zero."""
    loaded = load_engine(checkpoint("script-gpt2"))
    engine = AsyncEngine(lambda: loaded)
    with serving(engine, max_num_seqs=8) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def families(client: httpx.Client) -> dict:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def values(client: httpx.Client) -> dict[str, float]:
    """Every sample by its name and what tells it from others of that name."""
    found = {}
    for family in families(client).values():
        for sample in family.samples:
            words = [
                v for k, v in sorted(sample.labels.items()) if k not in ("model_name", "engine")
            ]
            found["/".join([sample.name, *words])] = sample.value
    return found


def is_monotone(name: str) -> bool:
    return name.split("/", maxsplit=1)[0].endswith(("_total", "_count", "_bucket"))


def complete(client: httpx.Client, **body: object) -> dict:
    """A usage: of page 0, which is 45 tokens and the end."""
    answer = client.post(COMPLETIONS, json={"prompt": "A", "temperature": 0} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]


def leave_early(client: httpx.Client, prompt: str) -> None:
    """Read one event of a long stream and go."""
    body = {"prompt": prompt, "stream": True, "max_tokens": 600, "ignore_eos": True}
    with client.stream("POST", COMPLETIONS, json=body) as response:
        next(response.iter_lines())


def test_names_types_and_labels_are_those_of_vllm(client):
    """A dashboard made for vLLM finds each metric, of the type it expects."""
    complete(client, max_tokens=3)
    found = families(client)
    for name, kind in VLLM_NAMES.items():
        family = found[f"vllm:{name}"]
        assert family.type == kind, name
        assert family.documentation
        for sample in family.samples:
            assert sample.labels["model_name"]
            assert sample.labels["engine"] == "0"
    reasons = {sample.labels["finished_reason"] for sample in found["vllm:request_success"].samples}
    assert reasons == {"stop", "length", "abort", "refused", "error"}
    assert "process_resident_memory_bytes" in found


def test_totals_match_what_was_sent(client):
    """5 normal, 2 aborted, 1 refused and 1 with n 3: each is counted once, by its own rule."""
    usages = [complete(client, prompt="A" * (i + 1), max_tokens=4) for i in range(4)]
    usages.append(complete(client, max_tokens=200))  # ends by itself
    seen = values(client)
    for prompt in ("AA", "AAA"):
        leave_early(client, prompt)
    assert client.post(COMPLETIONS, json={"prompt": ""}).status_code == 400
    usages.append(complete(client, prompt="B" * 40, n=3, max_tokens=5))
    assert wait_until(lambda: values(client)["vllm:num_requests_running"] == 0)
    now = values(client)
    success = {name.split("/")[1]: v for name, v in now.items() if "request_success_total" in name}
    assert success == {"stop": 1, "length": 4 + 3, "abort": 2, "refused": 0, "error": 0}
    assert now["vllm:prompt_tokens_total"] == sum(u["prompt_tokens"] for u in usages)
    assert now["vllm:generation_tokens_total"] == sum(u["completion_tokens"] for u in usages)
    assert now["vllm:e2e_request_latency_seconds_count"] == 8
    assert 8 <= now["vllm:time_to_first_token_seconds_count"] <= 10
    assert now["vllm:request_generation_tokens_sum"] == sum(u["completion_tokens"] for u in usages)
    assert now["vllm:request_params_n_sum"] == 5 + 2 + 3
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert now[f"vllm:{gauge}"] == 0, gauge
    assert all(now[name] >= value for name, value in seen.items() if is_monotone(name))
    assert now["http_requests_total//v1/completions/POST/400"] == 1


def test_a_choice_shares_the_blocks_of_its_prompt(client):
    """Of three choices of one prompt, two find all of its full blocks computed."""
    usage = complete(client, prompt="C" * 100, n=3, max_tokens=2)
    now = values(client)
    assert now["vllm:prefix_cache_queries_total"] == 300
    assert now["vllm:prefix_cache_hits_total"] == 2 * 96
    decoded = usage["completion_tokens"] - 3  # the first of each follows from the prompt
    assert now["vllm:iteration_tokens_total_sum"] == 100 + 2 * 4 + decoded


def test_a_client_decides_who_may_share_its_prompt(client):
    """Another salt finds nothing, and a request without the prefix cache does not even look."""
    prompt = "D" * 50
    complete(client, prompt=prompt, max_tokens=1, cache_salt="mine")
    options = [{"cache_salt": "mine"}, {}, {"cache_salt": "mine", "prefix_cache": False}]
    usages = [complete(client, prompt=prompt, max_tokens=1, **each) for each in options]
    assert [u["prompt_tokens_details"]["cached_tokens"] for u in usages] == [48, 0, 0]
    now = values(client)
    assert now["vllm:prefix_cache_queries_total"] == 3 * 50
    assert now["vllm:prefix_cache_hits_total"] == 48


def test_a_prompt_may_be_cut_to_its_end(client):
    """Only the last tokens are kept, counted and shown."""
    body = {"prompt": "xyz" + "A" * 20, "truncate_prompt_tokens": 2, "return_token_ids": True}
    answer = client.post(COMPLETIONS, json=body | {"max_tokens": 3, "temperature": 0}).json()
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["choices"][0]["prompt_token_ids"] == [ord("A")] * 2
    assert len(answer["choices"][0]["token_ids"]) == 3


def test_histograms_are_cumulative_and_bounded_by_the_context(client):
    """Buckets never fall, the last is the count, and no bound of tokens exceeds the context."""
    complete(client, max_tokens=20, n=2)
    for family in families(client).values():
        if family.type != "histogram":
            continue
        counts = [s.value for s in family.samples if s.name.endswith("_bucket")]
        count = next(s.value for s in family.samples if s.name.endswith("_count"))
        assert counts == sorted(counts), family.name
        assert counts[-1] == count, family.name
    bounds = [
        float(sample.labels["le"])
        for sample in families(client)["vllm:request_prompt_tokens"].samples
        if sample.name.endswith("_bucket")
    ]
    assert bounds[-2:] == [1000, float("inf")]


def test_phases_add_up(client):
    """Queue, prefill and decode make the whole time in the engine."""
    complete(client, max_tokens=10)
    now = values(client)
    parts = [now[f"vllm:request_{part}_time_seconds_sum"] for part in ("prefill", "decode")]
    assert sum(parts) == pytest.approx(now["vllm:request_inference_time_seconds_sum"])
    whole = now["vllm:e2e_request_latency_seconds_sum"]
    assert sum(parts) + now["vllm:request_queue_time_seconds_sum"] <= whole
    assert now["vllm:inter_token_latency_seconds_count"] == 9


def test_a_failed_call_is_an_error_and_adds_no_tokens():
    """Its requests are counted by how they ended, and its usage, which nobody saw, is not."""
    engine = FakeEngine()
    engine.fail_after = 2
    with serving(engine) as url, httpx.Client(base_url=url) as client:
        assert client.post(COMPLETIONS, json={"prompt": "a", "n": 2}).status_code == 500
        now = values(client)
    assert now["vllm:request_success_total/error"] == 1
    assert now["vllm:request_success_total/abort"] == 1
    assert now["vllm:generation_tokens_total"] == 0


def test_what_the_request_itself_makes_impossible_is_no_error_of_the_server(client):
    """It is counted apart, as the 400 that its client saw."""
    before = values(client)
    body = {"prompt": "A", "allowed_token_ids": [65], "structured_outputs": {"regex": "AAB"}}
    assert client.post(COMPLETIONS, json=body).status_code == 400
    now = values(client)
    ended = "vllm:request_success_total"
    assert now[f"{ended}/refused"] == before[f"{ended}/refused"] + 1
    assert now[f"{ended}/error"] == before[f"{ended}/error"]
    assert now["vllm:generation_tokens_total"] == before["vllm:generation_tokens_total"]


def test_ignored_fields_are_counted():
    """The counter rises with what the header names."""
    with serving(FakeEngine()) as url, httpx.Client(base_url=url) as client:
        body = {"prompt": "a", "user": "me", "metadata": {}, "max_tokens": 1}
        assert client.post(COMPLETIONS, json=body).headers["x-ignored-fields"] == "user, metadata"
        assert values(client)["kvserve:ignored_fields_total"] == 2


def test_openmetrics_is_served_to_who_asks_for_it(client):
    """The newer form parses too, by its own, stricter, parser."""
    complete(client, max_tokens=2)
    accept = "application/openmetrics-text; version=1.0.0"
    answer = client.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert "vllm:prompt_tokens" in {family.name for family in parse_openmetrics(answer.text)}


def test_the_dashboard_asks_for_nothing_that_is_not_there(client):
    """Every metric that a panel shows is one that the server has."""
    complete(client, max_tokens=2)
    text = client.get("/metrics").text
    there = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[0] != "#"}
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["schemaVersion"] >= 36
    expressions = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", ())]
    assert len(expressions) >= 12
    for expression in expressions:
        for word in expression.replace("(", " ").replace("{", " ").replace("[", " ").split():
            if word.startswith(("vllm:", "kvserve:", "http_", "process_")):
                assert word in there, expression
