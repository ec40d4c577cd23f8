"""server.api.schemas.response_schemas: what /v1/responses takes, by type and bound."""

from __future__ import annotations

import pytest

from server.api.schemas.requests import MAX_MESSAGES, parse
from server.api.schemas.response_schemas import CallItem, InputMessage, ResponseBody, ThoughtsItem
from server.errors import InvalidRequestError

CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}


def test_items_are_known_by_their_type_and_messages_by_their_role():
    """A message need not say that it is one."""
    items = [{"role": "user", "content": "hi"}, CALL, {"type": "reasoning", "summary": []}]
    read = parse(ResponseBody, {"input": items}).input
    assert [type(item) for item in read] == [InputMessage, CallItem, ThoughtsItem]
    assert parse(ResponseBody, {"input": "hi"}).input == "hi"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("input", "", "'input' must not be empty"),
        ("input", 5, "'input' must be a string or a list (got 5)."),
        ("input", [5], "'input[0].type' is missing."),
        ("input", [{"role": "tool", "content": "x"}], "'input[0].role' must be"),
        ("input", [{"type": "computer_call"}], 'does not support "computer_call"'),
        ("input", [CALL | {"arguments": {}}], "'input[0].arguments' must be a string"),
        ("input", [{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1), f"{MAX_MESSAGES} entr"),
        ("max_output_tokens", 0, "must be at least 1 (got 0)"),
        ("text", {"format": {"type": "xml"}}, "'text.format.type' must be"),
        ("tools", [{"type": "function", "name": "a b"}], "'tools[0].name' must match"),
        ("tool_choice", "any", "'tool_choice' must be"),
        ("metadata", {str(number): "" for number in range(65)}, "at most 64 entries"),
        ("metadata", {"a": 1}, "'metadata.a' must be a string (got 1)."),
    ],
)
def test_a_fault_names_field_bound_and_value(field, value, words):
    """In the client's own terms."""
    with pytest.raises(InvalidRequestError) as error:
        parse(ResponseBody, {"input": "hi"} | {field: value})
    assert words in error.value.message
    assert error.value.param.startswith(field)
