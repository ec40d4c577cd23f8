"""api.dialects.message_writer: messages and their events, as the official client reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import anthropic
import pytest
from anthropic import Anthropic
from fakes import FakeEngine
from message_client import (
    ARGUMENTS,
    HI,
    PATH,
    RICH,
    TOOL,
    backwards,
    connected,
    create,
    plain,
    rich_engine,
)
from pydantic import TypeAdapter

EVENT = TypeAdapter(anthropic.types.RawMessageStreamEvent)


@pytest.fixture(scope="module")
def client() -> Iterator[Anthropic]:
    with connected(FakeEngine(backwards)) as client:
        yield client


def test_events_come_in_order_and_add_up_to_the_answer():
    """Every block opens, grows, closes; each event has its name and fits the client's type."""
    with connected(rich_engine()) as client:
        options = {"max_tokens": 400, "tools": [TOOL]}
        whole = create(client, **options)
        with client.messages.stream(model="fake", messages=HI, **options) as stream:
            streamed = stream.get_final_message()
        body = {"messages": HI, "stream": True} | options
        with plain(client) as http:
            raw = http.post(PATH, json=body).text
    events = []
    for part in raw.strip().split("\n\n"):
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        EVENT.validate_python(events[-1])
    steps = [(event["type"], event.get("index")) for event in events]
    assert [step for i, step in enumerate(steps) if i == 0 or steps[i - 1] != step] == [
        ("message_start", None),
        *(
            (f"content_block_{step}", index)
            for index in range(4)
            for step in ("start", "delta", "stop")
        ),
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert events[0]["message"]["content"] == []
    deltas = {event["delta"]["type"] for event in events if event["type"] == "content_block_delta"}
    assert deltas == {"thinking_delta", "text_delta", "input_json_delta"}
    for message in (whole, streamed):
        assert [block.type for block in message.content] == [
            "thinking", "text", "tool_use", "tool_use",
        ]  # fmt: skip
        assert message.content[0].thinking == "hm"
        assert message.content[1].text == "Let me see."
        assert [block.input for block in message.content[2:]] == [ARGUMENTS] * 2
        assert message.stop_reason == "tool_use"
    assert whole.usage == streamed.usage


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_sequence_is_named_and_cut_out(client, stream):
    """The reason is "stop_sequence" and says which."""
    answer = create(client, stop_sequences=["zz", "na"], stream=stream)
    if stream:
        delta = list(answer)[-2]
        assert delta.type == "message_delta"
        assert (delta.delta.stop_reason, delta.delta.stop_sequence) == ("stop_sequence", "na")
        return
    assert answer.content[0].text == ":t"
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "na")


@pytest.mark.parametrize("limit", [3, 14, 48, RICH.index(", 2]"), RICH.index("</tool_call>") + 1])
def test_an_answer_that_is_cut_off_says_max_tokens(limit):
    """Wherever the cut falls, both forms hold the same, but a whole answer no call that is cut."""
    with connected(rich_engine(RICH + " end")) as client:
        options = {"tools": [TOOL], "max_tokens": limit}
        whole = create(client, **options)
        with client.messages.stream(model="fake", messages=HI, **options) as stream:
            streamed = stream.get_final_message()
    assert whole.stop_reason == streamed.stop_reason == "max_tokens"
    ids = {"id": "", "signature": ""}
    shown = [
        {key: value for key, value in block.model_dump().items() if key != "parsed_output"} | ids
        for block in streamed.content
    ]
    if limit == RICH.index(", 2]"):
        assert shown.pop()["input"] == {"a": True, "b": [1]}
    assert [block.model_dump() | ids for block in whole.content] == shown


def test_a_stream_that_fails_raises():
    """The error event makes the client raise."""
    engine = FakeEngine("Hello, world")
    engine.fail_after = 3
    with connected(engine) as client:
        with pytest.raises(anthropic.APIStatusError, match="injected failure"):
            list(create(client, stream=True))
        engine.fail_after = 0
        with pytest.raises(anthropic.InternalServerError, match="injected failure"):
            create(client)


def test_a_long_silence_carries_pings():
    """Clients know a ping for what it is."""
    engine = FakeEngine("ab")
    engine.step_seconds = 0.3
    with connected(engine, keep_alive_interval=0.05) as client:
        body = {"messages": HI, "max_tokens": 9, "stream": True}
        with plain(client) as http:
            raw = http.post(PATH, json=body).text
        with client.messages.stream(model="fake", messages=HI, max_tokens=9) as stream:
            assert stream.get_final_text() == "ab"
    assert 'event: ping\ndata: {"type":"ping"}\n\n' in raw
