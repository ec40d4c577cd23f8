"""server.api.answers.completion_writer: answers of completions."""

from __future__ import annotations

from fakes import FakeEngine
from writing import chunks, stream, whole

from server.api.schemas import wire_types


def test_legacy_alternatives_hold_the_chosen_token():
    """Even with none asked for, the chosen token is among the alternatives."""
    logprobs = whole(FakeEngine("ab"), prompt="x", logprobs=0)["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"a": -0.5}, {"b": -0.5}, {"<eos>": -0.5}]


def test_answers_are_of_their_documented_types():
    """What is written parses as what the OpenAPI page describes."""
    body = {"prompt": "a", "logprobs": 1}
    assert wire_types.Completion.model_validate(whole(FakeEngine(), **body))
    for each in chunks(stream(FakeEngine(), **body)):
        assert wire_types.Completion.model_validate(each)
