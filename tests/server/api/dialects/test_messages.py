"""server.api.dialects.messages: chats in the words of /v1/messages, by the official client."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import httpx
import pytest
from anthropic import Anthropic
from fakes import FakeEngine
from message_client import (
    HI,
    PARAMETERS,
    PATH,
    TOOL,
    backwards,
    connected,
    create,
    plain,
    rich_engine,
)
from openai import OpenAI
from pydantic import BaseModel
from serving import serving, wait_until

from server.api.dialects.messages import MESSAGES
from server.api.schemas.message_schemas import MessageBody
from server.api.schemas.requests import parse


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine(backwards)


@pytest.fixture(scope="module")
def client(engine) -> Iterator[Anthropic]:
    with connected(engine) as client:
        yield client


@pytest.fixture(scope="module")
def http(client) -> Iterator[httpx.Client]:
    with plain(client) as http:
        yield http


def chat_of(*turns: object, **body: object) -> dict:
    """The chat that a body asks for."""
    body = {"max_tokens": 5, "messages": list(turns) or HI} | body
    chat = MESSAGES.to_chat(parse(MessageBody, body))
    return chat.model_dump(exclude_unset=True)


def test_a_message_is_the_answer_of_the_same_chat(client, engine):
    """The engine is asked the same and the text is the same, streamed or not."""
    options = {"model": "fake", "max_tokens": 9}
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 7}
    with OpenAI(base_url=f"{client.base_url}/v1", api_key="any") as other:
        chat = other.chat.completions.create(
            messages=[{"role": "system", "content": "be brief"}, *HI],
            stop=["x"],
            extra_body=sampling,
            **options,
        )
    options |= {"messages": HI, "system": "be brief", "stop_sequences": ["x"]}
    whole = client.messages.create(extra_body=sampling, **options)
    with client.messages.stream(extra_body=sampling, **options) as stream:
        streamed = stream.get_final_message()
    text = chat.choices[0].message.content
    assert text
    assert text == whole.content[0].text == streamed.content[0].text
    asked = [(request.token_ids, request.params) for request in engine.requests[-3:]]
    assert asked[0] == asked[1] == asked[2]
    assert whole.usage == streamed.usage
    assert whole.usage.input_tokens == chat.usage.prompt_tokens
    assert whole.usage.output_tokens == chat.usage.completion_tokens == 9
    assert (whole.stop_reason, whole.stop_sequence) == ("max_tokens", None)


def test_a_client_that_leaves_ends_its_request():
    """The engine's request is aborted within a step."""
    engine = FakeEngine("x" * 200)
    engine.step_seconds = 0.01
    with connected(engine) as client:
        with client.messages.stream(model="fake", messages=HI, max_tokens=200) as stream:
            next(iter(stream))
        assert wait_until(lambda: not engine.open)
        assert engine.aborted


class Answer(BaseModel):
    """What the model is to fill in."""

    city: str


def test_parse_sends_a_schema_that_constrains_the_answer():
    """The helper's schema reaches the grammar, and its result is the client's own type."""
    engine = FakeEngine('{"city": "Paris"}')
    with connected(engine) as client:
        answer = client.messages.parse(
            model="fake", max_tokens=90, messages=HI, output_format=Answer
        )
    assert answer.parsed_output == Answer(city="Paris")
    assert engine.requests[0].grammar is not None


def test_history_replays_as_the_client_has_it():
    """Thoughts, texts and calls of one message go into the next with the results."""
    engine = rich_engine()
    with connected(engine) as client:
        first = create(client, tools=[TOOL], max_tokens=400)
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "42", "is_error": False}
            for block in first.content
            if block.type == "tool_use"
        ]
        more = {"type": "text", "text": "and?"}
        history = [
            *HI,
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [*results, more]},
        ]
        count = client.messages.count_tokens(model="fake", messages=history, tools=[TOOL])
        raw = client.messages.with_raw_response.create(
            model="fake", messages=history, tools=[TOOL], max_tokens=9
        )
    prompt = bytes(engine.requests[-1].token_ids).decode()
    assert prompt == "user:hi;assistant:Let me see.;tool:42;tool:42;user:and?;assistant:"
    assert count.input_tokens == len(prompt)
    ignored = raw.headers["x-ignored-fields"]
    assert "messages[].content[].thinking" in ignored
    assert "messages[].content[].is_error" in ignored


def test_blocks_become_turns():
    """Neighbours of a role are one turn; each result of a call is a message of its own."""
    text = {"type": "text", "text": "a"}
    use = {"type": "tool_use", "id": "u", "name": "f", "input": {"é": 1}}
    chat = chat_of(
        {"role": "user", "content": [text, {**text, "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "h"}, text, use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u"}]},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
        {"role": "user", "content": "c"},
        system=[text],
    )
    function = {"name": "f", "arguments": '{"é": 1}'}
    assert chat["messages"] == [
        {"role": "system", "content": [text]},
        {"role": "user", "content": [text, text, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [text], "reasoning_content": "h", "tool_calls": [
            {"id": "u", "type": "function", "function": function},
        ]},
        {"role": "tool", "tool_call_id": "u", "content": [{"type": "text", "text": ""}]},
        {"role": "assistant", "content": []},
        {"role": "user", "content": [{"type": "text", "text": "c"}]},
    ]  # fmt: skip
    assert "continue_final_message" not in chat


def test_an_answer_that_was_begun_is_continued(client, engine):
    """The prompt ends with the assistant's last turn, left open."""
    create(client, messages=[*HI, {"role": "assistant", "content": "The answer"}])
    assert bytes(engine.requests[-1].token_ids).decode() == "user:hi;assistant:The answer"


@pytest.mark.parametrize(
    ("choice", "mode", "parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}, True),
    ],
)
def test_tool_choices_become_a_chats(choice, mode, parallel):
    """Each of the four, with or without parallel calls."""
    chat = chat_of(tools=[TOOL | {"type": "custom", "strict": True}], tool_choice=choice)
    assert chat["tool_choice"] == mode
    assert chat["parallel_tool_calls"] is parallel
    function = {"name": "f", "description": "d", "parameters": PARAMETERS, "strict": True}
    assert chat["tools"] == [{"type": "function", "function": function}]


@pytest.mark.parametrize(
    ("kind", "thinks"), [("enabled", True), ("adaptive", True), ("disabled", False)]
)
def test_thinking_reaches_a_template_that_reads_it(http, engine, kind, thinks):
    """The budget is reported as ignored, as no model here keeps to one."""
    thinking = {"type": kind, "budget_tokens": 1024}
    body = {"messages": HI, "max_tokens": 5, "thinking": thinking}
    answer = http.post(f"{PATH}?beta=true", json=body)
    assert engine.chat_template.kwargs == {"enable_thinking": thinks}
    assert answer.headers["x-ignored-fields"] == "thinking.budget_tokens"


def test_thinking_is_reported_where_the_template_knows_none(http, engine, monkeypatch):
    """A choice that changes nothing is said to change nothing."""
    monkeypatch.setattr(engine.chat_template, "mentions", lambda _name: False)
    body = {"messages": HI, "max_tokens": 5, "thinking": {"type": "adaptive"}}
    body["output_config"] = {"effort": "low"}
    answer = http.post(PATH, json=body)
    assert answer.headers["x-ignored-fields"] == "thinking, output_config.effort"


def test_what_claude_code_sends_is_accepted_and_reported(client):
    """Hints and labels change nothing, wherever they stand."""
    mark = {"cache_control": {"type": "ephemeral"}}
    raw = client.beta.messages.with_raw_response.create(
        model="fake",
        max_tokens=20,
        betas=["claude-code-20250219"],
        system=[{"type": "text", "text": "x", **mark}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi", **mark}]}],
        tools=[TOOL | mark],
        metadata={"user_id": "me"},
        thinking={"type": "disabled"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        extra_headers={"anthropic-version": "2023-06-01"},
    )
    assert set(raw.headers["x-ignored-fields"].split(", ")) == {
        "metadata", "context_management", "system[].cache_control",
        "messages[].content[].cache_control", "tools[].cache_control",
    }  # fmt: skip
    assert raw.parse().content


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"max_tokens": None}, "Missing required parameter: 'max_tokens'"),
        ({"max_tokens": 0}, "'max_tokens' must be at least 1"),
        ({"messages": []}, "'messages' must not be empty"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "'messages[0].role' must be"),
        ({"messages": [{"role": "user"}]}, "'messages[0].content'"),
        ({"messages": [{"role": "user", "content": "refuse"}]}, "refuses the messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
         "'messages[0].content[0].type' does not support \"image\""),
        ({"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "u", "content": [{"type": "image"}]}]}]},
         "'messages[0].content[0].content[0].type' does not support"),
        ({"messages": [*HI, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "u", "name": "f", "input": {}}]}]}, "tool_result"),
        ({"stop_sequences": [""]}, "'stop_sequences[0]' must not be empty"),
        ({"tools": [{"type": "bash_20250124", "name": "b"}],
          "tool_choice": {"type": "tool", "name": "b"}}, "'tool_choice' does not support a tool"),
        ({"tools": [TOOL, TOOL]}, "'tools' must have different names"),
        ({"tool_choice": {"type": "tool"}}, "'tool_choice.name'"),
        ({"tool_choice": {"type": "any"}}, "'tool_choice' requires a call"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": 5}}}},
         "'output_config.format' cannot be used"),
        ({"container": "x"}, "'container' is not supported"),
        ({"mcp_servers": [{}]}, "'mcp_servers' does not support"),
        ({"stop": ["x"]}, "Use 'stop_sequences' instead"),
        ({"temprature": 1}, "Did you mean 'temperature'?"),
        ({"messages": [{"role": "user", "content": "hi" * 300}]},
         "prompt is too long: 616 tokens > 511 maximum"),
        ({"messages": [{"role": "user", "content": "x" * 496}]},
         "prompt is too long: 512 tokens > 511 maximum"),
        ({"messages": [{"role": "user", "content": "x" * 495}]},
         "input length and `max_tokens` exceed context limit: 511 + 9 > 512"),
        ({"max_tokens": 500},
         "input length and `max_tokens` exceed context limit: 18 + 500 > 512"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_in_the_clients_shape(http, body, text):
    """Status and sentence are those of a chat, the shape is the one its clients read."""
    body = {"messages": HI, "max_tokens": 9} | body
    for stream in (False, True):
        answer = http.post(PATH, json=body | {"stream": stream})
        assert answer.status_code == 400
        found = answer.json()
        assert found.keys() == {"type", "error", "request_id"}
        assert found["type"] == "error"
        assert found["error"]["type"] == "invalid_request_error"
        assert text in found["error"]["message"]
        assert found["request_id"] == answer.headers["request-id"]


def test_a_text_that_cannot_fit_is_too_long_before_it_is_tokenised(http):
    """The sentence has a number that is certain, and says that it is the least."""
    body = {"messages": [{"role": "user", "content": "hi" * 100_000}], "max_tokens": 9}
    error = http.post(PATH, json=body).json()["error"]
    assert error["message"].startswith("prompt is too long: 10000 tokens > 511 maximum (at least")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", "/v1/messages", {"model": "other"}, 404, "not_found_error"),
        ("POST", "/v1/messages/nothing", {}, 404, "not_found_error"),
        ("GET", "/v1/messages", {}, 405, "invalid_request_error"),
        ("POST", "/v1/messages/count_tokens", {"messages": 5}, 400, "invalid_request_error"),
    ],
)
def test_whatever_fails_under_the_path_has_the_clients_shape(
    http, method, path, body, status, kind
):
    """The router's refusals too."""
    body = {"messages": HI, "max_tokens": 9} | body
    answer = http.request(method, path, json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == kind


def test_gates_speak_the_clients_shape():
    """A missing key, a full queue and a large body raise the client's own exceptions."""
    engine = FakeEngine("x" * 100)
    engine.step_seconds = 0.01
    with (
        serving(engine, api_key="secret", max_num_seqs=1, max_queue=0, max_body_bytes=500) as url,
        Anthropic(base_url=url, api_key="wrong", max_retries=0) as stranger,
        Anthropic(base_url=url, api_key="secret", max_retries=0) as client,
    ):
        with pytest.raises(anthropic.AuthenticationError) as refused:
            create(stranger)
        assert refused.value.type == "authentication_error"
        with client.messages.stream(model="fake", messages=HI, max_tokens=100) as stream:
            next(iter(stream))
            with pytest.raises(anthropic.RateLimitError) as full:
                create(client)
        assert int(full.value.response.headers["retry-after"]) >= 1
        with pytest.raises(anthropic.RequestTooLargeError):
            create(client, system="x" * 600)


def test_count_tokens_counts_what_a_message_would(client, engine):
    """Be it too long for one or not; tools count as well."""
    create(client, system="s", tools=[TOOL])
    count = client.messages.count_tokens(model="fake", messages=HI, system="s", tools=[TOOL])
    assert count.input_tokens == len(engine.requests[-1].token_ids)
    long = [{"role": "user", "content": "hi" * 500}]
    assert client.messages.count_tokens(model="fake", messages=long).input_tokens == 1016


def test_cached_tokens_are_counted_apart(client, engine, monkeypatch):
    """The prompt is what was computed and what was found in the cache together."""
    generate = engine.generate

    async def with_hits(requests):
        async for output in generate(requests):
            yield output._replace(num_cached_tokens=16)

    monkeypatch.setattr(engine, "generate", with_hits)
    usage = create(client).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (2, 16)
    assert usage.cache_creation_input_tokens == 0
