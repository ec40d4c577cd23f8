"""server.api.handlers.other_forms: the same chat in three forms, over a socket, on real models."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import jsonschema
import pytest
from anthropic import Anthropic
from engines import load_engine
from fakes import FakeEngine
from openai import OpenAI
from pydantic import BaseModel
from serving import serving

from server.engine.async_engine import AsyncEngine

QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.fixture(scope="module")
def clients(smollm2_gguf) -> Iterator[tuple[OpenAI, Anthropic]]:
    options = {"kv_cache_memory": 512 * 2**20, "served_model_name": "m", "threads": 2}
    loaded = load_engine(smollm2_gguf, **options)
    with (
        serving(AsyncEngine(lambda: loaded)) as url,
        OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as openai,
        Anthropic(base_url=url, api_key="any", max_retries=0) as anthropic,
    ):
        yield openai, anthropic


class City(BaseModel):
    """What the model is to fill in."""

    city: str


@pytest.mark.smollm2
@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0, 1])
def test_three_forms_of_a_chat_have_one_answer(clients, temperature):
    """The text is the same whichever form asks for it, streamed or not."""
    openai, anthropic = clients
    sampling = {"temperature": temperature, "seed": 5}
    options = {"model": "m", "extra_body": sampling}
    chat = openai.chat.completions.create(messages=QUESTION, max_tokens=40, **options)
    response = openai.responses.create(input=QUESTION, max_output_tokens=40, **options)
    message = anthropic.messages.create(messages=QUESTION, max_tokens=40, **options)
    with openai.responses.stream(input=QUESTION, max_output_tokens=40, **options) as stream:
        streamed_response = list(stream)[-1].response
    with anthropic.messages.stream(messages=QUESTION, max_tokens=40, **options) as stream:
        streamed_message = stream.get_final_message()
    text = chat.choices[0].message.content
    assert text
    assert response.output_text == streamed_response.output_text == text
    assert message.content[0].text == streamed_message.content[0].text == text
    prompt = chat.usage.prompt_tokens
    assert response.usage.input_tokens == prompt
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == prompt
    assert message.usage.cache_read_input_tokens > 0
    assert response.usage.input_tokens_details.cached_tokens > 0
    assert anthropic.messages.count_tokens(model="m", messages=QUESTION).input_tokens == prompt
    assert openai.responses.input_tokens.count(model="m", input=QUESTION).input_tokens == prompt


@pytest.mark.smollm2
@pytest.mark.slow
def test_a_required_call_fits_its_schema_in_every_form(clients):
    """The calls are the same, streamed or not, and the conversation goes on with their results."""
    openai, anthropic = clients
    greedy = {"model": "m", "extra_body": {"temperature": 0}}
    chat = openai.chat.completions.create(
        messages=QUESTION, max_tokens=60, tool_choice="required", parallel_tool_calls=False,
        tools=[{"type": "function", "function": {"name": "weather", "parameters": CITY}}], **greedy,
    )  # fmt: skip
    expected = chat.choices[0].message.tool_calls[0].function.arguments
    jsonschema.validate(json.loads(expected), CITY)
    options = {
        "input": QUESTION, "max_output_tokens": 60, "tool_choice": "required", **greedy,
        "tools": [{"type": "function", "name": "weather", "parameters": CITY}],
        "parallel_tool_calls": False,
    }  # fmt: skip
    with openai.responses.stream(**options) as stream:
        response = stream.get_final_response()
    for found in (openai.responses.create(**options).output[0], response.output[0]):
        assert (found.name, found.arguments) == ("weather", expected)
    options = {
        "messages": QUESTION, "max_tokens": 60, **greedy,
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "tools": [{"name": "weather", "input_schema": CITY}],
    }  # fmt: skip
    with anthropic.messages.stream(**options) as stream:
        streamed = stream.get_final_message()
    for message in (anthropic.messages.create(**options), streamed):
        assert message.stop_reason == "tool_use"
        assert message.content[0].input == json.loads(expected)
    result = {"type": "tool_result", "tool_use_id": streamed.content[0].id, "content": "sunny"}
    history = [
        *QUESTION,
        {"role": "assistant", "content": streamed.content},
        {"role": "user", "content": [result]},
    ]
    assert anthropic.messages.create(messages=history, max_tokens=20, **greedy).content
    call = response.output[0]
    history = [
        *QUESTION,
        call.model_dump(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    assert openai.responses.create(input=history, max_output_tokens=20, **greedy).output_text


@pytest.mark.smollm2
@pytest.mark.slow
def test_a_parsed_answer_is_of_the_clients_type(clients):
    """Both helpers get what they asked for from a model that was not trained for it."""
    openai, anthropic = clients
    response = openai.responses.parse(
        model="m", input=QUESTION, text_format=City, temperature=0, max_output_tokens=100
    )
    message = anthropic.messages.parse(
        model="m", messages=QUESTION, output_format=City, max_tokens=100,
        extra_body={"temperature": 0},
    )  # fmt: skip
    assert isinstance(response.output_parsed, City)
    assert message.parsed_output == response.output_parsed


def test_every_form_is_described():
    """Bodies, answers, events and errors are in the description, and all that it names."""
    with serving(FakeEngine()) as url:
        document = httpx.get(f"{url}/openapi.json").json()
    described = document["components"]["schemas"]
    for path, body, answer, chunk, error in (
        ("/v1/responses", "ResponseBody", "ResponseObject", "ResponseEvent", "ErrorAnswer"),
        ("/v1/responses/input_tokens", "ResponseBody", "InputTokens", None, "ErrorAnswer"),
        ("/v1/chat/completions/input_tokens", "ChatBody", "InputTokens", None, "ErrorAnswer"),
        ("/v1/messages", "MessageBody", "MessageObject", "MessageEvent", "MessageError"),
        ("/v1/messages/count_tokens", "MessageCountBody", "MessageTokens", None, "MessageError"),
    ):
        route = document["paths"][path]["post"]
        assert described_as(route["requestBody"]["content"]["application/json"]) == body
        good = route["responses"]["200"]["content"]
        assert described_as(good["application/json"]) == answer
        if chunk is not None:
            data = good["text/event-stream"]["schema"]["properties"]["data"]
            assert described_as({"schema": data["contentSchema"]}) == chunk
        assert described_as(route["responses"]["400"]["content"]["application/json"]) == error
    for part in json.dumps(document).split('"#/components/schemas/')[1:]:
        assert part.partition('"')[0] in described


def described_as(content: dict) -> str:
    """The name of the type that a description refers to."""
    return content["schema"]["$ref"].rpartition("/")[2]
