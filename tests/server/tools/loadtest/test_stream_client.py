"""One request is measured to the last digit, in a time that passes only by script."""

import pytest
from virtual_time import DONE, Script, VirtualServer, event, run_virtually, token, usage

from server.tools.loadtest.http_client import HttpClient
from server.tools.loadtest.stream_client import StreamClient, StreamRecord
from server.tools.loadtest.workload import Prompt

PROMPT = Prompt(({"role": "user", "content": "hello"},), 5)
ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})


def send(*parts, status=200, endpoint="chat", server=None) -> StreamRecord:
    """Send one request, meant for time 0, to a server that answers by script."""

    async def work() -> StreamRecord:
        async with HttpClient("http://test", timeout=30) as http:
            record = StreamRecord(intended=0.0)
            sender = StreamClient(http, model="m", endpoint=endpoint, options={"top_k": 1})
            await sender.send(sender.body(PROMPT), record)
            return record

    return run_virtually(work(), server or VirtualServer(lambda _: Script(parts, status)))


def test_times_are_those_of_the_script():
    """First token, gaps, time per token and latency are exactly what the server's delays make."""
    record = send((0.25, ROLE), (0.25, token()), (0.1, token()), (0.3, token()),
                  (0.0, usage(7, 3)), (0.2, DONE))  # fmt: skip
    assert record.error is None
    assert record.ttft == pytest.approx(0.5, abs=1e-12)
    assert record.gaps == pytest.approx([0.1, 0.3], abs=1e-12)
    assert record.tpot == pytest.approx(0.2, abs=1e-12)
    assert record.latency == pytest.approx(0.9, abs=1e-12)
    assert record.ended == pytest.approx(1.1, abs=1e-12)
    assert (record.prompt_tokens, record.completion_tokens) == (7, 3)


def test_events_may_be_torn_and_joined():
    """Where the network cuts the stream changes nothing but when its pieces arrive."""
    whole = ROLE + token("a") + token("\u00e9") + usage(1, 2) + DONE
    for cut in range(1, len(whole)):
        record = send((0.5, whole[:cut]), (0.5, whole[cut:]))
        assert record.error is None
        assert len(record.arrivals) == 2
        assert set(record.arrivals) <= {0.5, 1.0}


def test_tokens_without_text_count_by_usage():
    """The server's count is believed where events and tokens differ."""
    record = send((0.5, token("two tokens")), (0.5, token()), (0, usage(4, 5)), (0, DONE))
    assert record.output_tokens == 5
    assert record.tpot == pytest.approx(0.125)


@pytest.mark.parametrize(
    ("parts", "status", "kind"),
    [
        ([(0.1, b'{"error": {}}')], 429, "HTTP 429"),
        ([(0.1, token()), (0.1, event({"error": {"message": "gone"}}))], 200, "error event"),
        ([(0.1, token())], 200, "stream cut off"),
        ([(0.1, ROLE), (0.1, DONE)], 200, "empty answer"),
        ([(0.1, b"data: {broken\n\n")], 200, "malformed event"),
        ([(0.1, b'data: {"choices": 3}\n\n')], 200, "malformed event"),
        ([(0.1, b"data: []\n\n")], 200, "malformed event"),
    ],
)
def test_failures_are_told_apart(parts, status, kind):
    """A failure is a record that says of what kind it is."""
    assert send(*parts, status=status).error == kind


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ((31.0, token()), "timeout"),
        ((0.1, ConnectionResetError("reset")), "connection lost"),
        ((0.1, None), "connection lost"),
    ],
)
def test_failures_of_the_network_are_told_apart(part, kind):
    """What the connection does wrong is a record too."""
    record = send((1.0, token()), part)
    assert record.error == kind
    assert record.arrivals == [1.0]


def test_nobody_listens():
    """A server that cannot be reached is a record too."""

    async def work() -> StreamRecord:
        async with HttpClient("http://test", timeout=30) as http:
            record = StreamRecord()
            await StreamClient(http, model="m", endpoint="chat", options={}).send(b"", record)
            return record

    assert run_virtually(work()).error == "connection refused"


def test_comments_are_no_tokens():
    """Keep-alive comments and named events carry nothing."""
    record = send((1.0, b": keep-alive\n\n"), (1.0, b"event: x\n" + token()), (0, DONE))
    assert record.arrivals == [2.0]


def test_completions_are_sent_the_text():
    """The other endpoint gets the prompt as a text, and its form of answer is understood."""
    server = VirtualServer(
        lambda _: Script([(0.5, event({"choices": [{"index": 0, "text": "a"}]})), (0, DONE)])
    )
    record = send(endpoint="completions", server=server)
    assert record.ttft == 0.5
    (body,) = server.bodies
    assert body["prompt"] == "hello"
    assert (body["max_tokens"], body["top_k"], body["stream"]) == (5, 1, True)
    assert body["stream_options"] == {"include_usage": True}
