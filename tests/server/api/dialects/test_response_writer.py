"""server.api.dialects.response_writer: responses and events, as the official client reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest
from fakes import FakeEngine
from openai import OpenAI
from openai.types.responses import response_stream_event
from pydantic import TypeAdapter
from response_client import RICH, TOOL, backwards, connected, rich_engine

EVENT = TypeAdapter(response_stream_event.ResponseStreamEvent)


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with connected(FakeEngine(backwards)) as client:
        yield client


def test_the_answer_repeats_what_was_asked(client):
    """What clients look up in a response is there, and it says that nothing was stored."""
    answer = client.responses.create(
        model="fake", input="hi", instructions="x", metadata={"a": "b"}, tools=[TOOL], store=False,
        max_output_tokens=30, temperature=0.25, top_p=0.5,
    )  # fmt: skip
    assert answer.object == "response"
    assert answer.status == "incomplete"
    assert (answer.instructions, answer.metadata) == ("x", {"a": "b"})
    assert (answer.temperature, answer.top_p, answer.max_output_tokens) == (0.25, 0.5, 30)
    assert answer.tools[0].name == "f"
    assert answer.tool_choice == "auto"
    assert answer.text.format.type == "text"
    assert answer.model_extra["store"] is False
    assert answer.error is answer.previous_response_id is None


def test_events_come_in_order_and_add_up_to_the_answer():
    """Numbered without a gap; every item opens, grows, closes; the client's types fit."""
    with connected(rich_engine()) as client:
        options = {"model": "fake", "input": "hi", "tools": [TOOL], "max_output_tokens": 400}
        events = list(client.responses.create(stream=True, **options))
        whole = client.responses.create(**options)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    for event in events:
        EVENT.validate_python(event.model_dump(by_alias=True, exclude_unset=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind] == [
        "created", "in_progress",
        *("output_item.added", "content_part.added", "reasoning_text.delta",
          "reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done",
          "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
          "output_item.done") * 2,
        "completed",
    ]  # fmt: skip
    assert events[0].response.output == []
    final = events[-1].response
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.model_dump() for item in done] == [item.model_dump() for item in final.output]
    for index, item in enumerate(final.output):
        deltas = [e.delta for e in events if "delta" in e.type and e.output_index == index]
        text = item.arguments if item.type == "function_call" else item.content[0].text
        assert "".join(deltas) == text
        assert {e.item_id for e in events if getattr(e, "item_id", 0) and e.output_index == index}
    for one, other in zip(final.output, whole.output, strict=True):
        assert one.type == other.type
        assert one.status == other.status == "completed"
    assert [item.type for item in whole.output] == [
        "reasoning", "message", "function_call", "function_call",
    ]  # fmt: skip
    assert whole.output[0].content[0].text == "hm"
    assert whole.output_text == final.output_text == "Let me see."
    assert [item.arguments for item in whole.output[2:]] == ['{"a": true}'] * 2
    assert whole.usage.output_tokens_details.reasoning_tokens == len("<think>\nhm</think>\n\n")
    assert final.usage == whole.usage


def test_a_stream_has_no_done_mark(client):
    """Its last event says that it is the last; every event has its name."""
    raw = client.responses.with_raw_response.create(model="fake", input="hi", stream=True)
    parts = raw.http_response.read().decode().strip().split("\n\n")
    for part in parts:
        name, data = part.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
    assert parts[-1].startswith("event: response.completed")


@pytest.mark.parametrize("limit", [3, 14, 48, RICH.index("true"), 80])
def test_an_answer_that_is_cut_off_is_incomplete(limit):
    """Wherever the cut falls, streamed or not, neither response nor item claims to be complete."""
    with connected(rich_engine(RICH + " end")) as client:
        options = {"model": "fake", "input": "x", "tools": [TOOL], "max_output_tokens": limit}
        whole = client.responses.create(**options)
        with client.responses.stream(**options) as stream:
            last = list(stream)[-1]
    assert last.type == "response.incomplete"
    for answer in (whole, last.response):
        assert answer.status == "incomplete"
        assert answer.incomplete_details.reason == "max_output_tokens"
        for item in answer.output:
            if item.type == "function_call" and item.status == "completed":
                assert json.loads(item.arguments) == {"a": True}
    assert [item.status for item in whole.output] == [item.status for item in last.response.output]
    last_item = whole.output[-1]
    if limit == RICH.index("true"):
        assert (last_item.arguments, last_item.status) == ('{"a":', "incomplete")


def test_a_stream_that_fails_raises():
    """The failed response comes first, then the error by which the client knows."""
    engine = FakeEngine("Hello, world")
    engine.fail_after = 3
    with connected(engine) as client:
        seen = []
        stream = client.responses.create(model="fake", input="hi", stream=True)
        with pytest.raises(openai.APIError, match="injected failure"):
            seen += stream
        raw = client.responses.with_raw_response.create(model="fake", input="hi", stream=True)
        last = raw.http_response.read().decode().strip().split("\n\n")[-1]
    assert seen[-1].type == "response.failed"
    assert seen[-1].response.status == "failed"
    assert seen[-1].response.error.message == "injected failure"
    event = json.loads(last.split("data: ")[1])
    assert event["type"] == "error"
    assert event["message"] == event["error"]["message"] == "injected failure"
