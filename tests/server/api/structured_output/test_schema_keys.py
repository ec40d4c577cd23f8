"""server.api.structured_output.schema_keys: dropped, rewritten, or refused with its place."""

from __future__ import annotations

import pytest
from growth import LINEAR, growth

from server.api.structured_output.schema_keys import SchemaError, known_keys
from server.api.structured_output.schema_preparation import prepare_schema

TEXT, NUMBER = {"type": "string"}, {"type": "number"}


def variant(kind: str) -> dict:
    """A member that is told by a constant."""
    return {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("$schema", "https://json-schema.org/draft/2020-12/schema"),
        ("propertyNames", {"type": "string"}),
        ("propertyNames", {}),
        ("uniqueItems", False),
        ("unevaluatedProperties", True),
        ("dependentRequired", {}),
        ("minContains", 1),
        ("if", {"type": "string"}),
        ("then", {"type": "string"}),
        ("required", None),
        ("pattern", None),
    ],
)
def test_what_says_nothing_is_dropped(key, value):
    """It cannot change what fits, or is null, which is absent."""
    assert known_keys({**TEXT, key: value}, "") == TEXT


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("propertyNames", {"pattern": "a"}),
        ("uniqueItems", True),
        ("unevaluatedProperties", False),
        ("dependentRequired", {"a": ["b"]}),
        ("contains", {}),
        ("not", {"type": "null"}),
        ("$dynamicRef", "#"),
    ],
)
def test_what_matters_is_refused_with_its_place(key, value):
    """The message has the key, and the error the path to where it stands."""
    inner = {"type": "object", key: value}
    outer = {"type": "object", "properties": {"a": {"items": [TEXT, {"anyOf": [TEXT, inner]}]}}}
    with pytest.raises(SchemaError, match=key.replace("$", r"\$")) as error:
        prepare_schema(outer)
    assert error.value.path == ".properties.a.items[1].anyOf[1]"


@pytest.mark.parametrize(
    "members",
    [
        [TEXT, NUMBER],
        [TEXT, {"type": ["integer", "null"]}],
        [{"const": 1}, {"const": True}, {"enum": ["a", "b"]}],
        [variant("a"), variant("b"), variant("c")],
    ],
)
def test_one_of_members_that_exclude_each_other_is_any_of(members):
    """By their types, their values, or a constant that both require."""
    assert known_keys({"oneOf": members}, "") == {"anyOf": members}


@pytest.mark.parametrize(
    "members",
    [
        [TEXT, {"type": "string", "maxLength": 3}],
        [NUMBER, {"type": "integer"}],
        [{"const": 1}, {"enum": [1.0, 2]}],
        [variant("a"), variant("a")],
        [variant("a"), {"type": "object"}],
        [TEXT, {}],
        [TEXT, True],
        [{"const": number} for number in range(100)],
    ],
)
def test_one_of_others_is_refused(members):
    """As both might fit; the message says what would work."""
    with pytest.raises(SchemaError, match="'oneOf' is not supported here"):
        known_keys({"oneOf": members}, "")


@pytest.mark.parametrize(
    "node",
    [
        lambda n: {"oneOf": [{"type": f"t{i}"} for i in range(n)]},
        lambda n: {"oneOf": [{"enum": list(range(n))}, {"enum": list(range(n, 2 * n))}]},
        lambda n: {"anyOf": [{"required": None}] * n},
        lambda n: {"properties": {str(i): {"propertyNames": {}} for i in range(n)}},
    ],
)
def test_keys_are_looked_at_in_linear_time(node):
    """However many members there are."""
    assert growth(lambda size: lambda: prepare_schema(node(size)), 500) < LINEAR
