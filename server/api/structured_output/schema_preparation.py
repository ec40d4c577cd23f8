"""Readies a client's JSON schema for the grammar engine, without changing what it means.

The engine decides what it can enforce and refuses the rest. Here stands what it would get wrong or
what would make poor text: repeated quantifiers, formats nobody knows (annotations, by the
specification), objects left open by omission, and white space without bound.
Source: https://json-schema.org/draft/2020-12/json-schema-validation
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from server.api.structured_output.schema_keys import SchemaError, known_keys
from server.engine.grammars.grammar import MAX_GRAMMAR_BYTES, check_size

OUTPUT_STYLE: Mapping[str, object] = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "coerce_one_of": False,
    "lenient": False,
    # An escape such as \\u0061 could spell a key a second time, or half a character.
    "json_allowed_escapes": 'nrbtf\\"',
    "json_allow_general_unicode_escapes": False,
}
"""How JSON is written: on one line, as Python's json module would, or tighter."""
MAX_DEPTH = 60

_ENFORCED_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_LISTS_OF_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMAS = frozenset({"items", "additionalProperties", "additionalItems"})
_KEEPS_OPEN = frozenset(
    {"additionalProperties", "unevaluatedProperties", "patternProperties", "minProperties",
     "allOf", "anyOf", "oneOf", "$ref"}
)  # fmt: skip
_STRICT = r"(?:[*+]|\{\d+(?:,\d*)?\})"
_QUANTIFIER = rf"(?:\?|{_STRICT})"
_IN_PATTERN = re.compile(
    # Possessive: a class that is not closed is looked through once, not once for each bracket.
    rf"\\.|\[\^?+\]?+(?:\\.|[^\]\\])*+\]?+|(?P<twice>{_QUANTIFIER}(?:\?{_QUANTIFIER}|{_STRICT}))|.",
    re.DOTALL,
)


_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\ud800-\udfff]")
"""Control characters without a letter of their own, and halves of characters."""
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_ASCII = {r"\d": "[0-9]", r"\w": "[0-9A-Za-z_]", r"\s": r"[\t\n\x0b\f\r ]"}
"""Classes that may also stand inside a class."""


def prepare_schema(schema: Mapping[str, object]) -> dict[str, object]:
    """Return the schema as the engine should read it.

    Objects with properties that do not say whether others may follow get none: what is generated
    still fits, and ends.

    Raises:
        ValueError: The schema is too large or nested too deeply, or a pattern in it repeats a
            repetition.
    """
    _check_size(schema)
    closes = not any("allOf" in node for node in _objects(schema))
    prepared = _map_schemas(schema, lambda node: _prepare_one(node, closes=closes))
    return {**prepared, "x-guidance": dict(OUTPUT_STYLE)}


def prepare_pattern(pattern: str) -> str:
    r"""Return a regular expression as the engine should read it: \d, \w and \s are ASCII.

    What then matches does so for ECMA-262, which the specification of JSON Schema names, and for
    Python, whose tables of Unicode are other than the engine's.

    Raises:
        ValueError: It is too long, or repeats a repetition, which engines read differently.
    """
    check_size(pattern)
    for part in _IN_PATTERN.finditer(pattern):
        if part["twice"]:
            raise ValueError(f"pattern {pattern[:80]!r} repeats a repetition: {part['twice']!r}")
    return _ESCAPE.sub(lambda found: _ASCII.get(found[0], found[0]), pattern)


def _prepare_one(node: dict[str, object], *, closes: bool) -> dict[str, object]:
    """One schema object, its inner ones prepared already."""
    pattern, by_pattern = node.get("pattern"), node.get("patternProperties")
    if isinstance(pattern, str):
        node = {**node, "pattern": prepare_pattern(pattern)}
    if isinstance(by_pattern, Mapping):
        prepared = {prepare_pattern(name): value for name, value in by_pattern.items()}
        node = {**node, "patternProperties": prepared}
    for keyword in ("const", "enum", "properties", "required"):
        _check_spelling(node.get(keyword))
    known = node.get("format")
    if isinstance(known, str) and known not in _ENFORCED_FORMATS:
        node = {key: value for key, value in node.items() if key != "format"}
    if closes and _is_open_by_omission(node):
        node = {**node, "additionalProperties": False}
    return node


def _check_spelling(value: object) -> None:
    """Refuse text that could only be written with an escape we do not let the model use."""
    if isinstance(value, str):
        found = _UNWRITABLE.search(value)
        if found:
            raise ValueError(f"it holds the character U+{ord(found[0]):04X}, which is not offered")
    elif isinstance(value, Mapping):
        for key in value:
            _check_spelling(key)
    elif isinstance(value, list):
        for item in value:
            _check_spelling(item)


def _is_open_by_omission(node: Mapping[str, object]) -> bool:
    properties, required = node.get("properties"), node.get("required", [])
    return (
        isinstance(properties, Mapping)
        and bool(properties)
        and not node.keys() & _KEEPS_OPEN
        and isinstance(required, list)
        and all(isinstance(name, str) and name in properties for name in required)
    )


def _map_schemas(
    schema: Mapping[str, object],
    change: Callable[[dict[str, object]], dict[str, object]],
    depth: int = 0,
    path: str = "",
) -> dict[str, object]:
    """Apply a change to a schema and all those inside it, the innermost first."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")

    def inner(value: object, step: str) -> object:
        if not isinstance(value, Mapping):
            return value
        return _map_schemas(value, change, depth + 1, f"{path}.{step}")

    changed: dict[str, object] = {}
    for key, value in known_keys(schema, path).items():
        if key in _OF_SCHEMAS and isinstance(value, Mapping):
            changed[key] = {name: inner(one, f"{key}.{name}") for name, one in value.items()}
        elif key in _LISTS_OF_SCHEMAS | _SCHEMAS and isinstance(value, list):
            changed[key] = [inner(one, f"{key}[{index}]") for index, one in enumerate(value)]
        elif key in _SCHEMAS:
            changed[key] = inner(value, key)
        else:
            changed[key] = value
    try:
        return change(changed)
    except SchemaError:
        raise
    except ValueError as error:
        raise SchemaError(str(error), path) from None


def _check_size(schema: Mapping[str, object]) -> None:
    """Refuse a schema too large to be compiled; looks at no more of it than would be allowed."""
    size = 0
    pending: list[object] = [schema]
    while pending and size <= MAX_GRAMMAR_BYTES:
        one = pending.pop()
        if isinstance(one, Mapping):
            pending += [*one, *one.values()] if len(one) <= MAX_GRAMMAR_BYTES else []
            size += 4 * len(one)
        elif isinstance(one, list):
            pending += one if len(one) <= MAX_GRAMMAR_BYTES else []
            size += 2 * len(one)
        else:
            size += len(one) if isinstance(one, str) else 1
    if size > MAX_GRAMMAR_BYTES:
        raise ValueError(f"it must have at most {MAX_GRAMMAR_BYTES} bytes (got more)")


def _objects(value: object) -> Iterator[Mapping[str, object]]:
    """Every object in JSON data, at whatever depth."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, Mapping):
            yield one
            pending += one.values()
        elif isinstance(one, list):
            pending += one
