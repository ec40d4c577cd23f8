"""server.api.answers.chat_writer: answers of chats."""

from __future__ import annotations

from fakes import FakeEngine
from writing import MESSAGES, chunks, stream, whole

from server.api.schemas import wire_types


def test_streamed_log_probabilities_join_to_the_whole():
    """Chunks carry the same entries as the whole answer, in order."""
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "stop": ["wor"]}
    content = whole(FakeEngine("é, world"), **body)["choices"][0]["logprobs"]["content"]
    streamed = [
        entry
        for chunk in chunks(stream(FakeEngine("é, world"), **body))
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "é, "


def test_answers_are_of_their_documented_types():
    """What is written parses as what the OpenAPI page describes."""
    body = {"messages": MESSAGES, "logprobs": True}
    assert wire_types.ChatCompletion.model_validate(whole(FakeEngine(), **body))
    for each in chunks(stream(FakeEngine(), **body)):
        assert wire_types.ChatCompletionChunk.model_validate(each)
