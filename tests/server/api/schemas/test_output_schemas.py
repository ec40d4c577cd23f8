"""What is asked of an answer's form is checked and named."""

import pytest

from server.api.schemas.output_schemas import MAX_CHOICES, MAX_TOOLS
from server.api.schemas.requests import ChatBody, parse
from server.errors import InvalidRequestError

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": "json_object"}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format",
        ),
        ({"structured_outputs": {"choice": ["a"] * (MAX_CHOICES + 1)}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
        ({"structured_outputs": {"json": True}}, "structured_outputs"),
        ({"tools": [TOOL] * (MAX_TOOLS + 1)}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
    ],
)
def test_malformed_fields_are_named(fields, param):
    """A response format and a constraint as a whole, tools by their place."""
    with pytest.raises(InvalidRequestError) as error:
        parse(ChatBody, {**CHAT, **fields})
    assert error.value.param == param


def test_nulls_inside_are_absent():
    """Clients send them for what they do not set."""
    function = {"name": "f", "description": None, "parameters": None, "strict": None}
    form = {"type": "json_schema", "json_schema": {"name": None, "strict": None, "schema": {}}}
    outputs = {"regex": "a", "choice": None, "grammar": None, "json": None, "json_object": None}
    body = parse(
        ChatBody,
        {**CHAT, "tools": [{"type": "function", "function": function}], "response_format": form,
         "structured_outputs": outputs},
    )  # fmt: skip
    assert body.tools[0].function.name == "f"
    assert body.structured_outputs.regex == "a"
