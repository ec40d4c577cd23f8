"""server.api.schemas.requests: types and bounds, and the sentences they become."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from server.api.schemas import requests as schemas
from server.api.schemas.message_schemas import MessageBody
from server.api.schemas.requests import ChatBody, CompletionBody, parse
from server.api.schemas.response_schemas import ResponseBody
from server.errors import InvalidRequestError, UnsupportedValueError


def refuse(schema, **values):
    with pytest.raises(InvalidRequestError) as error:
        parse(schema, values)
    return error.value


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("n", 0, "'n' must be at least 1 (got 0)."),
        ("n", 1_000_000, "'n' must be at most 128 (got 1000000)."),
        ("n", True, "'n' must be an integer (got true)."),
        ("n", 1.0, "'n' must be an integer (got 1.0)."),
        ("temperature", 2.5, "'temperature' must be at most 2 (got 2.5)."),
        ("temperature", "nan", "'temperature' must be a number (got \"nan\")."),
        ("top_p", -0.1, "'top_p' must be at least 0 (got -0.1)."),
        ("repetition_penalty", 0, "'repetition_penalty' must be at least 0.01 (got 0)."),
        ("max_tokens", -1, "'max_tokens' must be at least 0 (got -1)."),
        ("logprobs", 21, "'logprobs' must be at most 20 (got 21)."),
        ("logprobs", -1, "'logprobs' must be at least 0 (got -1)."),
        ("logprobs", True, "'logprobs' must be an integer (got true)."),
        ("stream", "yes", "'stream' must be true or false (got \"yes\")."),
        ("stop", "", "'stop' must not be empty (got \"\")."),
        ("stop", ["a", ""], "'stop[1]' must not be empty (got \"\")."),
        ("stop", [1], "'stop[0]' must be a string (got 1)."),
        ("stop", 5, "'stop' must be a string or a list (got 5)."),
        ("stop", ["x"] * 257, "'stop' must have at most 256 entries (got 257)."),
        ("stop", "x" * 1025, "'stop' must have at most 1024 characters (got 1025)."),
        ("logit_bias", {"65": 101}, "'logit_bias.65' must be at most 100 (got 101)."),
        ("logit_bias", {"65": "x"}, "'logit_bias.65' must be a number (got \"x\")."),
        ("logit_bias", [], "'logit_bias' must be an object (got [])."),
        ("prompt", [], "'prompt' must not be empty (got [])."),
        ("prompt", [[]], "'prompt[0]' must not be empty (got [])."),
        ("prompt", [1.5], "'prompt[0]' must be an integer (got 1.5)."),
        ("prompt", [True], "'prompt[0]' must be an integer (got true)."),
        ("prompt", ["a", 1], "'prompt[1]' must be a string (got 1)."),
        ("prompt", [[1]] * 2000, "'prompt' must have at most 1024 entries (got 2000)."),
        ("prompt", {}, "'prompt' must be a string or a list (got {})."),
        ("stream_options", 4, "'stream_options' must be an object (got 4)."),
    ],
)
def test_a_fault_names_field_bound_and_value(field, value, message):
    """The client can mend its request from the sentence alone."""
    error = refuse(CompletionBody, **{"prompt": "a", field: value})
    assert error.message == message
    assert error.param.split("[")[0].split(".")[0] == field


@pytest.mark.parametrize(
    ("messages", "message", "param"),
    [
        ([], "'messages' must not be empty (got []).", "messages"),
        ("hi", 'must be a list (got "hi").', "messages"),
        ([4], "must be an object (got 4).", "messages[0]"),
        ([{"content": "x"}], "Missing required parameter", "messages[0].role"),
        ([{"role": "boss", "content": "x"}], '(got "boss").', "messages[0].role"),
        ([{"role": "user", "content": 5}], "(got 5).", "messages[0].content"),
        ([{"role": "user", "content": [{"text": "x"}]}], "missing", "messages[0].content[0].type"),
        (
            [{"role": "user", "content": [{"type": "text", "text": 4}]}],
            "must be a string (got 4).",
            "messages[0].content[0].text",
        ),
    ],
)
def test_faults_inside_messages_are_located(messages, message, param):
    """The path leads to the message and part at fault."""
    error = refuse(ChatBody, messages=messages)
    assert message in error.message
    assert error.param == param


def test_an_unknown_part_type_is_an_unsupported_value():
    """An image is never dropped from a message in silence."""
    part = {"type": "image_url", "image_url": {"url": "x"}}
    error = refuse(ChatBody, messages=[{"role": "user", "content": [part]}])
    assert isinstance(error, UnsupportedValueError)
    assert error.param == "messages[0].content[0].type"


@pytest.mark.parametrize(
    ("schema", "field", "value"),
    [
        (CompletionBody, "prompt", [1, *(["x"] * 99)]),
        (CompletionBody, "prompt", ["x", *([1] * 99)]),
        (CompletionBody, "prompt", [[1], *([["x"] * 99] * 99)]),
        (CompletionBody, "allowed_token_ids", ["x"] * 99),
        (ChatBody, "messages", [{"role": "x"}] * 99),
        (ChatBody, "messages", [{"role": "user", "content": [{"type": "text"}] * 99}]),
        (schemas.DetokenizeBody, "tokens", ["x"] * 99),
        (ResponseBody, "input", [{"role": "user"}] * 99),
        (ResponseBody, "input", [{"role": "user", "content": [{"type": "input_text"}] * 99}]),
        (MessageBody, "messages", [{"role": "user"}] * 99),
        (MessageBody, "messages", [{"role": "user", "content": [{"type": "text"}] * 99}]),
    ],
)
def test_of_many_faults_in_a_list_one_is_looked_for(schema, field, value):
    """A million of them would take seconds, and one is named anyway."""
    with pytest.raises(ValidationError) as error:
        schema.model_validate({field: value})
    of_list = [each for each in error.value.errors() if each["loc"][0] == field]
    assert len(of_list) == 1


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1], [2]]])
def test_a_prompt_has_four_forms(prompt):
    """Text, texts, ids and lists of ids all pass as they are."""
    assert parse(CompletionBody, {"prompt": prompt}).prompt == prompt


def test_null_options_inside_stream_options_are_absent():
    """Null means absent there too."""
    body = parse(CompletionBody, {"prompt": "a", "stream_options": {"include_usage": None}})
    assert body.stream_options.include_usage is None


def test_numbers_of_prompts_are_counted_by_form():
    """A list of ids is one prompt, a list of texts several."""
    counts = [
        schemas.num_prompts(parse(CompletionBody, {"prompt": prompt}))
        for prompt in ("ab", [1, 2, 3], ["a", "b"], [[1], [2], [3]])
    ]
    assert counts == [1, 1, 2, 3]
