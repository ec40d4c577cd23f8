"""server.api.transport.json_body: strict where Python's parser is lenient."""

from __future__ import annotations

import json

import pytest
from growth import LINEAR, growth

from server.api.transport.json_body import parse_object
from server.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"a": NaN}', "NaN"),
        (b'{"a": Infinity}', "Infinity"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "1e999"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"a": 1, "a": 2}', '"a" appears twice'),
        (b'{"b": {"c": 1, "c": 1}}', '"c" appears twice'),
        (b'{"a": 1', "line 1, column"),
        (b"", "line 1, column 1"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b'{"a": "\\ud83e"}', "no partner"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "must be a JSON object"),
    ],
)
def test_what_is_not_strict_json_is_refused(raw, reason):
    """The reason stands in the message, and no Python words do."""
    with pytest.raises(InvalidRequestError) as error:
        parse_object(raw)
    assert reason in error.value.message
    assert error.value.code == "invalid_json"


@pytest.mark.parametrize(
    ("value", "is_too_much"),
    [
        (b"[" + b",".join([b"[]"] * 249_000) + b"]", False),
        (b"[" + b",".join([b"[]"] * 251_000) + b"]", True),
        (b"[" + b",".join([b"{}"] * 251_000) + b"]", True),
        (b"{" + b",".join(b'"%d":1' % number for number in range(251_000)) + b"}", True),
        (b"[" + b",".join([b"1"] * 1_249_000) + b"]", False),
        (b"[" + b",".join([b"1"] * 1_251_000) + b"]", True),
        (b"[" + b",".join([b'"a"'] * 1_251_000) + b"]", True),
        (b'"' + b"[{:," * 1_300_000 + b'"', False),
        (b'"' + b'\\"[{:,\\\\' * 300_000 + b'"', False),
    ],
)
def test_a_body_of_too_many_parts_is_refused_unparsed(value, is_too_much):
    """Marks inside texts are no parts, however many quotes and backslashes stand between them."""
    raw = b'{"a":' + value + b"}"
    if not is_too_much:
        assert parse_object(raw) == json.loads(raw)
        return
    with pytest.raises(InvalidRequestError, match="at most 250000 lists") as error:
        parse_object(raw)
    assert error.value.code == "body_too_complex"


def test_a_text_without_end_among_many_parts_is_no_json():
    """What cannot be counted is left to the parser."""
    with pytest.raises(InvalidRequestError, match="not valid JSON"):
        parse_object(b'{"a":["' + b"[]," * 251_000)
    with pytest.raises(InvalidRequestError, match="not valid JSON"):
        parse_object(b'{"a":"' + b"[]," * 251_000)


def test_a_byte_order_mark_is_passed_over():
    """Some programs write one before everything."""
    assert parse_object(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_escaped_pairs_are_characters():
    """Both halves of a surrogate pair together are one character."""
    assert parse_object(b'{"a": "\\ud83e\\udd89", "b": [1.5, null]}') == {
        "a": "🦉",
        "b": [1.5, None],
    }


@pytest.mark.parametrize(
    "names",
    [
        lambda n: [*map(str, range(n)), str(n - 1)],
        lambda n: ["first", *map(str, range(n)), "first"],
        lambda n: ["same"] * n,
    ],
    ids=["last", "first", "all"],
)
def test_duplicate_names_cost_linear_time(names):
    """An object whose names are not unique is refused as fast as it is read."""

    def work(size: int):
        raw = "{" + ",".join(f'"{name}":1' for name in names(size)) + "}"
        return lambda: parse_object(raw.encode())

    with pytest.raises(InvalidRequestError, match="appears twice"):
        work(10)()
    assert growth(work, 20_000) < LINEAR
