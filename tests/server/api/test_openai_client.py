"""The official openai client against the server, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
from fakes import FakeEngine
from openai import AsyncOpenAI, OpenAI
from serving import serving

MESSAGES = [{"role": "user", "content": "hi"}]


def reply(request) -> str:
    """The prompt backwards, so that answers differ."""
    return bytes(reversed(request.token_ids)).decode()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(FakeEngine(reply)) as url:
        yield f"{url}/v1"


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


def test_chat(client):
    """A chat answer parses into the client's own types."""
    answer = client.chat.completions.create(model="fake", messages=MESSAGES)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == ":tnatsissa;ih:resu"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream(client):
    """Deltas join to the whole answer, and usage comes last."""
    stream = client.chat.completions.create(
        model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == ":tnatsissa;ih:resu"
    assert chunks[-1].usage.completion_tokens == len(text) + 1


def test_chat_stream_helper(client):
    """The helper, which checks every chunk, assembles the final completion."""
    with client.chat.completions.stream(model="fake", messages=MESSAGES, n=2) as stream:
        final = [event for event in stream if event.type == "content.done"]
        completion = stream.get_final_completion()
    assert len(final) == 2
    assert [c.message.content for c in completion.choices] == [":tnatsissa;ih:resu"] * 2


def test_history_replays_as_the_client_dumps_it(client):
    """An answer's own dump is accepted as a message of the next request."""
    answer = client.chat.completions.create(model="fake", messages=MESSAGES)
    history = [*MESSAGES, answer.choices[0].message.model_dump(), *MESSAGES]
    assert client.chat.completions.create(model="fake", messages=history).choices


def test_chat_logprobs(client):
    """Every token has its log-probability and alternatives."""
    answer = client.chat.completions.create(
        model="fake", messages=MESSAGES, logprobs=True, top_logprobs=2, max_tokens=3
    )
    content = answer.choices[0].logprobs.content
    assert [token.token for token in content] == [":", "t", "n"]
    assert [token.bytes for token in content] == [[58], [116], [110]]
    assert all(len(token.top_logprobs) == 2 for token in content)


def test_completions(client):
    """Several prompts and choices come in order."""
    answer = client.completions.create(model="fake", prompt=["ab", "cd"], n=2, logprobs=2)
    assert [choice.text for choice in answer.choices] == ["ba", "ba", "dc", "dc"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].logprobs.tokens[:2] == ["b", "a"]


def test_completion_stream(client):
    """Streamed completions join to the text."""
    stream = client.completions.create(model="fake", prompt="abc", stream=True, echo=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "abccba"


def test_models(client):
    """The model list is iterable and holds the served model."""
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").object == "model"


@pytest.mark.parametrize(
    ("options", "kind", "param"),
    [
        ({"temperature": 5}, openai.BadRequestError, "temperature"),
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "messages"),
        ({"extra_body": {"min_pp": 1}}, openai.BadRequestError, "min_pp"),
    ],
)
def test_errors(client, options, kind, param):
    """The client raises its own exceptions with message, param and code."""
    with pytest.raises(kind) as error:
        client.chat.completions.create(**{"model": "fake", "messages": MESSAGES, **options})
    assert error.value.param == param
    assert error.value.body["message"]


def test_an_error_event_raises(url):
    """A stream that fails in its middle is not taken for success."""
    engine = FakeEngine()
    engine.fail_after = 3
    with (
        serving(engine) as own,
        OpenAI(base_url=f"{own}/v1", api_key="any", max_retries=0) as client,
        pytest.raises(openai.APIError, match="injected failure"),
    ):
        list(client.chat.completions.create(model="fake", messages=MESSAGES, stream=True))


def test_32_requests_at_once(url):
    """Each answer is that of its own prompt."""

    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            calls = [
                client.completions.create(model="fake", prompt=f"request {i:02}") for i in range(32)
            ]
            return [answer.choices[0].text for answer in await asyncio.gather(*calls)]

    assert asyncio.run(ask()) == [f"request {i:02}"[::-1] for i in range(32)]
