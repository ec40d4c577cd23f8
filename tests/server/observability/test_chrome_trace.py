"""Traces hold what Perfetto needs: named rows, slices that follow each other, a counter."""

from engines import make_request
from observed import observed_scheduler, step

from server.observability.chrome_trace import chrome_trace
from server.observability.timeline import Timeline


def traced(*requests, num_blocks: int = 64) -> list[dict]:
    timeline = Timeline()
    scheduler = observed_scheduler(timeline, num_blocks=num_blocks)
    for request in requests:
        scheduler.add(request)
    while scheduler.has_work:
        step(scheduler)
    trace = chrome_trace(timeline.history(request.request_id) for request in requests)
    assert trace["displayTimeUnit"] == "ms"
    return trace["traceEvents"]


def test_each_request_is_a_row():
    """Every request has a row with its id, and its steps as slices with their numbers."""
    requests = [make_request([n] * 6, max_tokens=3) for n in range(2)]
    events = traced(*requests)
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(rows.values()) == [request.request_id for request in requests]
    for row in rows:
        steps = [e for e in events if e.get("tid") == row and e.get("cat") == "step"]
        assert [e["name"] for e in steps] == ["prompt_chunk", "decode", "decode"]
        assert [e["args"]["num_cache_tokens"] for e in steps] == [6, 7, 8]
        assert all(e["ph"] == "X" and e["dur"] >= 0 and e["args"]["batch_size"] == 2 for e in steps)


def test_waits_are_slices():
    """A request waits before its admission, and again after each preemption."""
    requests = [make_request([n] * 8, max_tokens=12) for n in range(2)]
    events = traced(*requests, num_blocks=8)
    row = next(e["tid"] for e in events if e.get("args", {}).get("name") == requests[1].request_id)
    waits = [e for e in events if e.get("tid") == row and e["name"] == "waiting"]
    assert len(waits) == 1 + requests[1].num_preemptions > 1
    ends = [e["ts"] + e["dur"] for e in waits]
    admitted = [e["ts"] for e in events if e.get("tid") == row and e["name"] == "admitted"]
    assert all(abs(end - start) < 1 for end, start in zip(ends, admitted, strict=True))


def test_counter_follows_the_cache():
    """The counter of a request rises with its tokens in the cache and ends at none."""
    events = traced(make_request(range(6), max_tokens=3))
    assert [e["args"]["tokens"] for e in events if e["ph"] == "C"] == [6, 7, 8, 0]
