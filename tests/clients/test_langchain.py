"""langchain-openai against the server."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel

langchain_openai = pytest.importorskip("langchain_openai")

pytestmark = pytest.mark.clients
QUESTION = "What is the capital of France?"


class Weather(BaseModel):
    """Get the weather of a city."""

    city: Literal["Paris", "London"]
    in_days: Literal[0, 1, 2]


@pytest.fixture(scope="module")
def chat(url):
    return langchain_openai.ChatOpenAI(
        model="smollm2", base_url=url, api_key="any", temperature=0, max_tokens=40, max_retries=0
    )


def test_invoke(chat):
    """An answer comes with its reason to end and its usage."""
    answer = chat.invoke([("system", "Be brief."), ("human", QUESTION)])
    assert "Paris" in answer.content
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    assert answer.usage_metadata["total_tokens"] == (
        answer.usage_metadata["input_tokens"] + answer.usage_metadata["output_tokens"]
    )


def test_stream(chat):
    """Chunks add up to what invoke answers, usage included where it is asked for."""
    whole = chat.invoke(QUESTION)
    chunks = list(chat.stream(QUESTION, stream_usage=True))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert len(chunks) > 3
    assert total.content == whole.content
    assert total.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_bind_tools(chat, stream):
    """A call that is required comes parsed, streamed or not."""
    bound = chat.bind_tools([Weather], tool_choice="any")
    question = "How is the weather in London tomorrow?"
    if stream:
        answer = None
        for chunk in bound.stream(question):
            answer = chunk if answer is None else answer + chunk
    else:
        answer = bound.invoke(question)
    (call,) = answer.tool_calls
    assert call["name"] == "Weather"
    assert Weather.model_validate(call["args"])
    assert call["id"]


def test_an_agents_turns_are_taken_back(chat):
    """A call and its result, replayed as the client keeps them, bring an answer."""
    call = chat.bind_tools([Weather], tool_choice="any").invoke("Weather in Paris?")
    history = [
        ("human", "Weather in Paris?"),
        call,
        {"role": "tool", "tool_call_id": call.tool_calls[0]["id"], "content": "Sunny, 21 degrees"},
    ]
    assert chat.bind_tools([Weather]).invoke(history).usage_metadata["input_tokens"] > 0


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_with_structured_output(chat, method):
    """Answers are instances of the model that was asked for."""
    structured = chat.with_structured_output(Weather, method=method)
    assert isinstance(structured.invoke("How is the weather in Paris today?"), Weather)


def test_legacy_completions(url):
    """The older class sends every sampling field, some of them null."""
    model = langchain_openai.OpenAI(model="smollm2", base_url=url, api_key="any", temperature=0)
    assert "Paris" in model.invoke("The capital of France is", max_tokens=8)


def test_overflow_has_its_own_class(chat):
    """A conversation that is too long is recognised as that."""
    exceptions = pytest.importorskip("langchain_core.exceptions")
    with pytest.raises(exceptions.ContextOverflowError):
        chat.invoke("word " * 5000)
