"""Closed and open loops, in a time that passes only by script."""

import asyncio

import pytest
from virtual_time import DONE, Script, VirtualServer, run_virtually, token, usage

from server.tools.loadtest.http_client import HttpClient
from server.tools.loadtest.load_generator import Load, LoadGenerator, LoadResult
from server.tools.loadtest.stream_client import StreamClient, StreamRecord
from server.tools.loadtest.workload import Prompt

PROMPT = Prompt(({"role": "user", "content": "hello"},), 2)


def answer(seconds: float) -> Script:
    """One token after so many seconds, the last after as many again."""
    return Script([(seconds, token()), (seconds, token()), (0, usage(1, 2)), (0, DONE)])


def generate(load, choose, *, count=10, servers=1_000_000, busy=0.0):
    """Run one level of load; returns its result, the server, and what the display was told."""
    told: list[StreamRecord] = []
    used = iter((0.0, busy))
    server = VirtualServer(choose, servers=servers)

    async def work() -> LoadResult:
        async with HttpClient("http://test", timeout=None) as http:
            sender = StreamClient(http, model="m", endpoint="chat", options={})
            generator = LoadGenerator(sender, on_record=told.append, processor_time=used.__next__)
            return await generator.run([PROMPT] * count, load, seed=3)

    return run_virtually(work(), server), server, told


def test_closed_loop_keeps_its_number_under_way():
    """Each client sends its next request at the moment its last one ends."""
    result, server, told = generate(Load(concurrency=2), lambda _: answer(0.5), count=6)
    assert server.times == pytest.approx([0, 0, 1, 1, 2, 2])
    assert result.duration == pytest.approx(3)
    assert [record.latency for record in result.records] == pytest.approx([1.0] * 6)
    assert len(told) == 12


def test_closed_loop_counts_from_sending():
    """A slow answer delays the next request of its client, whose latency is its own."""
    result, _, _ = generate(
        Load(concurrency=1), lambda number: answer(5.0 if number == 0 else 0.5), count=3
    )
    assert [record.latency for record in result.records] == pytest.approx([10, 1, 1])


def test_open_loop_sends_at_its_times_whatever_the_server_does():
    """Requests go out at the drawn times though the first answer takes for ever."""
    slow, server, _ = generate(Load(rate=2.0), lambda _: answer(100.0))
    fast, quick, _ = generate(Load(rate=2.0), lambda _: answer(0.01))
    assert server.times == pytest.approx(quick.times)
    intended = [record.intended for record in slow.records]
    assert intended == pytest.approx(server.times)
    assert fast.duration < slow.duration


def test_a_stall_is_charged_to_all_who_would_have_met_it():
    """Latencies of an open loop count from the intended time: the queue at the server is in them.

    A server with room for one request stalls for 10 s at the first. A closed loop sees one slow
    request; in truth nobody who came in those 10 s was served.
    """
    stall = Script([(10.0, token()), (0, DONE)])
    quick = Script([(0.001, token()), (0, DONE)])
    result, _, _ = generate(
        Load(rate=5.0), lambda number: quick if number else stall, count=40, servers=1
    )
    start = result.records[0].intended
    for position, record in enumerate(result.records):
        ended = start + 10.0 + 0.001 * position
        expected = max(ended, record.intended + 0.001) - record.intended
        assert record.latency == pytest.approx(expected, abs=0.05)
    assert sorted(record.latency for record in result.records)[20] > 4.0


@pytest.mark.parametrize("load", [Load(concurrency=2), Load(rate=1.0)])
def test_a_run_that_is_cancelled_gives_what_ended(load):
    """Ctrl-C keeps the requests that were answered, and counts those that were not."""

    async def work() -> LoadResult:
        async with HttpClient("http://test", timeout=None) as http:
            sender = StreamClient(http, model="m", endpoint="chat", options={})
            running = asyncio.create_task(LoadGenerator(sender).run([PROMPT] * 40, load, seed=3))
            await asyncio.sleep(4.5)
            running.cancel()
            return await running

    result = run_virtually(work(), VirtualServer(lambda _: answer(0.5)))
    assert 0 < len(result.records) < 40
    assert len(result.records) + result.num_unfinished == 40
    assert all(record.error is None and record.ended for record in result.records)
    assert result.duration == pytest.approx(4.5)


def test_records_say_how_late_they_were_sent():
    """In virtual time the client is never late and so never warns."""
    result, _, _ = generate(Load(rate=100.0), lambda _: answer(0.1))
    assert max(result.lateness) == pytest.approx(0.0, abs=1e-9)
    assert result.warning is None


def test_a_busy_client_warns():
    """A client that used most of a core says that it may have been the bottleneck."""
    result, _, _ = generate(Load(concurrency=1), lambda _: answer(0.5), count=2, busy=1.9)
    assert result.cpu_share == pytest.approx(0.95)
    assert "95 % of a core" in (result.warning or "")


def test_a_late_client_warns():
    """A client that cannot keep to its rate says so."""
    records = [StreamRecord(intended=0.0, sent=0.05, ended=1.0) for _ in range(10)]
    load = Load(rate=10.0)
    result = LoadResult(load=load, started=0, duration=1, records=records, cpu_share=0.1)
    assert "50 ms late" in (result.warning or "")
