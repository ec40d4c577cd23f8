"""server.responses: chats in the words of /v1/responses, by the official client over a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import openai
import pytest
from fakes import FakeChatTemplate, FakeEngine
from openai import OpenAI
from openai.types.responses import response_stream_event
from pydantic import BaseModel, TypeAdapter
from serving import serving

from server.errors import InvalidRequestError
from server.response_schemas import ResponseBody
from server.responses import RESPONSES
from server.schemas import parse

TEMPLATE = "tools <tool_call> <think>"
PARAMETERS = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
TOOL = {"type": "function", "name": "f", "description": "d", "parameters": PARAMETERS}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": true}}\n</tool_call>'
RICH = f"<think>\nhm</think>\n\nLet me see.\n{CALL}\n{CALL}"
EVENT = TypeAdapter(response_stream_event.ResponseStreamEvent)


def backwards(request) -> str:
    """The prompt backwards, so that answers differ."""
    return bytes(reversed(request.token_ids)).decode()


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine(backwards)


@pytest.fixture(scope="module")
def client(engine) -> Iterator[OpenAI]:
    with connected(engine) as client:
        yield client


@pytest.fixture(scope="module")
def http(client) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=str(client.base_url)) as http:
        yield http


@contextmanager
def connected(engine: FakeEngine, **options: object) -> Iterator[OpenAI]:
    """A client of an engine."""
    with (
        serving(engine, **options) as url,
        OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        yield client


def rich_engine(reply: str = RICH) -> FakeEngine:
    return FakeEngine(reply, chat_template=FakeChatTemplate(TEMPLATE))


def chat_of(**body: object) -> dict:
    """The chat that a body asks for."""
    chat = RESPONSES.to_chat(parse(ResponseBody, {"input": "hi"} | body))
    return chat.model_dump(exclude_unset=True)


def test_a_response_is_the_answer_of_the_same_chat(client, engine):
    """The engine is asked the same and the text is the same, streamed or not."""
    options = {"model": "fake", "temperature": 0.5, "top_p": 0.9}
    seeds = {"seed": 7, "top_k": 3}
    system, user = {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}
    chat = client.chat.completions.create(
        messages=[system, user], max_tokens=9, extra_body=seeds, **options
    )
    options |= {"instructions": "be brief", "max_output_tokens": 9, "extra_body": seeds}
    whole = client.responses.create(input="hi", **options)
    with client.responses.stream(input=[user], **options) as stream:
        streamed = list(stream)[-1].response
    text = chat.choices[0].message.content
    assert text
    assert text == whole.output_text == streamed.output_text
    asked = [(request.token_ids, request.params) for request in engine.requests[-3:]]
    assert asked[0] == asked[1] == asked[2]
    assert whole.usage.input_tokens == chat.usage.prompt_tokens
    assert whole.usage.output_tokens == chat.usage.completion_tokens
    assert whole.usage.total_tokens == streamed.usage.total_tokens == chat.usage.total_tokens


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


class Answer(BaseModel):
    """What the model is to fill in."""

    city: str


def test_parse_sends_a_schema_that_constrains_the_answer():
    """The helper's schema reaches the grammar, and its result is the client's own type."""
    engine = FakeEngine('{"city": "Paris"}')
    with connected(engine) as client:
        answer = client.responses.parse(model="fake", input="where?", text_format=Answer)
    assert answer.output_parsed == Answer(city="Paris")
    assert engine.requests[0].grammar is not None


def test_history_replays_as_the_client_dumps_it():
    """Thoughts, texts, calls and results of one response are the input of the next."""
    engine = rich_engine()
    with connected(engine) as client:
        history = [{"role": "user", "content": "hi"}]
        first = client.responses.create(model="fake", input=history, tools=[TOOL])
        history += [item.model_dump() for item in first.output]
        history += [
            {"type": "function_call_output", "call_id": item.call_id, "output": "42"}
            for item in first.output
            if item.type == "function_call"
        ]
        raw = client.responses.with_raw_response.create(model="fake", input=history, tools=[TOOL])
        assert client.responses.input_tokens.count(input=history).input_tokens == len(
            engine.requests[-1].token_ids
        )
    prompt = bytes(engine.requests[-1].token_ids).decode()
    assert prompt == "user:hi;assistant:Let me see.;tool:42;tool:42;assistant:"
    assert "input[].summary" in raw.headers["x-ignored-fields"]


def test_items_become_turns():
    """Calls join the text before them; instructions join system messages that follow them."""
    text = {"type": "input_text", "text": "a"}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    function = {"name": "f", "arguments": "{}"}
    chat = chat_of(
        instructions="be",
        input=[
            {"role": "developer", "content": [text]},
            {"role": "user", "content": [text, {"type": "refusal", "refusal": "no"}]},
            {"type": "reasoning", "summary": [], "id": "r"},
            call,
            call | {"call_id": "d"},
            {"type": "function_call_output", "call_id": "c", "output": [text]},
            {"type": "message", "role": "assistant", "content": "done"},
        ],
    )
    part = {"type": "text", "text": "a"}
    assert chat["messages"] == [
        {"role": "system", "content": [{"type": "text", "text": "be"}, part]},
        {"role": "user", "content": [part, {"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": function},
            {"id": "d", "type": "function", "function": function},
        ]},
        {"role": "tool", "tool_call_id": "c", "content": [part]},
        {"role": "assistant", "content": "done"},
    ]  # fmt: skip


def test_fields_become_a_chats():
    """Flat tools, choices and formats take the shape of a chat's; what was not sent stays away."""
    assert chat_of() == {
        "messages": [{"role": "user", "content": "hi"}], "tools": [], "tool_choice": "auto",
    }  # fmt: skip
    schema = {"type": "json_schema", "name": "n", "schema": PARAMETERS, "strict": True}
    chat = chat_of(
        tools=[TOOL | {"strict": True}],
        tool_choice={"type": "function", "name": "f"},
        text={"format": schema},
        reasoning={"effort": "low"},
        max_output_tokens=5,
        parallel_tool_calls=False,
        chat_template_kwargs={"a": 1},
        stream=True,
    )
    function = {"name": "f", "description": "d", "parameters": PARAMETERS, "strict": True}
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert chat["response_format"]["json_schema"] == {
        "name": "n", "schema_": PARAMETERS, "strict": True,
    }  # fmt: skip
    assert chat["reasoning_effort"] == "low"
    assert chat["max_tokens"] == 5
    assert chat["parallel_tool_calls"] is False
    assert chat["chat_template_kwargs"] == {"a": 1}
    assert chat["stream"] is True


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"store": True}, "store", "unsupported_value"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_value"),
        ({"truncation": "auto"}, "truncation", "unsupported_value"),
        ({"include": ["message.output_text.logprobs"]}, "include", "unsupported_value"),
        ({"top_logprobs": 2}, "top_logprobs", "unsupported_value"),
        ({"max_tokens": 5}, "max_tokens", "unsupported_parameter"),
        ({"max_output_token": 5}, "max_output_token", "unknown_parameter"),
        ({"max_output_tokens": 0}, "max_output_tokens", None),
        ({"max_output_tokens": 100_000}, "input", "context_length_exceeded"),
        ({"input": "hi" * 500}, "input", "context_length_exceeded"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": ""}, "input", None),
        ({"input": []}, "input", None),
        ({"input": [{"type": "reasoning"}]}, "input", None),
        ({"input": 5}, "input", None),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", None),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "unsupported_value"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content[0].type", "unsupported_value"),
        ({"input": "refuse"}, "input", None),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", None),
        ({"tools": [TOOL, TOOL]}, "tools", None),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", None),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", None),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 5}}}},
         "text.format", None),
        ({"temperature": 5}, "temperature", None),
        ({"model": "other"}, "model", "model_not_found"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_the_clients_own_names(http, body, param, code):
    """No error speaks of a field that was not sent, streamed or not."""
    for stream in (False, True):
        answer = http.post("responses", json={"input": "hi", "stream": stream} | body)
        error = answer.json()["error"]
        assert answer.status_code == (404 if code == "model_not_found" else 400)
        assert error["param"] == param
        assert code is None or error["code"] == code
        assert "'messages" not in error["message"]
        assert "'response_format" not in error["message"]


def test_what_asks_for_nothing_is_accepted_and_reported(client):
    """What the default client of the AI SDK and Codex send passes, and the header names it."""
    raw = client.responses.with_raw_response.create(
        model="fake", input="hi", store=False, include=["reasoning.encrypted_content"], user="me",
        prompt_cache_key="k", reasoning={"effort": "low", "summary": "auto"}, background=False,
        truncation="disabled", tools=[TOOL | {"strict": True}], text={"verbosity": "low"},
        stream_options={"include_obfuscation": False}, service_tier="auto",
    )  # fmt: skip
    ignored = set(raw.headers["x-ignored-fields"].split(", "))
    assert ignored == {
        "include", "user", "prompt_cache_key", "service_tier", "reasoning.summary",
        "reasoning.effort", "text.verbosity", "tools[].strict", "stream_options",
    }  # fmt: skip
    assert raw.parse().output_text


def test_input_tokens_are_those_of_the_prompt(client, http, engine):
    """All three endpoints count what a generation would, even of what is too long for one."""
    answer = client.responses.create(model="fake", input="hi", instructions="x")
    count = client.responses.input_tokens.count(model="fake", input="hi", instructions="x")
    assert count.input_tokens == answer.usage.input_tokens == len(engine.requests[-1].token_ids)
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "hi" * 500}]
    body = http.post("chat/completions/input_tokens", json={"messages": messages}).json()
    assert body["input_tokens"] == count.input_tokens + 998
    assert body["object"] == "response.input_tokens"


def test_a_chat_cannot_say_nothing():
    """An input of nothing but thoughts is refused in the client's words."""
    with pytest.raises(InvalidRequestError, match="'input' must not be empty"):
        RESPONSES.speak(lambda: chat_of(input=[{"type": "reasoning"}]))
