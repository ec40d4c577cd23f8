"""Objects that may be calls, character by character."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.structured_output.call_scanner import CallScanner


def scan(text: str) -> CallScanner:
    scanner = CallScanner({"f"})
    for char in text:
        if scanner.is_broken or scanner.is_complete:
            break
        scanner.push(char)
    return scanner


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    arguments=st.dictionaries(st.text(max_size=4), VALUES, max_size=4),
    more=st.dictionaries(st.sampled_from(["id", "type", "x"]), VALUES),
    indent=st.sampled_from([None, 0, 2]),
    key=st.sampled_from(["arguments", "parameters"]),
    first=st.booleans(),
)
def test_arguments_come_out_as_they_were_written(arguments, more, indent, key, first):
    """Any JSON object, in any spacing, before or after the name."""
    name = {"name": "f"}
    parts = {**more, key: arguments}
    document = {**name, **parts} if first else {**parts, **name}
    scanner = scan(json.dumps(document, indent=indent))
    assert scanner.is_complete
    assert scanner.name == "f"
    assert json.loads(scanner.take_arguments()) == arguments
    assert scanner.take_arguments() == ""


@pytest.mark.parametrize(
    "text",
    ["{x", '{"name" 1:', '{"name": "g",', '{"name": 1,', '{"a": 1}', "{]", '{"a"}', '{"a":1,,',
     '{"name": "f", "arguments": 1}', '{"name": "f", "arguments": "x"}', '{"name": ["f"],'],
)  # fmt: skip
def test_what_cannot_become_a_call_is_broken(text):
    """As soon as that is certain."""
    scanner = scan(text)
    assert scanner.is_broken
    assert not scanner.is_complete


def test_a_call_is_certain_once_its_arguments_begin():
    """Not when only the function is known: something else may follow."""
    assert not scan('{"name": "f", ').is_call
    assert scan('{"name": "f", "arguments": {').is_call
    assert not scan('{"arguments": {"a": 1}, ').is_call
