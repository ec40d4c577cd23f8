"""server.api.dialects.responses: chats in the words of /v1/responses, by the official client."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from fakes import FakeEngine
from openai import OpenAI
from pydantic import BaseModel
from response_client import (
    PARAMETERS,
    TOOL,
    backwards,
    connected,
    rich_engine,
)

from server.api.dialects.responses import RESPONSES
from server.api.schemas.requests import parse
from server.api.schemas.response_schemas import ResponseBody
from server.errors import InvalidRequestError


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
    assert raw.headers["x-ignored-fields"].endswith("input[].content")


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
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "id": "r"},
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
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [
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
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
         "tool_choice", "unsupported_value"),
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
