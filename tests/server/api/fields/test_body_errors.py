"""server.api.fields.body_errors: what is wrong with a body, named by its path in what was sent."""

from __future__ import annotations

import pytest

from server.api.schemas.message_schemas import MessageBody
from server.api.schemas.requests import ChatBody, CompletionBody, parse
from server.api.schemas.response_schemas import ResponseBody
from server.errors import InvalidRequestError

USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("schema", "body", "param", "words"),
    [
        (ChatBody, {"messages": [USER | {"content": [{"type": "text"}]}]},
         "messages[0].content[0].text", "Missing required"),
        (ChatBody, {"messages": [USER | {"content": [{"type": "text", "text": 5}]}]},
         "messages[0].content[0].text", "must be a string (got 5)"),
        (ChatBody, {"messages": [USER | {"content": [{"type": "refusal"}]}]},
         "messages[0].content[0].refusal", "Missing required"),
        (ChatBody, {"messages": [USER | {"content": 5}]},
         "messages[0].content", "must be a string or a list (got 5)"),
        (ChatBody, {"messages": [USER], "tool_choice": {"type": "function", "function": {}}},
         "tool_choice.function.name", "Missing required"),
        (ChatBody, {"messages": [USER], "stop": ["a", ""]}, "stop[1]", "must not be empty"),
        (ChatBody, {"messages": [USER], "logit_bias": {"65": 101}},
         "logit_bias.65", "must be at most 100 (got 101)"),
        (ChatBody, {"messages": [USER], "response_format": {"type": "x"}},
         "response_format", "'response_format.type' must be"),
        (CompletionBody, {"prompt": [[1], ["a"]]}, "prompt[1][0]", "must be an integer"),
        (CompletionBody, {"prompt": ["a", 5]}, "prompt[1]", "must be a string (got 5)"),
        (ResponseBody, {"input": [{"type": "function_call", "call_id": "c", "name": 5}]},
         "input[0].name", "must be a string (got 5)"),
        (ResponseBody, {"input": [{"role": "user", "content": [{"text": "x"}]}]},
         "input[0].content[0].type", "is missing"),
        (ResponseBody, {"input": ["x"]}, "input[0].type", "is missing"),
        (MessageBody, {"max_tokens": 1, "messages": [USER | {"content": [
            {"type": "tool_use", "id": "a", "name": "b", "input": []}]}]},
         "messages[0].content[0].input", "must be an object"),
    ],
)  # fmt: skip
def test_a_field_at_fault_is_named_by_its_path(schema, body, param, words):
    """Indices and keys as they were sent, without the names of the types that were tried."""
    with pytest.raises(InvalidRequestError) as error:
        parse(schema, body)
    assert error.value.param == param
    assert words in error.value.message
