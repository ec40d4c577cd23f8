"""A whole load test over real sockets, against a server whose delays are known."""

import asyncio
from itertools import pairwise

import pytest
from scripted_server import ScriptedServer, scripted_server
from virtual_time import DONE, Script, VirtualServer, run_virtually, token

from server.errors import ConfigurationError
from server.tools.loadtest.load_generator import Load
from server.tools.loadtest.loadtest import LoadTest
from server.tools.loadtest.workload import Lengths, random_prompts

FIRST, GAP, TOKENS = 0.12, 0.015, 12


def workload(seed, count=8):
    return random_prompts(count, Lengths(input_words=5, output_tokens=TOKENS), seed=seed)


def run_test(server: ScriptedServer, url: str, load: Load):
    """Run a load test; gives its report, and each record with what the server knows of it."""
    test = LoadTest(url=url, loads=[load], workload=workload, warm_up=1)
    ((result, report),) = asyncio.run(test.run(on_level=lambda _: lambda _: None))
    texts = [prompt.text for prompt in workload(test.seed)]
    pairs = zip(result.records, (server.exchanges[text] for text in texts), strict=True)
    return report, list(pairs)


@pytest.mark.parametrize("load", [Load(concurrency=3), Load(rate=40.0)])
def test_known_delays_are_found(load):
    """Nothing is measured shorter than it was, and everything is counted."""
    with scripted_server(first=FIRST, gap=GAP) as (url, server):
        report, pairs = run_test(server, url, load)
    assert (report["completed"], report["total_output_tokens"]) == (8, 8 * TOKENS)
    assert report["model_id"] == "scripted"
    for record, exchange in pairs:
        assert record.start <= record.sent <= exchange.received
        assert len(record.arrivals) == len(exchange.written) == TOKENS
        assert all(a >= w for a, w in zip(record.arrivals, exchange.written, strict=True))
        assert record.ttft >= exchange.written[0] - exchange.received >= FIRST - 1e-6
        assert record.latency >= exchange.written[-1] - exchange.received


@pytest.mark.slow
def test_times_are_the_servers_within_two_milliseconds():
    """First tokens, gaps and whole answers take what they took in the server, plus under 2 ms.

    What counts is when the server really wrote, not when it was to. A busy machine wakes both
    sides late now and then, so the best quarter counts.
    """
    with scripted_server(first=FIRST, gap=GAP) as (url, server):
        _, pairs = run_test(server, url, Load(concurrency=1))
    surplus = {
        "first": [r.ttft - (e.written[0] - e.received) for r, e in pairs],
        "last": [r.latency - (e.written[-1] - e.received) for r, e in pairs],
        "gap": [
            abs(noted - (b - a))
            for r, e in pairs
            for noted, (a, b) in zip(r.gaps, pairwise(e.written), strict=True)
        ],
    }
    best_quarter = {name: sorted(values)[len(values) // 4] for name, values in surplus.items()}
    assert all(0 <= seconds < 0.002 for seconds in best_quarter.values()), best_quarter


def test_levels_do_not_find_each_others_prompts():
    """No level and no warm-up repeats the prompts of another, which a cache would answer sooner."""
    server = VirtualServer(lambda _: Script([(0.1, token()), (0, DONE)]))
    loads = [Load(concurrency=1), Load(concurrency=2)]
    test = LoadTest(url="http://test/v1", loads=loads, workload=workload, warm_up=2)
    run_virtually(test.run(on_level=lambda _: lambda _: None), server)
    texts = [body["messages"][0]["content"] for body in server.bodies]
    assert len(texts) == len(set(texts)) == 18


def test_keys_and_options_are_sent():
    """The key goes as a bearer token, and further fields into each body."""
    server = VirtualServer(lambda _: Script([(0.1, token()), (0, DONE)]))
    test = LoadTest(
        url="http://test/api/v1/", loads=[Load(concurrency=1)], workload=workload,
        api_key="secret", options={"top_k": 1},
    )  # fmt: skip
    run_virtually(test.run(on_level=lambda _: lambda _: None), server)
    assert server.heads[0].startswith("GET /api/v1/models HTTP/1.1\r\n")
    assert server.heads[1].startswith("POST /api/v1/chat/completions HTTP/1.1\r\n")
    assert all("\r\nAuthorization: Bearer secret\r\n" in head + "\r\n" for head in server.heads)
    assert {body["top_k"] for body in server.bodies} == {1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "127.0.0.1:8000"}, r"expected a URL such as .* \(got 127.0.0.1:8000\)"),
        ({"url": "ftp://host"}, "got ftp://host"),
        ({"url": "http://host:x"}, "got http://host:x"),
        ({"url": "http://me@host"}, "got http://me@host"),
        ({"url": "http://host", "api_key": "a\r\nb"}, "header Authorization"),
    ],
)
def test_what_cannot_be_sent_is_refused(options, message):
    """A URL or a key that no request can carry is one clear error."""
    test = LoadTest(loads=[], workload=workload, **options)
    with pytest.raises(ConfigurationError, match=message):
        run_virtually(test.run(on_level=lambda _: lambda _: None))


def test_a_failing_warm_up_ends_the_test():
    """Nothing is measured on a server that refuses the first request."""
    server = VirtualServer(lambda _: Script([(0.0, b"no")], status=401))
    test = LoadTest(url="http://test", loads=[Load(concurrency=1)], workload=workload, warm_up=1)
    with pytest.raises(ConfigurationError, match="HTTP 401: no"):
        run_virtually(test.run(on_level=lambda _: lambda _: None), server)
    assert len(server.bodies) == 1
