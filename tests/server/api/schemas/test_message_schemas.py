"""server.api.schemas.message_schemas: what /v1/messages takes, by type and bound."""

from __future__ import annotations

import pytest

from server.api.schemas.message_schemas import (
    MessageBody,
    MessageCountBody,
    TextBlock,
    ToolUseBlock,
)
from server.api.schemas.requests import MAX_MESSAGES, MAX_STOPS, parse
from server.errors import InvalidRequestError

HI = [{"role": "user", "content": "hi"}]
USE = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}


def test_blocks_are_known_by_their_type():
    """A turn is a text or a row of blocks."""
    turn = {"role": "assistant", "content": [{"type": "text", "text": "x"}, USE]}
    body = parse(MessageBody, {"messages": [*HI, turn], "max_tokens": 5})
    assert body.messages[0].content == "hi"
    assert [type(block) for block in body.messages[1].content] == [TextBlock, ToolUseBlock]


def test_only_counting_needs_no_limit():
    """As in the reference, an answer's length must be said."""
    assert parse(MessageCountBody, {"messages": HI}).max_tokens is None
    with pytest.raises(InvalidRequestError, match="Missing required parameter: 'max_tokens'"):
        parse(MessageBody, {"messages": HI})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("messages", [], "'messages' must not be empty"),
        ("messages", "hi", "'messages' must be a list (got \"hi\")."),
        ("messages", HI * (MAX_MESSAGES + 1), f"at most {MAX_MESSAGES} entries"),
        ("messages", [{"role": "tool", "content": "x"}], "'messages[0].role' must be"),
        ("messages", [{"role": "user", "content": [{"type": "image"}]}], '"image"'),
        ("messages", [{"role": "user", "content": [USE | {"input": "{}"}]}], "must be an object"),
        ("system", [{"type": "image"}], "'system[0].type'"),
        ("max_tokens", 0, "must be at least 1 (got 0)"),
        ("stop_sequences", [""], "'stop_sequences[0]' must not be empty"),
        ("stop_sequences", ["x"] * (MAX_STOPS + 1), f"at most {MAX_STOPS} entries"),
        ("tools", [{"name": "a b", "input_schema": {}}], "'tools[0].name' must match"),
        ("tools", [{"name": "a"}], "'tools[0].input_schema'"),
        ("tool_choice", {"type": "required"}, "'tool_choice.type' must be"),
        ("thinking", {"type": "on"}, "'thinking.type' must be"),
    ],
)
def test_a_fault_names_field_bound_and_value(field, value, words):
    """In the client's own terms."""
    with pytest.raises(InvalidRequestError) as error:
        parse(MessageBody, {"messages": HI, "max_tokens": 5} | {field: value})
    assert words in error.value.message
    assert error.value.param.startswith(field)
