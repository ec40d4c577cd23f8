"""A whole load test over real sockets, against a server whose delays are known."""

import asyncio

import httpx
import pytest
from scripted_server import scripted_server
from virtual_time import DONE, Script, ScriptedTransport, run_virtually, token

from server.errors import ConfigurationError
from server.tools.load_generator import Load
from server.tools.loadtest import LoadTest
from server.tools.workload import Lengths, random_prompts

FIRST, GAP, TOKENS = 0.12, 0.015, 12


def workload(seed, count=8):
    return random_prompts(count, Lengths(input_words=5, output_tokens=TOKENS), seed=seed)


def run_test(url: str, *loads: Load, warm_up: int = 1):
    test = LoadTest(url=url, loads=loads, workload=workload, warm_up=warm_up)
    return asyncio.run(test.run(on_level=lambda _: lambda _: None))


@pytest.mark.parametrize("load", [Load(concurrency=3), Load(rate=40.0)])
def test_known_delays_are_found(load):
    """Nothing is measured shorter than it was, and everything is counted."""
    with scripted_server(first=FIRST, gap=GAP) as (url, _):
        ((result, report),) = run_test(url, load)
    assert (report["completed"], report["total_output_tokens"]) == (8, 8 * TOKENS)
    assert report["model_id"] == "scripted"
    for record in result.records:
        assert record.ttft >= FIRST
        assert record.latency >= FIRST + GAP * (TOKENS - 1) - 0.001
        assert len(record.gaps) == TOKENS - 1


@pytest.mark.slow
def test_arrivals_are_noted_within_two_milliseconds():
    """Times are those at which the server really sent, plus less than 2 ms.

    A busy machine wakes both sides late now and then, so the best quarter counts.
    """
    with scripted_server(first=FIRST, gap=GAP) as (url, server):
        ((result, _),) = run_test(url, Load(concurrency=1), warm_up=0)
    noted = [arrival for record in result.records for arrival in record.arrivals]
    delays = sorted(b - a for a, b in zip(server.written, noted, strict=True))
    assert delays[0] >= 0
    assert delays[len(delays) // 4] < 0.002


def test_levels_do_not_find_each_others_prompts():
    """No level and no warm-up repeats the prompts of another, which a cache would answer sooner."""
    carrier = ScriptedTransport(lambda _: Script([(0.1, token()), (0, DONE)]))
    loads = [Load(concurrency=1), Load(concurrency=2)]
    test = LoadTest(url="http://test/v1", loads=loads, workload=workload, warm_up=2)
    run_virtually(test.run(on_level=lambda _: lambda _: None, transport=carrier))
    texts = [body["messages"][0]["content"] for body in carrier.bodies]
    assert len(texts) == len(set(texts)) == 18


def test_keys_and_options_are_sent():
    """The key goes as a bearer token, and further fields into each body."""
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(200, json={"data": [{"id": "m"}]})

    test = LoadTest(url="http://test", loads=[], workload=workload, api_key="secret")
    transport = httpx.MockTransport(answer)
    asyncio.run(test.run(on_level=lambda _: lambda _: None, transport=transport))
    assert seen == ["Bearer secret"]


def test_a_failing_warm_up_ends_the_test():
    """Nothing is measured on a server that refuses the first request."""
    carrier = ScriptedTransport(lambda _: Script([(0.0, b"no")], status=401))
    test = LoadTest(url="http://test", loads=[Load(concurrency=1)], workload=workload, warm_up=1)
    with pytest.raises(ConfigurationError, match="HTTP 401: no"):
        run_virtually(test.run(on_level=lambda _: lambda _: None, transport=carrier))
    assert len(carrier.bodies) == 1
