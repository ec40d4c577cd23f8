"""What pydantic finds wrong with a body, as sentences: the field, the bound and the value.

Knows neither the fields nor the endpoints; a field is named by its path in what the client sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from server.api.fields.fields import shorten
from server.errors import InvalidRequestError, UnsupportedValueError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_WHOLE_PARAMS = frozenset({"response_format", "structured_outputs"})
"""Fields that an error names as a whole, wherever in them it is."""
_BOUNDS = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "union_type": "must be a string or a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "literal_error": "must be {expected}",
    "string_pattern_mismatch": "must match {pattern}",
    "extra_forbidden": "is not supported",
}


def explain(problem: ErrorDetails, body: Mapping[str, object]) -> InvalidRequestError:
    """One of pydantic's findings about a body as a sentence."""
    kind, location, value = problem["type"], problem["loc"], problem["input"]
    context = problem.get("ctx", {})
    path, ends_in_tag = _path(location, body, is_missing=kind == "missing")
    param = str(location[0]) if location[0] in _WHOLE_PARAMS else path
    if kind == "missing":
        return InvalidRequestError(
            f"Missing required parameter: '{path}'.", param=param, code="missing_required_parameter"
        )
    if kind in ("too_long", "string_too_long"):
        text = f"'{path}' must have at most {context['max_length']} {_unit(kind)}"
        return InvalidRequestError(f"{text} (got {_size(value)}).", param=param)
    if kind in ("too_short", "string_too_short"):
        return InvalidRequestError(
            f"'{path}' must not be empty (got {shorten(value)}).", param=param
        )
    if kind == "union_tag_not_found":
        return InvalidRequestError(f"'{path}.type' is missing.", param=f"{param}.type")
    if kind == "union_tag_invalid":
        return UnsupportedValueError(
            f"Unsupported value: '{path}.type' does not support {shorten(context['tag'])} on this "
            f"server. Only {context['expected_tags']} is supported.",
            param=f"{param}.type",
        )
    if kind == "list_type" and ends_in_tag:
        kind = "union_type"
    sentence = _sentence(kind, context)
    return InvalidRequestError(f"'{path}' {sentence} (got {shorten(value)}).", param=param)


def _sentence(kind: str, context: Mapping[str, Any]) -> str:
    """The bound, each number as it is; what must be below a whole number has the one before."""
    if kind == "less_than" and isinstance(context["lt"], int):
        kind, context = "less_than_equal", {"le": context["lt"] - 1}
    exact = {name: _exact(value) for name, value in context.items()}
    return _BOUNDS.get(kind, "is malformed").format(**exact)


def _exact(value: object) -> object:
    """A number without a zero behind its point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _unit(kind: str) -> str:
    return "characters" if kind == "string_too_long" else "entries"


def _size(value: object) -> int:
    return len(value) if isinstance(value, (str, list, dict)) else 1


def _path(location: Sequence[int | str], body: object, *, is_missing: bool) -> tuple[str, bool]:
    """`messages[0].content` from pydantic's location, and whether that ends in a union's tag.

    A location also names the union members that were tried. What leads nowhere in the body is
    such a tag, except for the last step to a field that is missing.
    """
    path, value, is_tag = "", body, False
    for depth, step in enumerate(location):
        is_tag = False
        if isinstance(step, int):
            path += f"[{step}]"
            value = value[step] if isinstance(value, list) and step < len(value) else None
        elif isinstance(value, dict) and step in value:
            path += f".{step}" if path else step
            value = value[step]
        elif is_missing and depth == len(location) - 1:
            path += f".{step}" if path else step
        else:
            is_tag = True
    return path, is_tag
