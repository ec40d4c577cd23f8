"""Structured output and tools over a socket: SmolLM2 and the official client (H44, H45, H46)."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel
from serving import serving

from server.config import EngineConfig
from server.engine.async_engine import AsyncEngine
from server.engine.loaded_engine import build_engine

pytestmark = [pytest.mark.smollm2, pytest.mark.slow]

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "string"}}},
    "required": ["a", "b"],
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PAIR = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "utc": {"type": "boolean"}},
    "required": ["city", "utc"],
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
TIME = {"type": "function", "function": {"name": "get_time", "strict": True, "parameters": PAIR}}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def url(smollm2_gguf):
    config = EngineConfig(model=str(smollm2_gguf), served_model_name="m", threads=2)
    with serving(AsyncEngine(lambda: build_engine(config))) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def client(url):
    with OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


def chat(client, **options):
    options = {"messages": QUESTION, "temperature": 0, "max_tokens": 120} | options
    return client.chat.completions.create(model="m", **options)


def outside_strings(text: str) -> str:
    """The text without what its strings hold, the last of which may not have ended."""
    return re.sub(r'"(\\.|[^"\\])*("|\\?$)', '""', text)


def test_hot_answers_fit_the_schema_and_end(client):
    """H44: each of twenty that stops parses, validates, ends at its brace, and wastes nothing."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}

    def ask(seed):
        return chat(
            client, response_format=form, temperature=1.5, seed=seed, max_tokens=300
        ).choices[0]

    with ThreadPoolExecutor(20) as pool:
        choices = list(pool.map(ask, range(20)))
    stopped = [choice.message.content for choice in choices if choice.finish_reason == "stop"]
    assert len(stopped) >= 5
    for text in stopped:
        jsonschema.validate(json.loads(text), SCHEMA)
        assert text.endswith("}")
    for choice in choices:
        assert not re.search(r"\s{3}", outside_strings(choice.message.content))


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        for schema in (
            {"properties": {"a": "bar"}}, {"type": "objekt"}, {"pattern": "foo**"}, 5, True,
            {"type": "object", "properties": {"a": {"not": {}}}}, {"minimum": "x"},
            {"type": "integer", "minimum": 2, "maximum": 1},
            {"enum": [str(i) for i in range(99999)]},
        )
    ]
    + [{"type": "json_schema", "json_schema": {"name": "x"}}, {"type": "json_schema"},
       {"type": "xml"}, {}, "json_object"],
    ids=lambda form: json.dumps(form)[:90],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_bad_schemas_are_refused_by_name(client, form, stream):
    """H45: 400 before any event, naming the field; and the server lives."""
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, response_format=form, stream=stream)
    assert error.value.param == "response_format"
    assert chat(client, max_tokens=1).choices


@pytest.mark.parametrize(
    "outputs",
    [{"regex": "foo**"}, {"regex": "(a"}, {"regex": "(a?)" * 10_000}, {"grammar": "start: ("},
     {"grammar": "root ::= ("}, {"choice": []}, {"json": {"type": "objekt"}}, {}, {"x": 1},
     {"regex": "a", "choice": ["b"]}, {"choice": "yes"}],
    ids=lambda outputs: json.dumps(outputs)[:60],
)  # fmt: skip
def test_bad_constraints_are_refused_by_name(client, outputs):
    """Invalid, empty, doubled, unknown or too large: 400 naming the field."""
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, extra_body={"structured_outputs": outputs})
    assert error.value.param == "structured_outputs"


def test_constraints_hold_for_completions_too(client):
    """An expression is matched whole, a choice is one of the given, a grammar is kept to."""

    def ask(outputs, seed):
        return client.completions.create(
            model="m", prompt="It is", seed=seed, temperature=1.5, max_tokens=40,
            extra_body={"structured_outputs": outputs},
        ).choices[0].text  # fmt: skip

    for seed in range(4):
        assert re.fullmatch(r"\d{3}/[a-c]{2}", ask({"regex": r"\d{3}/[a-c]{2}"}, seed))
        assert ask({"choice": ["yes", 'n"o\n', "/"]}, seed) in ("yes", 'n"o\n', "/")
        assert ask({"grammar": 'root ::= "x" ("y" | "z")'}, seed) in ("xy", "xz")
        assert ask({"grammar": 'start: "x" Y\nY: "y" | "z"'}, seed) in ("xy", "xz")
        assert isinstance(json.loads(ask({"json": {"type": "boolean"}}, seed)), bool)


def test_a_cut_answer_says_length(client):
    """A document that max_tokens cuts off does not claim to be complete."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    choice = chat(client, response_format=form, max_tokens=3).choices[0]
    assert choice.finish_reason == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(choice.message.content)


def test_log_probabilities_of_constrained_answers_are_finite(client):
    """H11: strict JSON, every number finite and at most 0."""
    choice = chat(
        client,
        response_format={"type": "json_object"},
        logprobs=True,
        top_logprobs=5,
        max_tokens=20,
    ).choices[0]
    for token in choice.logprobs.content:
        assert all(-10_000 < one.logprob <= 0 for one in (token, *token.top_logprobs))


def test_parse_fills_a_pydantic_model(client):
    """The client's own structured output works from end to end."""

    class Answer(BaseModel):
        found: bool
        size: int | None

    answer = client.chat.completions.parse(
        model="m", messages=QUESTION, response_format=Answer, temperature=0, max_tokens=60
    )
    assert isinstance(answer.choices[0].message.parsed, Answer)


NAMED = {"type": "function", "function": {"name": "get_time"}}


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("tools", [[TIME], [WEATHER, TIME]], ids=["one", "two"])
@pytest.mark.parametrize("parallel", [False, True])
def test_required_calls(client, tools, choice, parallel):
    """H46: the call is there, fits, and the stream joins to the same."""
    options = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}
    whole = chat(client, **options).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    schemas = {"get_weather": CITY, "get_time": PAIR}
    calls = [(call.function.name, call.function.arguments) for call in whole.message.tool_calls]
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), schemas[name])
    assert parallel or len(calls) == 1
    assert choice == "required" or calls[0][0] == "get_time"
    assert streamed(chat(client, stream=True, **options)) == ("tool_calls", calls)


def streamed(chunks):
    """Finish reason and calls of a stream, its rules checked on the way."""
    reason, calls = None, []
    for chunk in chunks:
        choice = chunk.choices[0]
        assert not choice.delta.content
        reason = choice.finish_reason or reason
        for delta in choice.delta.tool_calls or ():
            if delta.index == len(calls):
                assert delta.id
                assert delta.type == "function"
                assert delta.function.arguments == ""
                calls.append((delta.function.name, ""))
            else:
                assert delta.id is None
                assert delta.function.name is None
            name, arguments = calls[delta.index]
            calls[delta.index] = (name, arguments + delta.function.arguments)
    return reason, calls


def test_no_choice_gives_no_call(client):
    """H46: with tool_choice none the answer is text."""
    choice = chat(client, tools=[TIME], tool_choice="none", max_tokens=20).choices[0]
    assert choice.message.tool_calls is None
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")


def test_the_stream_helper_and_a_tool_loop(client):
    """The helper assembles the call, and its answer goes back with the tool's result."""
    with client.chat.completions.stream(
        model="m", messages=QUESTION, tools=[TIME], tool_choice="required", temperature=0
    ) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.done" in kinds
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12:00"}
    answer = chat(client, messages=[*QUESTION, message, result], tools=[TIME], max_tokens=8)
    assert answer.choices[0].message.content


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "x"}}},
         "tool_choice"),
        ({"tools": [TIME], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"tools": [TIME, TIME]}, "tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}],
          "tool_choice": "required"}, "tools"),
        ({"extra_body": {"guided_json": {}}}, "guided_json"),
    ],
)  # fmt: skip
def test_bad_tools_are_refused_by_name(client, options, param):
    """What cannot be called, or fits no schema, is said before the model runs."""
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, **options)
    assert error.value.param == param
