"""Keys of a JSON schema that the grammar engine does not know: dropped, rewritten or refused.

A key that cannot change what fits is dropped; `oneOf` of members that exclude each other is
`anyOf`; what is left is refused with its place, as ignoring it would let through what does not fit.
Source: https://json-schema.org/draft/2020-12/json-schema-validation
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

MAX_ONE_OF = 64
"""Members of a `oneOf`, each of which is compared with each other."""
_ANNOTATIONS = frozenset({"const", "default", "enum", "examples", "example"})
"""Keys whose value may be null."""
_ANYTHING: tuple[object, ...] = (True, {})
_SAYS_NOTHING: Mapping[str, Callable[[object, Mapping[str, object]], bool]] = {
    "$schema": lambda _value, _node: True,
    "propertyNames": lambda value, _node: value in (*_ANYTHING, {"type": "string"}),
    "uniqueItems": lambda value, _node: value is False,
    "unevaluatedProperties": lambda value, _node: value in _ANYTHING,
    "unevaluatedItems": lambda value, _node: value in _ANYTHING,
    "dependentRequired": lambda value, _node: value == {},
    "dependentSchemas": lambda value, _node: value == {},
    "dependencies": lambda value, _node: value == {},
    "contains": lambda _value, _node: False,
    "minContains": lambda _value, node: "contains" not in node,
    "maxContains": lambda _value, node: "contains" not in node,
    "if": lambda _value, node: "then" not in node and "else" not in node,
    "then": lambda _value, node: "if" not in node,
    "else": lambda _value, node: "if" not in node,
    "not": lambda _value, _node: False,
    "$dynamicRef": lambda _value, _node: False,
    "$recursiveRef": lambda _value, _node: False,
}
"""What the engine does not know -> whether it says nothing in this place."""
_HINTS: Mapping[str, str] = {
    "propertyNames": "Use 'patternProperties' with 'additionalProperties' false instead",
    "uniqueItems": "Use false, or leave it out",
    "not": "Say what is allowed instead",
    "if": "Use 'anyOf' instead",
    "dependentRequired": "Use 'anyOf' instead",
    "oneOf": "Use 'anyOf', or members that exclude each other by their types or a constant",
}


class SchemaError(ValueError):
    """A schema that cannot be enforced.

    Args:
        message: Why.
        path: Where in the schema, such as ".properties.a".
    """

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


def known_keys(node: Mapping[str, object], path: str) -> dict[str, object]:
    """A schema object with no key that the engine does not know.

    Raises:
        SchemaError: One that is not known matters.
    """
    kept = {key: value for key, value in node.items() if value is not None or key in _ANNOTATIONS}
    for key in [key for key in kept if key in _SAYS_NOTHING]:
        if not _SAYS_NOTHING[key](kept[key], node):
            hint = f". {_HINTS[key]}" if key in _HINTS else ""
            raise SchemaError(f"'{key}' is not supported here{hint}", path)
        del kept[key]
    members = kept.get("oneOf")
    if isinstance(members, list):
        if len(members) > MAX_ONE_OF or "anyOf" in kept or not _exclude_each_other(members):
            raise SchemaError(f"'oneOf' is not supported here. {_HINTS['oneOf']}", path)
        kept["anyOf"] = kept.pop("oneOf")
    return kept


def _exclude_each_other(members: list[object]) -> bool:
    return all(_exclude(one, other) for one, other in combinations(members, 2))


def _exclude(one: object, other: object) -> bool:
    """Whether it can be seen that nothing fits both schemas."""
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return False
    types = _types(one), _types(other)
    if types[0] and types[1] and not types[0] & types[1]:
        return True
    if _are_apart(_values(one), _values(other)):
        return True
    return types[0] == types[1] == {"object"} and _differ_in_a_constant(one, other)


def _differ_in_a_constant(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether both require a property that is another constant in each."""
    mine, theirs = one.get("properties"), other.get("properties")
    required = one.get("required"), other.get("required")
    if not (isinstance(mine, Mapping) and isinstance(theirs, Mapping)):
        return False
    if not (isinstance(required[0], list) and isinstance(required[1], list)):
        return False
    shared = [name for name in required[0][:MAX_ONE_OF] if name in required[1][:MAX_ONE_OF]]
    return any(_are_apart(_values(mine.get(name)), _values(theirs.get(name))) for name in shared)


def _are_apart(one: list[object] | None, other: list[object] | None) -> bool:
    """Whether two lists of values have none in common."""
    if one is None or other is None:
        return False
    return not any(_same(a, b) for a in one for b in other)


def _types(schema: Mapping[str, object]) -> frozenset[str]:
    """The types of JSON that a schema allows; none if it does not say."""
    given = schema.get("type")
    names = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    # Whole numbers are numbers.
    return frozenset("number" if name == "integer" else str(name) for name in names)


def _values(schema: object) -> list[object] | None:
    """The values that a schema lists, if it does."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed[:MAX_ONE_OF] if isinstance(listed, list) and len(listed) <= MAX_ONE_OF else None


def _same(one: object, other: object) -> bool:
    """Equality in JSON's sense: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other
