"""FieldRule: what becomes of one request field, and the ways to say so in a table.

The tables themselves are in fields.py and translated_fields.py. Knows no endpoint.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass


class Support(enum.Enum):
    """Whether a field that no schema has is ignored or refused."""

    HARMLESS = "harmless"
    """Accepted and reported: the tokens do not depend on it."""
    REFUSED = "refused"
    """Accepted at a value that asks for nothing, refused at any other."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a neutral value may depend on."""

    body: Mapping[str, object]
    max_model_len: int


Neutral = Callable[[object, Facts], bool]


@dataclass(frozen=True, slots=True)
class FieldRule:
    """One row of the table."""

    support: Support
    neutral: Neutral
    hint: str = ""
    """A sentence that says what to use instead."""
    only: str = ""
    """The neutral values in words; with them a refusal speaks of the value, not of the field."""


def same(a: object, b: object) -> bool:
    """Equality in JSON's sense: 1 equals 1.0, but true is not 1."""
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def harmless() -> FieldRule:
    """A field on which the tokens do not depend."""
    return FieldRule(Support.HARMLESS, lambda _value, _facts: True)


def only(values: Sequence[object], *, hint: str = "") -> FieldRule:
    """A field that is accepted at these values, which ask for nothing."""

    def neutral(value: object, _facts: Facts) -> bool:
        return any(same(value, allowed) for allowed in values)

    words = " or ".join(json.dumps(value) for value in values)
    return FieldRule(Support.REFUSED, neutral, hint, only=words)


def refused(hint: str = "") -> FieldRule:
    """A field that asks for something at every value but null."""
    return FieldRule(Support.REFUSED, lambda _value, _facts: False, hint)


def only_if(neutral: Neutral, words: str) -> FieldRule:
    """A field that is accepted where `neutral` says so; `words` name those values."""
    return FieldRule(Support.REFUSED, neutral, only=words)


Shape = Mapping[str, "Shape | None"]
"""The keys that are looked at inside a value, with the shapes of theirs; lists are passed through.

None is a value that is taken as it is.
"""


def unknown_keys(value: object, shape: Shape, path: str) -> Iterator[str]:
    """Paths of the keys inside a value that its shape does not have.

    Null keys are absent. Malformed values are passed over: the schemas refuse them.
    """
    if isinstance(value, list):
        for item in value:
            yield from unknown_keys(item, shape, f"{path}[]")
    elif isinstance(value, dict):
        for key, inner in value.items():
            inside = shape.get(key)
            if inner is not None and key not in shape:
                yield f"{path}.{key}"
            elif inside is not None:
                yield from unknown_keys(inner, inside, f"{path}.{key}")
