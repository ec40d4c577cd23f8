"""The views over HTTP: regions come and go, timelines are told, nobody's text is shown."""

import asyncio
import json
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
from engines import load_engine
from fakes import FakeEngine
from observed import observed_scheduler
from serving import serving, wait_until
from starlette.requests import Request

from server.api.handlers.views import Views
from server.api.transport.workers import Workers
from server.engine.async_engine import AsyncEngine
from server.engine.cache_snapshot import take_snapshot
from server.engine.timeline import EventKind, Timeline

SECRET = "an apple a day keeps everybody away, " * 2
STEPS = {"prompt_chunk", "decode", "recompute"}


@pytest.fixture
def loaded(checkpoint):
    """A loaded engine over a small random model, slow enough to be watched."""
    loaded = load_engine(checkpoint("rand-llama-tied"))
    step = loaded.engine.step

    def slow_step():
        time.sleep(0.005)
        return step()

    loaded.engine.step = slow_step
    return loaded


@pytest.fixture
def client(loaded):
    """A client of a server with that engine."""
    with serving(AsyncEngine(lambda: loaded)) as url, httpx.Client(base_url=url) as client:
        yield client


@contextmanager
def running(client, *prompts, **fields):
    """Completions that run while the block does; gives the ids of their calls."""
    streams, lines, ids = [], [], []
    body = {"max_tokens": 300, "stream": True, "ignore_eos": True, **fields}
    try:
        for prompt in prompts:
            request = client.build_request(
                "POST", "/v1/completions", json={"prompt": prompt, **body}
            )
            streams.append(client.send(request, stream=True))
            lines.append(streams[-1].iter_lines())  # kept: a forgotten iterator ends its stream
            first = next(line for line in lines[-1] if line.startswith("data: "))
            ids.append(json.loads(first.removeprefix("data: "))["id"])
        yield ids
    finally:
        for stream in streams:
            stream.close()


def completed(client, **fields) -> str:
    """The id of a call that has been answered."""
    body = {"prompt": SECRET, "max_tokens": 5, "ignore_eos": True, **fields}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def test_regions_come_and_go(client):
    """A running request holds blocks; when it has gone they are free or reusable."""
    idle = client.get("/kv").json()
    assert (idle["regions"], idle["num_held_blocks"]) == ([], 0)
    with running(client, SECRET) as (call_id,):
        busy = client.get("/kv").json()
        (region,) = busy["regions"]
        assert region["request_id"] == f"{call_id}-0"
        assert region["num_used_tokens"] <= region["num_reserved_tokens"]
        assert len(region["block_ids"]) == busy["num_held_blocks"] > 0
        assert busy["num_running"] == 1
    assert wait_until(lambda: client.get("/kv").json()["num_held_blocks"] == 0)
    after = client.get("/kv").json()
    assert after["num_reusable_blocks"] > 0
    assert after["num_reusable_blocks"] + after["num_free_blocks"] == after["num_blocks"]


def test_shared_beginnings_show(client):
    """Two requests with the same beginning share its blocks, by id and by name."""
    with running(client, SECRET + "first", SECRET + "second") as (first, second):
        shown = client.get("/kv").json()
        (group,) = shown["shared"]
        assert group["request_ids"] == [f"{first}-0", f"{second}-0"]
        assert len(group["block_ids"]) == len(SECRET) // shown["block_size"]
        assert shown["regions"][1]["num_cached_tokens"] == len(group["block_ids"]) * 16


def test_stream_follows(client):
    """The stream begins with the present and sends a frame whenever something has changed."""
    seen = []
    with client.stream("GET", "/kv/stream") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if not line.startswith("data: "):
                continue
            seen.append(json.loads(line.removeprefix("data: ")))
            if len(seen) == 1:
                other = threading.Thread(
                    target=completed, args=(client,), kwargs={"max_tokens": 60}
                )
                other.start()
            elif not seen[-1]["regions"] and seen[-1]["num_reusable_blocks"]:
                break
        other.join()
    held = [frame["num_held_blocks"] for frame in seen]
    assert (held[0], held[-1]) == (0, 0)
    assert max(held) > 0
    generated = [frame["totals"]["num_generated_tokens"] for frame in seen]
    assert generated == sorted(generated)
    assert generated[-1] == 60


def test_streams_end_with_the_engine(loaded):
    """Who watches when the engine is stopped is told, so that no stream keeps a server alive."""

    async def main() -> None:
        engine = AsyncEngine(lambda: loaded)
        await engine.start()
        request = Request({"type": "http"}, asyncio.Event().wait)
        stream = await Views(engine, keep_alive=15, workers=Workers(8)).kv_stream(request)
        sent = []

        async def send(message):
            sent.append(message.get("body", b""))

        watching = asyncio.create_task(stream({"method": "GET"}, asyncio.Event().wait, send))
        await engine.stop(grace=0)
        await asyncio.wait_for(watching, 10)
        assert b"shutting down" in sent[-2] or b"draining" in sent[-2]

    asyncio.run(main())


def test_requests_are_listed(client):
    """Requests that run and that have ended are listed, the newest first, with their times."""
    done = completed(client)
    with running(client, SECRET) as (call_id,):
        newest, older = client.get("/requests").json()["data"]
    assert (newest["request_id"], newest["status"]) == (f"{call_id}-0", "running")
    assert newest["finish_reason"] is None
    assert (older["request_id"], older["status"]) == (f"{done}-0", "finished")
    assert older["finish_reason"] == "length"
    assert older["num_output_tokens"] == 5
    assert older["num_prompt_tokens"] == len(SECRET)
    assert abs(older["arrived"] - time.time()) < 60
    moments = [older[f"{what}_seconds"] for what in ("waited", "first_token", "finished")]
    assert moments == sorted(moments)


def test_timeline_of_a_request(client):
    """A timeline has each step of its request, in order, with its batch and its milliseconds."""
    request_id = f"{completed(client)}-0"
    (told,) = client.get(f"/requests/{request_id}/timeline").json()["data"]
    assert told["request_id"] == request_id
    events = told["events"]
    assert [event["event"] for event in events] == [
        "queued", "admitted", "prompt_chunk", *["decode"] * 4, "finished",
    ]  # fmt: skip
    steps = [event for event in events if event["event"] in STEPS]
    assert sum(event["num_tokens"] for event in steps) == len(SECRET) + 4
    assert steps[-1]["num_cache_tokens"] == len(SECRET) + 4
    assert all(event["batch_size"] == 1 and event["milliseconds"] > 0 for event in steps)
    assert events[-1]["finish_reason"] == "length"
    assert told["num_lost_events"] == 0


def test_timeline_of_a_call(client):
    """The id that a client was given stands for all choices of its call."""
    call_id = completed(client, n=3)
    data = client.get(f"/requests/{call_id}/timeline").json()["data"]
    assert sorted(told["request_id"] for told in data) == [f"{call_id}-{i}" for i in range(3)]


def test_chrome_trace(client):
    """The trace has the fields the format asks for, and slices that do not overlap in a row."""
    call_id = completed(client, n=2)
    answer = client.get(f"/requests/{call_id}/timeline", params={"format": "chrome"})
    events = answer.json()["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C", "i"}
    for row in {event["tid"] for event in events if event["ph"] == "X"}:
        slices = [event for event in events if event["ph"] == "X" and event["tid"] == row]
        assert [event["name"] for event in slices if event["cat"] == "step"][-1] == "decode"
        ends = [event["ts"] + event["dur"] for event in slices]
        assert all(end <= after["ts"] + 0.01 for end, after in zip(ends, slices[1:], strict=False))
    named = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert sorted(named) == [f"{call_id}-0", f"{call_id}-1"]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/requests/nobody/timeline", 404, "'nobody'"),
        ("/requests/nobody/timeline?format=png", 400, "json, chrome (got 'png')"),
    ],
)
def test_refusals(client, path, status, words):
    """Unknown requests and formats are refused by name, in the one error shape."""
    answer = client.get(path)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


def test_no_text_is_shown(client):
    """No view contains the text of a prompt or an answer."""
    call_id = completed(client)
    with running(client, SECRET):
        bodies = [
            client.get(path).text
            for path in (
                "/kv",
                "/requests",
                f"/requests/{call_id}/timeline",
                f"/requests/{call_id}/timeline?format=chrome",
            )
        ]
    assert not any("apple" in body for body in bodies)


def test_every_event_has_a_description(client):
    """The kinds that HTTP names are those the timeline knows."""
    call_id = completed(client)
    (told,) = client.get(f"/requests/{call_id}/timeline").json()["data"]
    assert {event["event"] for event in told["events"]} <= {kind.name.lower() for kind in EventKind}


def test_dead_engine_is_said(loaded, monkeypatch):
    """When the engine has died, views of the cache answer 503 and what is remembered stays."""
    with serving(AsyncEngine(lambda: loaded)) as url, httpx.Client(base_url=url) as client:
        call_id = completed(client)
        monkeypatch.setattr(loaded.engine._runner, "submit", lambda _batch: 1 / 0)
        failed = client.post("/v1/completions", json={"prompt": "a"})
        assert failed.status_code >= 500
        assert client.get("/kv").status_code == 503
        assert client.get("/kv/stream").status_code == 503
        assert client.get(f"/requests/{call_id}/timeline").status_code == 200


def test_one_snapshot_serves_many_watchers():
    """However many watch, the engine is asked for one snapshot in a while."""

    class Counting(FakeEngine):
        asked = 0

        async def cache_snapshot(self):
            self.asked += 1
            return take_snapshot(scheduler, timeline)

    timeline = Timeline()
    scheduler = observed_scheduler(timeline)
    engine = Counting()
    with serving(engine) as url, httpx.Client(base_url=url) as client:
        streams = [
            client.send(client.build_request("GET", "/kv/stream"), stream=True) for _ in range(8)
        ]
        time.sleep(1)
        for stream in streams:
            stream.close()
    assert engine.asked <= 30
